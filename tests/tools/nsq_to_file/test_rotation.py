"""Which file a line goes to, with the time as an argument."""

from __future__ import annotations

import gzip
import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsquark.tools.nsq_to_file.encoding import Gzip, Plain
from nsquark.tools.nsq_to_file.errors import DiskError
from nsquark.tools.nsq_to_file.file_name import FileNames
from nsquark.tools.nsq_to_file.rotation import Archive, ArchiveSettings
from tests.tools.nsq_to_file.archiver import files

NOON = time.mktime((2026, 11, 8, 12, 0, 0, 0, 0, -1))
HOUR = 3600.0
Make = Callable[..., Archive]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return tmp_path / "work"


@pytest.fixture
def archive(out: Path) -> Make:
    """Makes the archive of topic t, whose files are called by the hour; keywords are its settings."""

    def make(form: str = "t<REV>.<DATETIME>.log", **settings: Any) -> Archive:
        settings = {"output_dir": str(out), "work_dir": str(out), "encoder": Plain, **settings}
        revisions = (
            settings.keys() & {"rotate_size", "rotate_interval", "compressed"}
            or settings["work_dir"] != settings["output_dir"]
        )
        names = FileNames.of(
            form,
            "%H",
            topic="t",
            extension=".gz" if settings.get("compressed") else "",
            with_revisions=bool(revisions),
        )
        return Archive("[t/c]", names, ArchiveSettings(**settings))

    return make


def gzipped() -> dict[str, Any]:
    return {"encoder": lambda: Gzip(6), "compressed": True}


def test_lines_are_appended_to_the_file_of_the_hour(archive: Make, out: Path) -> None:
    made = archive()
    assert made.write([b"a", b"b"], NOON) is True
    assert made.durable is False
    made.sync()
    assert made.durable is True
    assert made.write([b"c"], NOON + 1) is False
    assert made.write([b"d"], NOON + HOUR) is True
    made.close()
    assert files(out) == {"t.12.log": b"a\nb\nc\n", "t.13.log": b"d\n"}


def test_an_archive_that_was_begun_before_is_continued(archive: Make, out: Path) -> None:
    for line in (b"a", b"b"):
        made = archive()
        made.write([line], NOON)
        made.close()
    assert files(out) == {"t.12.log": b"a\nb\n"}


def test_a_file_may_exceed_the_size_by_one_line(archive: Make, out: Path) -> None:
    made = archive(rotate_size=100)
    made.write([b"x" * 12] * 20, NOON)
    made.close()
    assert [len(data) for data in files(out).values()] == [104, 104, 52]
    assert list(files(out)) == ["t-000000.12.log", "t-000001.12.log", "t-000002.12.log"]


def test_a_run_is_split_as_single_lines_would_be(archive: Make, out: Path, work: Path) -> None:
    lines = [b"x" * (7 * n % 23) for n in range(50)]
    whole, single = archive(rotate_size=40), archive(rotate_size=40, output_dir=str(work), work_dir=str(work))
    whole.write(lines, NOON)
    for line in lines:
        single.write([line], NOON)
    whole.close()
    single.close()
    assert files(out) == files(work)


