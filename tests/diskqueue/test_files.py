"""Which files make a queue, and what is unread in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsquark.diskqueue import QueueMeta, find_queues, pack_meta, parse_meta
from tests.diskqueue.queues import record, write_queue


def test_queues_are_found_by_the_names_of_their_files(tmp_path: Path) -> None:
    write_queue(tmp_path, "orders", [record(1)])
    write_queue(tmp_path, "orders:mail", [record(1), record(2)], per_file=40)
    write_queue(tmp_path, "a.b;c", [record(1)])  # as on Windows
    for name in (
        "orders.diskqueue.000007.dat.bad",
        "orders.diskqueue.meta.dat.1234.tmp",
        "nsqd.dat",
        "orders.diskqueue.12.dat",
        "orders.diskqueue.000000.dat.0+3.bad",
    ):
        (tmp_path / name).write_bytes(b"what?")
    (tmp_path / "folder.diskqueue.000000.dat").mkdir()
    found = find_queues(tmp_path)
    assert [(each.topic, each.channel, sorted(each.data)) for each in found] == [
        ("a.b", "c", [0]),
        ("orders", None, [0]),
        ("orders", "mail", [0, 1]),
    ]
    assert all(each.usable and each.meta is not None for each in found)


@pytest.mark.parametrize("name", ["t#ephemeral", "t:c#ephemeral", "not a name", "t:", "t:c:d", "x" * 65])
def test_a_name_that_nsqd_gives_no_queue(tmp_path: Path, name: str) -> None:
    write_queue(tmp_path, name, [record(1)])
    (queue,) = find_queues(tmp_path)
    assert not queue.usable


@pytest.mark.parametrize(
    "text", [b"", b"what?", b"1\n0,0\n0,33", b"1\n0,0\n", b"1\n0,0\n0,-3\n", b"1\n0,0\n0,33\n\n", b"9" * 99]
)
def test_metadata_that_do_not_read(text: bytes) -> None:
    assert parse_meta(text) is None


def test_metadata_as_nsqd_writes_them() -> None:
    assert parse_meta(b"6\n0,0\n2,72\n") == QueueMeta(6, 0, 0, 2, 72)
    assert parse_meta(b"-3\n0,0\n2,72\n") == QueueMeta(-3, 0, 0, 2, 72)  # after a crash
    assert pack_meta(QueueMeta(6, 0, 0, 2, 72)) == b"6\n0,0\n2,72\n"


@pytest.mark.parametrize(
    ("meta", "sizes", "unread"),
    [
        (b"2\n0,0\n0,70\n", [70], [(0, 0)]),
        (b"1\n0,35\n0,70\n", [70], [(0, 35)]),
        (b"0\n0,70\n0,70\n", [70], []),
        (b"0\n0,70\n0,70\n", [140], [(0, 70)]),  # written on, and crashed
        (b"0\n0,70\n0,70\n", [70, 70], [(1, 0)]),
        (b"3\n1,35\n2,35\n", [70, 70, 35], [(1, 35), (2, 0)]),  # a file that could not be deleted
        (b"2\n1,0\n3,0\n", [70, 70, 70], [(1, 0), (2, 0)]),  # rolled, and nothing written behind it
        (b"2\n0,99\n1,35\n", [70, 35], [(1, 0)]),  # a file that was cut
        (b"what?", [70, 35], [(0, 0), (1, 0)]),
        (None, [70], [(0, 0)]),
        (None, [0], []),
        (b"4\n0,0\n0,70\n", [], []),
    ],
)
def test_what_is_unread(
    tmp_path: Path, meta: bytes | None, sizes: list[int], unread: list[tuple[int, int]]
) -> None:
    if meta is not None:
        (tmp_path / "t.diskqueue.meta.dat").write_bytes(meta)
    for number, size in enumerate(sizes):
        (tmp_path / f"t.diskqueue.{number:06d}.dat").write_bytes(bytes(size))
    (queue,) = find_queues(tmp_path)
    assert queue.unread() == unread
    assert queue.unread_bytes() == sum(sizes[number] - offset for number, offset in unread)


@pytest.mark.parametrize(
    ("meta", "numbers", "missing"),
    [
        (b"9\n1,0\n4,35\n", [1, 2, 3, 4], 0),
        (b"9\n1,0\n4,35\n", [1, 3, 4], 1),
        (b"9\n1,0\n4,0\n", [1, 2, 3], 0),
        (b"9\n1,0\n4,35\n", [], 4),
        (b"0\n4,0\n4,0\n", [], 0),
        (b"0\n4,35\n4,35\n", [], 0),
    ],
)
def test_files_that_are_missing(tmp_path: Path, meta: bytes, numbers: list[int], missing: int) -> None:
    (tmp_path / "t.diskqueue.meta.dat").write_bytes(meta)
    for number in numbers:
        (tmp_path / f"t.diskqueue.{number:06d}.dat").write_bytes(bytes(70))
    (queue,) = find_queues(tmp_path)
    assert queue.missing() == missing
