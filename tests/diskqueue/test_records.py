"""The messages of one file: all of them, and where a file is damaged all but those that were hit."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from nsquark.diskqueue import MessageFinder, QueuedMessage, Unreadable, pack_record
from nsquark.diskqueue.records import WINDOW
from tests.diskqueue.queues import TIME, record

LARGEST = (1 << 20) + 26


def read(
    tmp_path: Path, data: bytes, start: int = 0, largest: int = LARGEST
) -> tuple[list[QueuedMessage], list[Unreadable]]:
    path = tmp_path / "file"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        finder = MessageFinder(fd, start, len(data), largest)
        found = []
        while (message := finder.next()) is not None:
            found.append(message)
        return found, finder.unreadable
    finally:
        os.close(fd)


def bodies(found: list[QueuedMessage]) -> list[bytes]:
    return [each.body for each in found]


def test_every_field_is_read(tmp_path: Path) -> None:
    data = record(1, b"one", attempts=3) + record(2, b"")
    found, unreadable = read(tmp_path, data)
    assert found == [
        QueuedMessage(TIME + 1, 3, b"000000000abc0001", b"one"),
        QueuedMessage(TIME + 2, 0, b"000000000abc0002", b"message 2"),
    ]
    assert unreadable == []
    assert b"".join(map(pack_record, found)) == data


def test_a_body_may_be_empty_or_large(tmp_path: Path) -> None:
    head = struct.pack(">iqH16s", 26, TIME, 0, b"0" * 16)
    large = record(1, os.urandom(WINDOW - 7))
    found, unreadable = read(tmp_path, head + large + head)
    assert [len(each.body) for each in found] == [0, WINDOW - 7, 0]
    assert unreadable == []


def test_an_id_may_be_anything(tmp_path: Path) -> None:
    """Go's nsqd does not look at it."""
    heads = [struct.pack(">iqH16s", 27, TIME, 0, b"not hex, you see") + b"%d" % each for each in range(3)]
    found, unreadable = read(tmp_path, b"".join(heads))
    assert (bodies(found), unreadable) == ([b"0", b"1", b"2"], [])


def test_times_of_nsqd_before_0_2_22_count_seconds(tmp_path: Path) -> None:
    found, _ = read(tmp_path, record(1, timestamp=1_370_000_000))
    assert found[0].timestamp_ns == 1_370_000_000 * 10**9


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_file_that_is_cut_loses_the_last_message_alone(tmp_path: Path, cut: int) -> None:
    data = b"".join(record(each, b"0123456789") for each in range(5))
    found, unreadable = read(tmp_path, data[:-cut])
    assert bodies(found) == [b"0123456789"] * 4
    assert [each.torn for each in unreadable] == [True]


def test_zeros_at_the_end_are_a_torn_write(tmp_path: Path) -> None:
    data = record(1) + bytes(5000)
    found, unreadable = read(tmp_path, data)
    assert bodies(found) == [b"message 1"]
    assert unreadable == [Unreadable(len(record(1)), 5000, True)]


@pytest.mark.parametrize("where", range(4))
@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("victim", [0, 4, 9])
def test_a_flipped_bit_in_a_length_costs_one_message(
    tmp_path: Path, where: int, bit: int, victim: int
) -> None:
    records = [record(each, b"the body of message %d" % each * (each + 1)) for each in range(10)]
    at = sum(map(len, records[:victim])) + where
    data = bytearray(b"".join(records))
    data[at] ^= 1 << bit
    found, unreadable = read(tmp_path, bytes(data))
    expected = [b"the body of message %d" % each * (each + 1) for each in range(10)]
    others = expected[:victim] + expected[victim + 1 :]
    assert [each for each in bodies(found) if each in expected] == others
    assert len(found) - len(others) <= 1  # a length that is a little too small gives a part of the body
    assert unreadable


def test_damage_in_several_places_costs_what_it_hits(tmp_path: Path) -> None:
    records = [record(each, b"%d" % each * 50) for each in range(100)]
    data = bytearray(b"".join(records))
    for victim in (3, 5, 50, 51):
        at = sum(map(len, records[:victim]))
        data[at : at + 4] = b"\xff\xff\xff\xff"
    at = sum(map(len, records[:70]))
    data[at + 10 : at + 10 + len(records[70])] = bytes(len(records[70]))  # parts of 70 and 71
    found, unreadable = read(tmp_path, bytes(data))
    got = {each.body for each in found}
    lost = [each for each in range(100) if b"%d" % each * 50 not in got]
    assert lost == [3, 5, 50, 51, 70, 71]
    assert sum(each.length for each in unreadable) >= 5 * len(records[50])


def test_a_message_that_holds_a_queue_is_not_taken_apart(tmp_path: Path) -> None:
    inner = b"".join(record(each) for each in range(20))
    whole = [record(100, inner), record(101)]
    found, unreadable = read(tmp_path, b"".join(whole))
    assert bodies(found) == [inner, b"message 101"]
    assert unreadable == []
    # The write of the last one was cut off: its beginning is no message, and what it holds is none.
    torn = b"".join(whole) + record(102, inner)[:-5]
    found, unreadable = read(tmp_path, torn)
    assert bodies(found) == [inner, b"message 101"]
    assert [each.torn for each in unreadable] == [True]
    # The length behind it is damaged.
    data = bytearray(b"".join(whole))
    data[len(whole[0])] = 0xFF
    found, _ = read(tmp_path, bytes(data))
    assert bodies(found) == [inner]


def test_reading_can_begin_within_a_file(tmp_path: Path) -> None:
    data = b"".join(record(each) for each in range(5))
    found, _ = read(tmp_path, data, 3 * len(record(0)))
    assert bodies(found) == [b"message 3", b"message 4"]
    found, unreadable = read(tmp_path, data, 3 * len(record(0)) - 7)  # the metadata are wrong
    assert bodies(found) == [b"message 3", b"message 4"]
    assert unreadable == [Unreadable(3 * len(record(0)) - 7, 7, False)]


def test_any_bytes_come_to_an_end(tmp_path: Path) -> None:
    generator = random.Random(7)
    for _ in range(200):
        pieces = [record(each, generator.randbytes(generator.randrange(60))) for each in range(12)]
        data = bytearray(b"".join(pieces))
        for _ in range(generator.randrange(1, 6)):
            at, length = generator.randrange(len(data)), generator.randrange(1, 80)
            kind = generator.randrange(3)
            if kind == 0:
                data[at : at + length] = generator.randbytes(length)
            elif kind == 1:
                del data[at : at + length]
            else:
                data[at:at] = generator.randbytes(length)
        found, unreadable = read(tmp_path, bytes(data))
        covered = sum(30 + len(each.body) for each in found) + sum(each.length for each in unreadable)
        assert covered == len(data)


def test_a_body_full_of_beginnings_does_not_hold_up_the_search(tmp_path: Path) -> None:
    """Every one of them looks like a message that goes on to the next: the search gives up in time."""
    fake = struct.pack(">iqH16s", 26, TIME, 0, b"0" * 16)
    data = bytearray(record(1, fake * 30_000) + record(2))
    data[0] = 0x7F
    found, unreadable = read(tmp_path, bytes(data))
    assert found[-1].body == b"message 2"
    assert unreadable[0].offset == 0
