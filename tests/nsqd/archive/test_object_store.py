"""The archive as a place for objects."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsquark.cli.flags import StartError
from nsquark.errors import ArchiveAway
from nsquark.nsqd.archive import object_store
from nsquark.nsqd.archive.object_store import ObjectStore, read_pieces
from nsquark.nsqd.options import parse
from nsquark.nsqd.options_check import validate

DATA = os.urandom(3 << 20)


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "file").write_bytes(b"before" + DATA + b"behind")
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    yield fd
    os.close(fd)


def put(store: ObjectStore, fd: int, key: str = "a/b/c") -> None:
    store.put(key, fd, 6, 6 + len(DATA), zlib.crc32(DATA))


def test_an_object_has_the_bytes_of_its_part_of_a_file(tmp_path: Path, fd: int) -> None:
    store = ObjectStore(f"file://{tmp_path}/store")
    put(store, fd)
    assert (tmp_path / "store/a/b/c").read_bytes() == DATA
    out = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    store.get("a/b/c", len(DATA), zlib.crc32(DATA), out)
    os.close(out)
    assert (tmp_path / "out").read_bytes() == DATA


def test_a_whole_object_stays_and_another_is_replaced(tmp_path: Path, fd: int) -> None:
    store = ObjectStore(f"file://{tmp_path}/store")
    put(store, fd)
    there = tmp_path / "store/a/b/c"
    first = there.stat()
    put(store, fd)
    assert there.stat().st_mtime_ns == first.st_mtime_ns
    for wrong in (DATA[:-1], b"", b"\0" * len(DATA)):
        there.write_bytes(wrong)
        put(store, fd)
        assert there.read_bytes() == DATA


def test_a_store_that_refuses_is_away(tmp_path: Path, fd: int) -> None:
    (tmp_path / "store").write_bytes(b"")
    with pytest.raises(ArchiveAway):
        put(ObjectStore(f"file://{tmp_path}/store"), fd)


def write_to(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the next object written to a device."""
    monkeypatch.setattr(os, "urandom", bytes)
    (tmp_path / "store/a/b").mkdir(parents=True)
    (tmp_path / "store/a/b/c.00000000.tmp").symlink_to(device)


def test_the_same_failure_has_the_same_reason(tmp_path: Path, fd: int) -> None:
    reasons = set()
    for _ in range(2):
        with pytest.raises(ArchiveAway) as found:
            put(ObjectStore(f"file://{tmp_path}/store"), fd, "a/" + "b" * 250)  # no room for a temporary name
        reasons.add(str(found.value))
    assert len(reasons) == 1, reasons


def test_a_disk_that_swallows_bytes_is_found_out(
    tmp_path: Path, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_to("/dev/null", tmp_path, monkeypatch)
    with pytest.raises(ArchiveAway):
        put(ObjectStore(f"file://{tmp_path}/store"), fd)


def test_a_full_disk_is_away(tmp_path: Path, fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    write_to("/dev/full", tmp_path, monkeypatch)
    with pytest.raises(ArchiveAway, match="No space left"):
        put(ObjectStore(f"file://{tmp_path}/store"), fd)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("/srv/archive", "must begin with one of file://, s3://"),
        ("http://host/x", "must begin with"),
        ("file:///", "names no folder"),
        ("file://mnt/nsq", "begins with file:///"),
        ("s3://id:verysecret@bucket/x", "must not hold credentials"),
        ("s3://bucket/x?secret_key=verysecret", "must not hold credentials"),
        ("s3://bucket/x?endpoint_override=me:verysecret@host:9000", "must not hold credentials"),
        ("abfs://:verysecret@account/x", "must not hold credentials"),
        ("s3://[verysecret", "is no URL"),
    ],
)
def test_what_is_no_archive_is_refused_at_the_start(url: str, why: str) -> None:
    with pytest.raises(StartError, match=why) as refused:
        validate(parse([f"--archive-url={url}"]))
    assert "verysecret" not in str(refused.value)


def test_buckets_are_taken_without_asking_them() -> None:
    for url in (
        "s3://bucket/x?region=eu-west-1&endpoint_override=minio:9000",
        "gs://bucket",
        "hdfs://me@host/x",
    ):
        validate(parse([f"--archive-url={url}"]))


def test_an_object_is_deleted_once_and_what_is_not_there_stays_so(tmp_path: Path, fd: int) -> None:
    store = ObjectStore(f"file://{tmp_path}/store")
    put(store, fd, "n/t/1.log")
    store.delete("n/t/1.log")
    assert not (tmp_path / "store" / "n" / "t" / "1.log").exists()
    store.delete("n/t/1.log")


def test_nothing_is_taken_for_deleted_while_the_archive_is_not_mounted(tmp_path: Path, fd: int) -> None:
    store = ObjectStore(f"file://{tmp_path}/store")
    put(store, fd, "n/t/1.log")
    (tmp_path / "store").rename(tmp_path / "unmounted")
    (tmp_path / "store").mkdir()
    with pytest.raises(ArchiveAway, match="n is no folder"):
        store.delete("n/t/1.log")
    with pytest.raises(ArchiveAway, match="n is no folder: it was one"):
        store.put("n/t/2.log", fd, 0, 4, 0, first=False)
    assert list((tmp_path / "store").iterdir()) == []


def test_an_object_is_never_shorter_than_it_is_to_be(
    tmp_path: Path, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A primary that was paused behind its first look writes what another one has recorded since."""
    one, other = (ObjectStore(f"file://{tmp_path}/store") for _ in range(2))
    path = tmp_path / "store" / "n" / "1.log"
    sizes = []

    def looked(*_: object) -> bool:
        monkeypatch.undo()
        put(other, fd, "n/1.log")
        monkeypatch.setattr(object_store, "read_pieces", pieces)
        return False

    def pieces(*args: int) -> Iterator[bytes]:
        sizes.append(path.stat().st_size)
        yield from read_pieces(*args)
        sizes.append(path.stat().st_size)

    monkeypatch.setattr(ObjectStore, "_reads_as", looked)
    put(one, fd, "n/1.log")
    assert sizes == [len(DATA)] * 2
    assert [each.name for each in path.parent.iterdir()] == ["1.log"]
