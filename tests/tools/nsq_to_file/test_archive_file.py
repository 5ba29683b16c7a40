from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsquark.tools.nsq_to_file.archive_file import ArchiveFile, make_directories, sync_directory
from nsquark.tools.nsq_to_file.encoding import Plain
from nsquark.tools.nsq_to_file.errors import DiskError


def opened(path: Path, **settings: bool) -> ArchiveFile:
    return ArchiveFile(str(path), Plain(), **{"exclusive": False, **settings})


def test_a_torn_line_is_ended_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"whole\ntor")
    file = opened(path)
    assert file.size == len(b"whole\ntor\n")
    file.write([b"next"])
    file.close()
    assert path.read_bytes() == b"whole\ntor\nnext\n"


@given(st.integers(0, 64))
def test_a_kill_at_any_byte_never_glues_lines(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    lines = [b"line number %d" % n for n in range(4)]
    path = tmp_path_factory.mktemp("torn") / "a.log"
    path.write_bytes(b"".join(line + b"\n" for line in lines)[:cut])
    file = opened(path)
    file.write([b"next"])
    file.close()
    *before, last = path.read_bytes().splitlines()
    assert last == b"next"
    assert all(any(line.startswith(part) for line in lines) for part in before)


@pytest.mark.parametrize("tail", [b'{"id":"0', b"{", b"\0\0\0", b'{"body":"' + b"x" * 200_000])
@pytest.mark.parametrize("whole", [b"", b'{"id":1}\n', b'{"id":1}\n{"id":2}\n'])
def test_a_torn_json_line_is_cut(tmp_path: Path, whole: bytes, tail: bytes) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(whole + tail)
    file = opened(path, cut_torn_json=True)
    assert file.size == len(whole)
    file.write([b"{}"])
    file.close()
    assert path.read_bytes() == whole + b"{}\n"


def test_a_json_line_that_only_lacks_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b'{"id":1}\n{"id":2}')
    opened(path, cut_torn_json=True).close()
    assert path.read_bytes() == b'{"id":1}\n{"id":2}\n'


def test_a_file_that_another_process_writes_to_is_not_mended(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    first = opened(path)
    os.write(first._fd, b'{"half')
    second = opened(path, cut_torn_json=True)
    assert path.read_bytes() == b'{"half'
    first.close()
    second.close()


def test_modes_are_those_of_nsq_less_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        make_directories(str(tmp_path / "a" / "b"))
        opened(tmp_path / "a" / "b" / "c.log").close()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / each).stat().st_mode) for each in ("a", "a/b", "a/b/c.log")]
    assert modes == [0o750, 0o750, 0o640]


def test_names_are_synced_before_a_file_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd)))
    make_directories(str(tmp_path / "a" / "b"))
    opened(tmp_path / "a" / "b" / "c.log").close()
    assert synced == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]


def test_a_directory_that_cannot_be_synced_is_an_error_unless_it_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int) -> None:
        def fsync(fd: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fsync)

    fail(errno.EINVAL)
    sync_directory(str(tmp_path))
    fail(errno.EIO)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DiskError, match="input/output error"):
        opened(tmp_path / "a.log")
    assert len(os.listdir("/proc/self/fd")) == before
