"""A queue over several files, half-read, and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsquark.diskqueue import Place, QueueReader, Unreadable, find_queues
from tests.diskqueue.queues import record, write_queue


def read_all(
    path: Path, place: Place | None = None
) -> tuple[list[bytes], list[Place], list[tuple[str, Unreadable]]]:
    told: list[tuple[str, Unreadable]] = []
    (queue,) = find_queues(path)
    reader = QueueReader(queue, 1 << 20, lambda path, what: told.append((path.name, what)), place)
    bodies, places = [], []
    if place is None and reader.head is not None and not told:
        assert reader.bytes_left == queue.unread_bytes() - 30 - len(reader.head.body)
    while reader.head is not None:
        bodies.append(reader.head.body)
        places.append(reader.place)
        reader.advance()
    places.append(reader.place)
    assert reader.bytes_left == 0
    reader.close()
    return bodies, places, told


EXPECTED = [b"message %d" % each for each in range(10)]


@pytest.mark.parametrize("rolls_late", [False, True])
@pytest.mark.parametrize("read", range(11))
@pytest.mark.parametrize("per_file", [1, 39, 40, 100, 117, 10_000])
def test_what_is_unread_is_read(tmp_path: Path, rolls_late: bool, read: int, per_file: int) -> None:
    records = [record(each) for each in range(10)]
    write_queue(tmp_path, "t:c", records, per_file, read, rolls_late=rolls_late)
    bodies, places, told = read_all(tmp_path)
    assert (bodies, told) == (EXPECTED[read:], [])
    for number, place in enumerate(places):  # it goes on wherever it was interrupted
        assert read_all(tmp_path, place)[0] == EXPECTED[read:][number:]


def test_metadata_that_are_behind_give_more(tmp_path: Path) -> None:
    """Go's nsqd has crashed: it had read and written more than the metadata say."""
    write_queue(tmp_path, "t", [record(each) for each in range(10)], meta=b"2\n0,39\n0,117\n")
    assert read_all(tmp_path)[0] == EXPECTED[1:]


@pytest.mark.parametrize("meta", [b"", b"what?", b"10\n0,0\n"])
def test_without_metadata_everything_is_read(tmp_path: Path, meta: bytes) -> None:
    paths = write_queue(tmp_path, "t", [record(each) for each in range(10)], per_file=100, meta=meta)
    assert read_all(tmp_path)[0] == EXPECTED
    paths[0].unlink()
    assert read_all(tmp_path)[0] == EXPECTED[2:]


def test_damage_in_one_file_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    paths = write_queue(tmp_path, "t", [record(each) for each in range(10)], per_file=80)
    data = bytearray(paths[1].read_bytes())
    data[0] = 0xFF
    paths[1].write_bytes(bytes(data))
    for path in paths[3:]:  # a crash cuts off the newest file alone: the other one is damaged
        path.write_bytes(path.read_bytes()[:-1])
    bodies, places, told = read_all(tmp_path)
    assert bodies == [each for each in EXPECTED if each not in (b"message 2", b"message 7", b"message 9")]
    assert told == [
        (paths[1].name, Unreadable(0, 39, False)),
        (paths[3].name, Unreadable(39, 38, False)),
        (paths[4].name, Unreadable(39, 38, True)),
    ]
    for number, place in enumerate(places):
        assert read_all(tmp_path, place)[0] == bodies[number:]


def test_a_message_above_max_msg_size_is_read(tmp_path: Path) -> None:
    """It was accepted when --max-msg-size was larger; Go's nsqd would set its file aside."""
    write_queue(tmp_path, "t", [record(1, bytes(3 << 20)), record(2)])
    assert [len(each) for each in read_all(tmp_path)[0]] == [3 << 20, 9]
