"""The segments of one topic: every batch by its CRC, and positions that follow each other without a gap.

A whole file is walked once, a megabyte at a time, by the kernel. Only where that walk stops early does the
slower survey of the log's recovery look for what is whole behind the damage.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from nsquark import kernel
from nsquark.errors import UnknownVersion
from nsquark.log import Damage, Ranges, Record, keep, records
from nsquark.log.archived import read_archived
from nsquark.log.recovery import Survey, check_magic, survey
from nsquark.log.segment import INDEX_STRIDE, WINDOW, segment_name, segments_in
from nsquark.nsqd.storage.node import BLOCK_SHIFT, BLOCKS

from .findings import Aside, Level, Repair, Report, TopicSummary

MAGIC_LENGTH = 4


@dataclass(slots=True)
class Deferred:
    """The batches of a log that have a due time, in order."""

    positions: array[int] = field(default_factory=lambda: array("Q"))
    ends: array[int] = field(default_factory=lambda: array("Q"))
    dues: array[int] = field(default_factory=lambda: array("q"))

    def add(self, batch: kernel.Batch) -> None:
        self.positions.append(batch[3])
        self.ends.append(batch[3] + batch[2])
        self.dues.append(batch[6])

    def due_of(self, position: int) -> int:
        """When the message at this position is due; 0 if it was not deferred."""
        at = bisect_right(self.positions, position) - 1
        return self.dues[at] if at >= 0 and position < self.ends[at] else 0


@dataclass(slots=True)
class LogContents:
    """What the segments of a topic hold."""

    first: int = 0  # of the archive, if that has what came before
    local_first: int = 0
    end: int = 0
    lost: Ranges = field(default_factory=Ranges)
    deferred: Deferred = field(default_factory=Deferred)
    blocks: int = 0  # behind the last block of ids that a message has its id from


@dataclass(slots=True)
class _Walk:
    """How far a file is whole."""

    stop: int = 0
    end: int = 0
    oldest_ns: int | None = None
    newest_ns: int | None = None
    blocks: int = 0


def check_segments(report: Report, summary: TopicSummary) -> LogContents:
    """Check all segments of a topic, and add what is found to the report. Raises OSError."""
    directory = summary.directory
    contents = LogContents()
    found = segments_in(os.listdir(directory))
    bases = [base for base, _ in found]
    known = {(each.file, each.damage): each for each in records(directory)}
    _note_leftovers(report, directory, known)
    summary.segments = len(bases)
    if bases:
        contents.first = contents.local_first = contents.end = bases[0]
    for (base, term), following in zip(found, [*bases[1:], None], strict=True):
        path = directory / segment_name(base, term)
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            summary.size += size
            report.bytes_read += size
            walk = _walk(file.fileno(), size, base, following, contents.deferred)
            if summary.oldest_ns is None:
                summary.oldest_ns = walk.oldest_ns
            contents.end = walk.end
            summary.newest_ns = walk.newest_ns or summary.newest_ns
            contents.blocks = max(contents.blocks, walk.blocks)
            if walk.stop == size and walk.end == (walk.end if following is None else following):
                continue
            try:
                _look_closer(report, contents, path, file.fileno(), size, base, following, known)
            except UnknownVersion as error:
                report.add(Level.ERROR, path, str(error))
                contents.end = walk.end if following is None else following
    _check_archived(report, directory, contents)
    summary.first, summary.end, summary.lost = contents.first, contents.end, contents.lost.count
    return contents


def _check_archived(report: Report, directory: Path, contents: LogContents) -> None:
    """Take what the archive has for a part of the log. The archive itself is not asked. Raises OSError."""
    try:
        archived, unread = read_archived(directory)
    except UnknownVersion as error:
        report.add(Level.ERROR, directory, str(error))
        return
    for path, why in unread:
        report.add(Level.ERROR, path, f"does not say what the archive has: {why}")
    end = contents.local_first
    for each in reversed([each for each in archived if each.base < contents.local_first]):
        contents.lost.add(min(each.end, end), end)
        contents.first = end = each.base


def _walk(fd: int, size: int, base: int, bound: int | None, deferred: Deferred) -> _Walk:
    """Walk whole batches whose positions follow each other from `base` on, each checked by its CRC."""
    walk = _Walk(end=base)
    buffer = bytearray(min(max(size, 1), WINDOW))
    while walk.stop < size:
        data = memoryview(buffer)
        got = os.preadv(fd, [data[: size - walk.stop]], walk.stop)
        stop, needed, marks, last = kernel.scan_batches(data, 0, got, True, INDEX_STRIDE)
        if last is not None:
            end = last[3] + last[2]
            if marks[0][3] != walk.end or (bound is not None and end > bound):
                return walk
            _note(walk, marks, last, deferred)
        walk.stop += stop
        if not needed or walk.stop + needed > size:
            return walk
        if needed > len(buffer):
            data.release()
            buffer = bytearray(needed)
    return walk


def _note(walk: _Walk, marks: list[kernel.Batch], last: kernel.Batch, deferred: Deferred) -> None:
    for batch in marks:
        if batch[6]:
            deferred.add(batch)
    if walk.oldest_ns is None:
        walk.oldest_ns = marks[0][5]
    walk.newest_ns = last[5]
    walk.end = last[3] + last[2]
    # A batch never crosses the border of a block.
    walk.blocks = max(walk.blocks, *((batch[4] >> BLOCK_SHIFT) % BLOCKS + 1 for batch in (*marks, last)))


def _look_closer(
    report: Report,
    contents: LogContents,
    path: Path,
    fd: int,
    size: int,
    base: int,
    following: int | None,
    known: dict[tuple[str, Damage], Record],
) -> None:
    """Tell what is wrong with a file that is not whole. Raises UnknownVersion and OSError."""
    check_magic(str(path), 0, os.pread(fd, MAGIC_LENGTH, 0))
    damages = [damage for name, damage in known if name == path.name]
    found = survey(fd, str(path), 0, size, base, following, WINDOW, INDEX_STRIDE, damages)
    for damage in _damages(found, size, following):
        contents.lost.add(damage.first or 0, damage.end or 0)
        if (path.name, damage) in known:
            _add_damage(report, path, damage, Level.WARNING, "is kept aside already")
        else:
            _add_damage(report, path, damage, Level.ERROR, "", partial(_keep, path, damage))
    contents.end = found.end if following is None else following
    if following is None and found.whole < size and not found.exhausted:
        cut = Damage(found.whole, size - found.whole)
        text = f"a torn write: a start would cut off {cut.length} bytes at offset {cut.offset}"
        report.add(Level.WARNING, path, text, partial(_cut, path, cut))


def _damages(found: Survey, size: int, following: int | None) -> Iterator[Damage]:
    yield from found.damages
    if following is None:
        if found.exhausted:
            yield Damage(found.whole, size - found.whole, found.end, found.end)
    elif found.whole < size or found.end < following:
        yield Damage(found.whole, size - found.whole, found.end, following)


def _add_damage(
    report: Report, path: Path, damage: Damage, level: Level, more: str, repair: Repair | None = None
) -> None:
    offset, length, first, end = damage
    where = f"{length} bytes at offset {offset} are damaged" if length else f"nothing follows offset {offset}"
    lost = "no position is lost"
    if first is not None and end is not None and end > first:
        lost = f"{end - first} messages are lost, positions {first} to {end - 1}"
    if not length:
        lost += ": the file was cut, or the segment behind it is missing"
    report.add(level, path, f"{where}; {lost}" + (f"; the damage {more}" if more else ""), repair)


def _keep(path: Path, damage: Damage, aside: Aside) -> str:
    record, _ = keep(path, damage)
    return f"the log goes on behind it; its bytes are in {record.path.name}"


def _cut(path: Path, damage: Damage, aside: Aside) -> str:
    record, _ = keep(path, damage)
    moved = aside.move(record.path)
    os.truncate(path, damage.offset)
    return f"cut off; its bytes were {moved}"


def _note_leftovers(report: Report, directory: Path, known: dict[tuple[str, Damage], Record]) -> None:
    """Tell of files that a start deletes or takes up, and of records whose file is gone."""
    names = set(os.listdir(directory))
    for name in sorted(names):
        if name.endswith(".doubt"):
            text = "an fsync of its segment has failed: a start writes the segment again"
            report.add(Level.WARNING, directory / name, text)
        elif name.endswith((".new", ".tmp")):
            report.add(Level.NOTE, directory / name, "was not finished: a start deletes it")
    for (file, _), _record in known.items():
        if file not in names:
            report.add(Level.NOTE, directory / file, "is gone; a record of damage to it is still there")
