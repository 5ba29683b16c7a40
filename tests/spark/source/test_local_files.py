"""Spans read from the files of an nsqd on this machine, and what happens when that cannot be done."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nsquark.net.machine import boot_id
from nsquark.spark.columns import SCHEMA
from nsquark.spark.errors import BadResponse, DataLost
from nsquark.spark.http import Exchange
from nsquark.spark.source import local_files, span_reader
from nsquark.spark.source.local_files import FilePart, LocalFiles, LocalReadFailed, parse_files
from nsquark.spark.source.offsets import Span
from nsquark.spark.source.options import parse_batch_options
from nsquark.spark.source.partitions import LogPartition
from nsquark.spark.source.span_reader import read_span
from tests.spark.broker import Broker

needs_boot_id = pytest.mark.skipif(not boot_id(), reason="the system does not tell its boots apart")
COUNT = 3000
BODIES = [b"%d " % number + b"x" * 700 for number in range(COUNT)]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_files, "_unreadable", set())


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data", "--max-bytes-per-file=1048576").start() as broker:
        fill(broker)
        yield broker


def fill(broker: Broker) -> None:
    for first in range(0, COUNT, 100):
        broker.publish("t", BODIES[first : first + 100])


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes came over HTTP, a number for each read."""
    sizes: list[int] = []
    read_into = Exchange.read_into

    def noted(self: Exchange, response: object, buffer: memoryview) -> None:
        sizes.append(len(buffer))
        read_into(self, response, buffer)  # type: ignore[arg-type]

    monkeypatch.setattr(Exchange, "read_into", noted)
    return sizes


def rows(broker: Broker, start: int = 0, end: int = COUNT) -> Iterator[tuple[int, bytes]]:
    given = {"nsqd.http.addresses": broker.http_address, "subscribe": "t", "fetchoffset.numretries": "0"}
    span = Span("t", "n", "127.0.0.1:4150", broker.log("t")["epoch"], start, end)
    partition = LogPartition(span, f"http://{broker.http_address}")
    for batch in read_span(partition, SCHEMA, parse_batch_options(given).fetch):
        yield from zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)


def segments(broker: Broker) -> list[Path]:
    return sorted((broker.data_path / "topics" / "t").glob("*.log"))


@needs_boot_id
@pytest.mark.parametrize(("start", "end"), [(0, COUNT), (150, 2750), (2990, COUNT)])
@pytest.mark.parametrize("piece", [1000, 100_000, 2 << 20])
def test_rows_come_from_the_files(
    nsqd: Broker, sent: list[int], monkeypatch: pytest.MonkeyPatch, start: int, end: int, piece: int
) -> None:
    monkeypatch.setattr(span_reader, "PIECE", piece)
    assert len(segments(nsqd)) > 1
    assert list(rows(nsqd, start, end)) == list(enumerate(BODIES))[start:end]
    assert not sent


@needs_boot_id
def test_files_that_may_not_be_opened_are_asked_for_over_http(
    nsqd: Broker, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def refuse(path: str, flags: int) -> int:
        tried.append(path)
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "open", refuse)
    for _ in range(2):
        assert list(rows(nsqd)) == list(enumerate(BODIES))
    assert tried == [str(segments(nsqd)[0])]  # once in the life of a process
    assert sum(sent) > 2 * sum(map(len, BODIES))


