"""Spans read from the files of an nsqd on this machine, and what happens when that cannot be done."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nsquark.net.machine import boot_id
from nsquark.spark.columns import SCHEMA
from nsquark.spark.errors import BadResponse
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
        for first in range(0, COUNT, 100):
            broker.publish("t", BODIES[first : first + 100])
        yield broker


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


def test_another_file_of_that_name_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    status = path.stat()
    for device, inode in ((status.st_dev, status.st_ino + 1), (status.st_dev + 1, status.st_ino)):
        files = LocalFiles("http://x", [FilePart(str(path), device, inode, 0, 5)])
        with pytest.raises(LocalReadFailed, match="another file here"):
            files.read_into(memoryview(bytearray(5)))
    assert "http://x" in local_files._unreadable


@pytest.mark.parametrize(
    "told",
    [
        [],
        {},
        {"count": 1, "position": 0},
        {"count": "1", "position": 0, "files": []},
        {"count": 1, "position": -1, "files": []},
        {"count": 1, "position": 0, "files": [{}]},
        {"count": 1, "position": 0, "files": 7},
        {
            "count": 1,
            "position": 0,
            "files": [{"path": 3, "device": 1, "inode": 1, "start": 0, "stop": 9}],
        },
        {
            "count": 1,
            "position": 0,
            "files": [{"path": "/x", "device": 1, "inode": 1, "start": 9, "stop": 9}],
        },
    ],
)
def test_an_answer_that_makes_no_sense(told: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_files(told)


def test_a_file_shorter_than_told_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    status = path.stat()
    files = LocalFiles("http://x", [FilePart(str(path), status.st_dev, status.st_ino, 0, 9)])
    with pytest.raises(LocalReadFailed, match="shorter"):
        files.read_into(memoryview(bytearray(9)))
    files.close()
    missing = LocalFiles("http://y", [FilePart(str(tmp_path / "none"), 1, 1, 0, 9)])
    with pytest.raises(LocalReadFailed):
        missing.read_into(memoryview(bytearray(9)))
    assert "http://y" not in local_files._unreadable  # it may just have been deleted


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(path)
    status = path.stat()
    part = FilePart(str(tmp_path / "link"), status.st_dev, status.st_ino, 0, 5)
    with pytest.raises(LocalReadFailed):
        LocalFiles("http://x", [part]).read_into(memoryview(bytearray(5)))
