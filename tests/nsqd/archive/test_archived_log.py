"""A log and its archive, without a broker: whatever goes in whatever order, nothing is lost."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark.errors import ArchiveAway, LogCorrupt
from nsquark.log import (
    Cursor,
    Limits,
    LogReader,
    NotIndexed,
    Segment,
    TimeSearch,
    TopicLog,
    archived_name,
    files,
    pack_archived,
)
from nsquark.nsqd.archive.archive import copy_segment
from nsquark.nsqd.archive.fetched_segments import KEPT, FetchedSegments
from nsquark.nsqd.archive.object_store import ObjectStore
from tests.log.contents import EVERYTHING, Draw, Ids, Model, directory, small_reads, split_frames


class Place:
    """The folders of a log and of its archive."""

    def __init__(self, path: Path, limit: int = 1) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.objects = ObjectStore(f"file://{path}/store")
        self.fetched = FetchedSegments(path, limit, self.objects.get)

    def opened(self, ids: Ids, limits: Limits, archived: bool = True) -> TopicLog:
        return TopicLog(self.path / "t", limits, ids, store=self.fetched if archived else None)

    def archive(self, log: TopicLog, segment: Segment) -> None:
        """As nsqd does it."""
        fd = os.open(segment.path, os.O_RDONLY)
        archived = copy_segment(self.objects, segment, fd, "node/t/epoch")
        record = self.path / "t" / archived_name(segment.base, segment.term)
        record.write_bytes(pack_archived(archived))
        segment.archived = archived


def read_fetching(log: TopicLog, start: int) -> dict[int, bytes]:
    """Every frame from a position on, by its position."""
    cursor = Cursor(log, start, whatever_due=True)
    found: dict[int, bytes] = {}
    while True:
        try:
            run = cursor.read(EVERYTHING, EVERYTHING)
        except NotIndexed as error:
            error.segment.verify()
            continue
        if run is None:
            return found
        found |= dict(enumerate(split_frames(run.frames), run.position))


def reader_of(log: TopicLog, start: int, end: int) -> LogReader:
    while True:
        try:
            return LogReader(log, start, end, EVERYTHING)
        except NotIndexed as error:
            error.segment.verify()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**64).map(Draw))
def test_whatever_goes_and_whenever_the_log_ends_nothing_is_lost(draw: Draw) -> None:
    with directory() as path, small_reads(draw.choice([1, 100, 5000]), draw.choice([1, 100])):
        place, ids, model = Place(path), draw.ids(), Model()
        limits = Limits(draw.choice([1, 300, 1000]), draw.choice([0, 5]))
        log = place.opened(ids, limits)
        for _ in range(draw.randint(1, 25)):
            match draw.randrange(6):
                case 0 if (segment := log.files.next_to_archive(log.end)) is not None:  # type: ignore[union-attr]
                    place.archive(log, segment)
                case 1:
                    gone = log.trim(draw.randint(log.first, log.end), 0.0)
                    for each in gone:  # a power cut may undo any of the deletions
                        if draw.random() < 0.7:
                            each.delete()
                        else:
                            each.close()
                case 2:
                    if draw.random() < 0.5:
                        log.close()
                    else:
                        log.close(sync=False)
                    log = place.opened(ids, limits)
                case _:
                    model.publish(log, draw.commit(), timestamp=model.end + 1)
            assert (log.first, log.end, bool(log.lost)) == (0, model.end, False)
        assert [*read_fetching(log, 0).values()] == model.frames
        start = draw.randint(0, log.end)
        assert [*read_fetching(log, start)] == list(range(start, log.end))
        if start < log.end:
            reader = reader_of(log, start, log.end)
            reader.locate()
            data = b"".join(iter(reader.read, b""))
            assert reader.count >= 1
            assert model.frame(start) in data
            reader.close()
            time = int.from_bytes(model.frame(start)[8:16], "big")
            while True:
                try:
                    assert TimeSearch(log).position_at(time) == time - 1
                    break
                except NotIndexed as error:
                    error.segment.verify()
        log.close()


def archived_log(path: Path, ids: Ids) -> tuple[Place, TopicLog, Model]:
    """Twelve messages in a file each; the first eight only in the archive."""
    place, model = Place(path), Model()
    log = place.opened(ids, Limits(1, 0))
    for number in range(12):
        model.publish(log, [(0, [b"%010d" % number])])
    while (segment := log.files.next_to_archive(9)) is not None:  # type: ignore[union-attr]
        place.archive(log, segment)
    for each in log.trim(8, 0.0):
        each.delete()
    assert (log.first, log.local_first) == (0, 8)
    return place, log, model


def test_only_what_is_archived_is_trimmed(tmp_path: Path) -> None:
    _, log, _ = archived_log(tmp_path, Ids())
    assert [each.base for each in log.trim(12, 0.0)] == [8]
    log.close()


@pytest.mark.parametrize("cut", [0, 10, -2])
def test_a_record_that_does_not_read_costs_its_segment_alone(tmp_path: Path, cut: int) -> None:
    ids = Ids()
    place, log, model = archived_log(tmp_path, ids)
    log.close()
    record = tmp_path / "t" / archived_name(3, 0)
    record.write_bytes(record.read_bytes()[:cut])
    log = place.opened(ids, Limits(1, 0))
    assert [*log.lost] == [(3, 4)]
    assert log.files is not None
    assert [path for path, _ in log.files.unread] == [record]
    assert read_fetching(log, 0) == {at: model.frame(at) for at in range(12) if at != 3}
    log.close()


def test_a_flipped_bit_of_a_record_is_noticed(tmp_path: Path) -> None:
    ids = Ids()
    place, log, _ = archived_log(tmp_path, ids)
    log.close()
    record = tmp_path / "t" / archived_name(3, 0)
    data = record.read_bytes()
    for at in range(0, len(data) - 1, 7):
        flipped = bytearray(data)
        flipped[at] ^= 4
        record.write_bytes(flipped)
        log = place.opened(ids, Limits(1, 0))
        assert [*log.lost] == [(3, 4)]
        log.close()


def test_no_message_comes_to_a_file_that_is_archived(tmp_path: Path) -> None:
    """A power cut may take the file that was begun behind it."""
    ids = Ids()
    place, log, model = archived_log(tmp_path, ids)
    log.close()
    for base in (9, 10, 11):
        (tmp_path / "t" / f"{base:020d}.log").unlink()
    log = place.opened(ids, Limits(1 << 20, 0))
    del model.frames[9:]
    assert log.end == 9
    model.publish(log, [(0, [b"new"])])
    for each in log.trim(10, 0.0):
        each.delete()
    assert [*read_fetching(log, 0).values()] == model.frames
    log.close()
    log = place.opened(ids, Limits(1 << 20, 0))
    assert [*read_fetching(log, 0).values()] == model.frames
    log.close()


def test_a_log_whose_files_are_all_gone_goes_on_behind_the_archive(tmp_path: Path) -> None:
    ids = Ids()
    place, log, model = archived_log(tmp_path, ids)
    log.close()
    for path in (tmp_path / "t").glob("*.log"):
        path.unlink()
    log = place.opened(ids, Limits(1, 0))
    assert (log.first, log.end) == (0, 9)
    assert [*read_fetching(log, 0).values()] == model.frames[:9]
    log.close()


def test_a_file_that_has_grown_since_is_archived_again(tmp_path: Path) -> None:
    """As after a time without an archive, in which the file was the newest once more."""
    ids = Ids()
    place, log, model = archived_log(tmp_path, ids)
    log.close()
    for base in (9, 10, 11):
        (tmp_path / "t" / f"{base:020d}.log").unlink()
    del model.frames[9:]
    log = place.opened(ids, Limits(1 << 20, 0), archived=False)
    model.first, frames = 8, model.frames
    model.frames = frames[8:]
    model.publish(log, [(0, [b"late"])])
    log.close()
    model.first, model.frames = 0, frames[:8] + model.frames
    log = place.opened(ids, Limits(1, 0))
    model.publish(log, [(0, [b"later"])])
    segment = log.files.next_to_archive(log.end)  # type: ignore[union-attr]
    assert segment is not None
    assert (segment.base, segment.end) == (8, 10)
    place.archive(log, segment)
    for each in log.trim(10, 0.0):
        each.delete()
    assert [*read_fetching(log, 0).values()] == model.frames
    log.close()


def test_what_was_fetched_is_bounded_and_comes_again(tmp_path: Path) -> None:
    _, log, model = archived_log(tmp_path, Ids())
    for _ in range(3):
        assert [*read_fetching(log, 0).values()] == model.frames
        assert len(list((tmp_path / "archive.fetched").iterdir())) == KEPT
    log.close()


def test_a_fetched_file_that_reads_otherwise_is_fetched_once_more_each_time(tmp_path: Path) -> None:
    _, log, model = archived_log(tmp_path, Ids())
    first = log.archived_segments[0]
    for _ in range(3):
        first.verify()
        first.path.write_bytes(b"\0" * first.size)
        with pytest.raises(LogCorrupt) as found:
            Cursor(log, 0).read(1, EVERYTHING)
        assert log.suspect(found.value) is first
        assert not first.path.exists()
        assert [*read_fetching(log, 0).values()] == model.frames
    log.close()


def test_an_object_that_is_no_segment_is_away_and_its_messages_are_not_lost(tmp_path: Path) -> None:
    """As one that a hand has made, with a record that fits it."""
    ids = Ids()
    place, log, _ = archived_log(tmp_path, ids)
    archived = log.archived_segments[0].archived
    assert archived is not None
    log.close()
    wrong = b"\0" * archived.size
    (tmp_path / "store" / archived.key).write_bytes(wrong)
    record = tmp_path / "t" / archived_name(0, 0)
    record.write_bytes(pack_archived(archived._replace(crc=zlib.crc32(wrong))))
    log = place.opened(ids, Limits(1, 0))
    first = log.archived_segments[0]
    first.verify()
    with pytest.raises(LogCorrupt) as found:
        Cursor(log, 0).read(1, EVERYTHING)
    assert log.suspect(found.value) is first
    for _ in range(2):
        with pytest.raises(ArchiveAway, match=r"does not hold what 0{20}\.log held"):
            first.verify()
    log.close()


def test_many_segments_leave_the_log_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, log, _ = archived_log(tmp_path, Ids())
    monkeypatch.setattr(files, "MOST_EXPIRED", 3)
    log.limit(log.limits._replace(archive_bytes=1))
    assert [log.expire(7, 0.0) for _ in range(4)] == [3, 3, 1, 0]
    assert log.first == 7
    log.close()


def test_an_object_that_is_not_as_it_was_is_away(tmp_path: Path) -> None:
    _, log, _ = archived_log(tmp_path, Ids())
    first = min((tmp_path / "store").rglob("*.log"))
    data = first.read_bytes()
    for wrong in (data[:-1], data + b"x", b"\0" * len(data)):
        first.write_bytes(wrong)
        with pytest.raises(ArchiveAway, match=first.name):
            log.archived_segments[0].verify()
    first.unlink()
    with pytest.raises(ArchiveAway):
        log.archived_segments[0].verify()
    assert not list((tmp_path / "archive.fetched").iterdir())
    log.close()