@needs_boot_id
def test_a_file_that_is_deleted_before_it_is_opened_is_asked_for_over_http(
    nsqd: Broker, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """nsqd then says what it has. Here it still has the file, under its name."""
    monkeypatch.setattr(LocalFiles, "_open", missing_once(LocalFiles._open))
    assert list(rows(nsqd)) == list(enumerate(BODIES))
    assert sum(sent) > sum(map(len, BODIES))
    sent.clear()
    assert list(rows(nsqd)) == list(enumerate(BODIES))
    assert not sent


def missing_once(opened: Callable[[LocalFiles, FilePart], None]) -> Callable[[LocalFiles, FilePart], None]:
    missed: list[FilePart] = []

    def open_part(self: LocalFiles, part: FilePart) -> None:
        if missed:
            opened(self, part)
        else:
            missed.append(part)
            opened(self, part._replace(path=part.path + ".gone"))

    return open_part


@needs_boot_id
def test_damage_is_no_row(nsqd: Broker) -> None:
    path = segments(nsqd)[0]
    with path.open("r+b") as file:
        file.seek(100_000)
        byte = file.read(1)
        file.seek(100_000)
        file.write(bytes([byte[0] ^ 1]))
    found: list[tuple[int, bytes]] = []
    with pytest.raises(BadResponse, match="damaged"):
        found.extend(rows(nsqd))
    assert found == list(enumerate(BODIES))[: len(found)]


def part_of(path: Path, **other: object) -> FilePart:
    """The whole of a file, whose first 48 bytes stand for its last header."""
    status, header = path.lstat(), (path.read_bytes() if path.is_file() else b"")[:48].ljust(48).hex()
    part = FilePart(str(path), status.st_dev, status.st_ino, 0, status.st_size, 0, header)
    return part._replace(**other)


@needs_boot_id
def test_the_epoch_changes_while_files_wait_to_be_opened(
    tmp_path: Path, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another data path in the place of the first; its file has the name, the size, and the inode, too."""
    broker = Broker(tmp_path / "data", "--max-bytes-per-file=1048576")
    opened = LocalFiles._open

    def replace_first(self: LocalFiles, part: FilePart) -> None:
        if not (tmp_path / "old").exists():
            broker.kill()
            broker.data_path.rename(tmp_path / "old")
            broker.restart()
            fill(broker)
            status = Path(part.path).stat()
            assert status.st_size >= part.stop
            part = part._replace(inode=status.st_ino)
        opened(self, part)

    with broker.start():
        fill(broker)
        read = rows(broker)
        monkeypatch.setattr(LocalFiles, "_open", replace_first)
        with pytest.raises(DataLost, match="in another log"):
            next(read)
    assert (tmp_path / "old").exists()
    assert not sent


@needs_boot_id
def test_the_topic_is_deleted_and_made_again_while_files_wait_to_be_opened(
    nsqd: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_reader, "PIECE", 100_000)
    read = rows(nsqd)
    found = [next(read)]
    nsqd.ask("POST", "/topic/delete?topic=t")
    nsqd.ask("POST", "/topic/create?topic=t")
    fill(nsqd)
    with pytest.raises(DataLost, match="in another log"):
        found.extend(read)
    assert 0 < len(found) < COUNT
    assert found == list(enumerate(BODIES))[: len(found)]


@needs_boot_id
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_who_may_not_open_the_files_gets_all_rows(
    tmp_path: Path, nsqd: Broker, sent: list[int]
) -> None:
    nsqd.data_path.chmod(0o700)
    tmp_path.chmod(0o755)
    os.seteuid(65534)
    try:
        assert list(rows(nsqd)) == list(enumerate(BODIES))
    finally:
        os.seteuid(0)
    assert local_files._unreadable == {f"http://{nsqd.http_address}"}
    assert sum(sent) > sum(map(len, BODIES))


@needs_boot_id
def test_another_file_of_that_name_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345" * 20)
    part = part_of(path)
    for another in (
        part._replace(inode=part.inode + 1),
        part._replace(device=part.device + 1),
        part._replace(header="00" * 48),
        part._replace(last=5, header=part.header[:-2] + "00"),
        part._replace(last=99),
    ):
        local_files._unreadable.clear()
        files = LocalFiles("http://x", [another])
        with pytest.raises(LocalReadFailed, match="another file here"):
            files.read_into(memoryview(bytearray(5)))
        files.close()
        assert "http://x" in local_files._unreadable


@needs_boot_id
def test_only_a_file_is_opened(tmp_path: Path) -> None:
    """Not a link to it, no folder, and no pipe, where opening would wait or wake somebody."""
    path = tmp_path / "file"
    path.write_bytes(b"12345" * 20)
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe"):
        part = part_of(tmp_path / name, stop=5)
        with pytest.raises(LocalReadFailed, match="another file here"):
            LocalFiles("http://x", [part]).read_into(memoryview(bytearray(5)))
    through_link = part_of(path)._replace(path=str(tmp_path / "link"))
    with pytest.raises(LocalReadFailed, match="another file here"):
        LocalFiles("http://x", [through_link]).read_into(memoryview(bytearray(5)))


GOOD = {"path": "/x", "device": 1, "inode": 1, "start": 0, "stop": 99, "last": 9, "header": "00" * 48}


def test_an_answer_that_makes_sense() -> None:
    assert parse_files({"count": 1, "position": 0, "files": [GOOD]}) == (1, 0, [FilePart(**GOOD)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "told",
    [
        [],
        {},
        {"count": 1, "position": 0},
        {"count": "1", "position": 0, "files": []},
        {"count": 1, "position": -1, "files": []},
        {"count": 1 << 63, "position": 0, "files": []},
        {"count": 1, "position": 0, "files": [{}]},
        {"count": 1, "position": 0, "files": 7},
        *(
            {"count": 1, "position": 0, "files": [{**GOOD, **wrong}]}
            for wrong in (
                {"path": 3},
                {"path": "x"},
                {"path": "../x"},
                {"path": "/x\0"},
                {"path": "/\ud800"},
                {"start": 9.0},
                {"start": 10},
                {"inode": True},
                {"stop": 1 << 63},
                {"last": 60},
                {"header": "00"},
                {"header": "zz" * 48},
                {"header": 7},
            )
        ),
    ],
)
def test_an_answer_that_makes_no_sense(told: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_files(told)


@needs_boot_id
def test_a_file_shorter_than_told_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345" * 20)
    part = part_of(path)
    files = LocalFiles("http://x", [part._replace(stop=101)])
    with pytest.raises(LocalReadFailed, match="shorter"):
        files.read_into(memoryview(bytearray(101)))
    files.close()
    missing = LocalFiles("http://y", [part._replace(path=str(tmp_path / "none"))])
    with pytest.raises(LocalReadFailed):
        missing.read_into(memoryview(bytearray(9)))
    assert "http://y" not in local_files._unreadable  # it may just have been deleted