@pytest.mark.parametrize("settings", [{}, gzipped()], ids=["plain", "gzip"])
@pytest.mark.parametrize(("count", "step"), [(30, 50_000), (2000, 1)])
def test_large_runs_are_whole_and_in_order(
    archive: Make, out: Path, settings: dict[str, Any], count: int, step: int
) -> None:
    lines = [b"%d" % n * (n * step // 2) for n in range(1, count)]
    made = archive(**settings)
    made.write(lines, NOON)
    made.close()
    (data,) = files(out).values()
    assert data.splitlines() == lines


def test_a_large_write_that_takes_only_a_part_fails(archive: Make, out: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(DiskError, match=r"write .*: file too large"):
            archive().write([b"x" * 300_000] * 10, NOON)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(out)["t.12.log"] == ((b"x" * 300_000 + b"\n") * 10)[:1_000_000]


def test_a_full_file_is_not_continued_and_no_descriptor_is_left(archive: Make, out: Path) -> None:
    out.mkdir()
    for revision in range(5):
        (out / f"t-{revision:06d}.12.log").write_bytes(b"x" * 11 + b"\n")
    before = len(os.listdir("/proc/self/fd"))
    made = archive(rotate_size=10)
    made.write([b"a"], NOON)
    made.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert files(out)["t-000005.12.log"] == b"a\n"


def test_a_file_that_has_room_is_continued(archive: Make, out: Path) -> None:
    out.mkdir()
    (out / "t-000000.12.log").write_bytes(b"old\n")
    made = archive(rotate_size=10)
    made.write([b"new", b"more", b"next"], NOON)
    made.close()
    assert files(out) == {"t-000000.12.log": b"old\nnew\nmore\n", "t-000001.12.log": b"next\n"}


def test_a_file_is_closed_when_it_is_older_than_the_interval(archive: Make, out: Path) -> None:
    made = archive(rotate_interval=10.0)
    made.write([b"a"], NOON)
    made.write([b"b"], NOON + 10)
    made.write([b"c"], NOON + 10.5)
    made.close()
    assert files(out) == {"t-000000.12.log": b"a\nb\n", "t-000001.12.log": b"c\n"}


def test_an_existing_file_is_never_continued_with_an_interval_or_compression(
    archive: Make, out: Path
) -> None:
    for settings, name in (({"rotate_interval": 10.0}, "t-000001.12.log"), (gzipped(), "t-000001.12.log.gz")):
        for _ in range(2):
            made = archive(**settings)
            made.write([b"a"], NOON)
            made.close()
        assert files(out)[name] == b"a\n"


def test_a_gzip_file_has_a_member_for_each_sync(archive: Make, out: Path) -> None:
    made = archive(**gzipped())
    made.write([b"a", b"b"], NOON)
    made.sync()
    after_first = (out / "t-000000.12.log.gz").read_bytes()
    made.write([b"c"], NOON)
    made.sync()
    made.close()
    both = (out / "t-000000.12.log.gz").read_bytes()
    assert gzip.decompress(after_first) == b"a\nb\n"
    assert both.startswith(after_first)
    assert gzip.decompress(both[len(after_first) :]) == b"c\n"


def test_the_size_of_a_gzip_file_is_that_of_its_lines(archive: Make, out: Path) -> None:
    made = archive(rotate_size=100, **gzipped())
    made.write([b"x" * 12] * 16, NOON)
    made.close()
    assert [len(data) for data in files(out).values()] == [104, 104]


# ---- empty files


def test_a_tick_opens_an_empty_file_and_the_next_hour_another(archive: Make, out: Path) -> None:
    made = archive()
    made.tick(NOON)
    made.tick(NOON + 1)
    made.tick(NOON + HOUR)
    made.close()
    assert files(out) == {"t.12.log": b"", "t.13.log": b""}


def test_an_empty_gzip_file_is_a_gzip_file(archive: Make, out: Path) -> None:
    made = archive(**gzipped())
    made.tick(NOON)
    made.close()
    assert (out / "t-000000.12.log.gz").stat().st_size == 20
    assert files(out) == {"t-000000.12.log.gz": b""}


def test_without_empty_files_a_tick_makes_nothing_and_closes_what_is_due(archive: Make, out: Path) -> None:
    made = archive(skip_empty_files=True)
    made.tick(NOON)
    assert not out.exists()
    made.write([b"a"], NOON)
    made.tick(NOON + HOUR)
    made.tick(NOON + 2 * HOUR)
    made.write([b"b"], NOON + 3 * HOUR)
    made.close()
    assert files(out) == {"t.12.log": b"a\n", "t.15.log": b"b\n"}


# ---- the work directory


def test_a_finished_file_is_moved(archive: Make, out: Path, work: Path) -> None:
    made = archive("d/t<REV>.log", work_dir=str(work))
    made.write([b"a"], NOON)
    made.sync()
    assert files(work) == {"d/t-000000.log": b"a\n"}
    assert files(out) == {}
    made.close()
    assert files(work) == {}
    assert files(out) == {"d/t-000000.log": b"a\n"}
    made.write([b"b"], NOON)
    made.close()
    assert files(out) == {"d/t-000000.log": b"a\n", "d/t-000001.log": b"b\n"}


def test_a_revision_that_exists_in_the_output_directory_is_not_begun(
    archive: Make, out: Path, work: Path
) -> None:
    out.mkdir()
    (out / "t-000000.12.log").write_bytes(b"old")
    made = archive(work_dir=str(work))
    made.write([b"a"], NOON)
    assert list(files(work)) == ["t-000001.12.log"]


def test_a_file_that_appears_meanwhile_is_not_overwritten(archive: Make, out: Path, work: Path) -> None:
    made = archive(work_dir=str(work))
    made.write([b"a"], NOON)
    out.mkdir()
    (out / "t-000000.12.log").write_bytes(b"other")
    (out / "t-000001.12.log").write_bytes(b"other")
    made.close()
    assert files(out)["t-000000.12.log"] == files(out)["t-000001.12.log"] == b"other"
    assert files(out)["t-000002.12.log"] == b"a\n"
    assert files(work) == {}


def test_without_empty_files_rotation_from_a_work_directory_goes_on(
    archive: Make, out: Path, work: Path
) -> None:
    made = archive(work_dir=str(work), skip_empty_files=True)
    for hours in range(3):
        made.write([b"%d" % hours], NOON + hours * HOUR)
        made.tick(NOON + (hours + 1) * HOUR)
    assert list(files(out).values()) == [b"0\n", b"1\n", b"2\n"]


def test_two_with_one_work_directory_have_files_of_their_own(archive: Make, out: Path, work: Path) -> None:
    first, second = archive(work_dir=str(work)), archive(work_dir=str(work))
    first.write([b"first"], NOON)
    second.write([b"second"], NOON)
    first.close()
    second.write([b"second again"], NOON)
    second.close()
    assert files(out) == {"t-000000.12.log": b"first\n", "t-000001.12.log": b"second\nsecond again\n"}
    assert files(work) == {}


def test_two_without_a_work_directory_append_to_one_file(archive: Make, out: Path) -> None:
    first, second = archive(), archive()
    for made, line in ((first, b"a"), (second, b"b"), (first, b"c")):
        made.write([line], NOON)
    first.close()
    second.close()
    assert files(out) == {"t.12.log": b"a\nb\nc\n"}


# ---- failures


def test_a_file_that_cannot_be_written_is_named(archive: Make, out: Path) -> None:
    out.mkdir()
    (out / "t.12.log").symlink_to("/dev/full")
    with pytest.raises(DiskError, match=r"write .*/out/t\.12\.log: no space left on device"):
        archive().write([b"a"], NOON)


def test_a_directory_that_cannot_be_made_is_named(archive: Make, out: Path) -> None:
    out.write_bytes(b"")
    with pytest.raises(DiskError, match=r"create directory .*/out/d: not a directory"):
        archive("d/t.log").write([b"a"], NOON)


def test_a_write_that_takes_only_a_part_is_continued_or_fails(archive: Make, out: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(DiskError, match=r"write .*: file too large"):
            archive().write([b"0123", b"4567", b"89"], NOON)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(out) == {"t.12.log": b"0123\n4567\n"}


@pytest.mark.parametrize("finish", [Archive.sync, Archive.close])
def test_lines_of_a_file_that_was_deleted_before_its_sync_are_written_again(
    archive: Make, out: Path, finish: Callable[[Archive], None]
) -> None:
    made = archive()
    made.write([b"a"], NOON)
    made.sync()
    made.write([b"b"], NOON)
    made.write([b"c"], NOON)
    (out / "t.12.log").unlink()
    finish(made)
    assert made.durable
    assert files(out) == {"t.12.log": b"b\nc\n"}


def test_a_file_that_was_deleted_from_the_work_directory_is_written_again_and_moved(
    archive: Make, out: Path, work: Path
) -> None:
    made = archive(work_dir=str(work), **gzipped())
    made.write([b"a"], NOON)
    shutil.rmtree(work)
    made.close()
    assert files(out) == {"t-000001.12.log.gz": b"a\n"}
    made.write([b"b"], NOON)
    made.sync()
    shutil.rmtree(work)
    made.close()
    assert files(out) == {"t-000001.12.log.gz": b"a\n"}  # what was synced and deleted stays so


def test_a_file_that_was_renamed_is_continued(archive: Make, out: Path) -> None:
    made = archive()
    made.write([b"a"], NOON)
    (out / "t.12.log").rename(out / "renamed")
    made.write([b"b"], NOON)
    made.sync()
    assert files(out) == {"renamed": b"a\nb\n"}
