"""Opening a log: which segments its directory holds after a crash or damage.

`inspect` only looks. `take_up` makes the log usable: it puts damaged bytes aside, cuts off a torn tail, and
says which positions are lost.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nsquark.kernel.pure import MAGIC

from .archived import EXPIRED
from .archived import SUFFIX as ARCHIVED
from .damage import ACKNOWLEDGED, BAD, Damage, Record, keep, records, tidy
from .deferred import Deferred
from .file_names import names_in
from .ranges import Ranges
from .recovery import Survey, check_magic
from .segment import Segment, segments_in
from .syncing import DOUBT

WITH_THE_SEGMENTS = (BAD, ACKNOWLEDGED, DOUBT, ARCHIVED, EXPIRED)  # ends of names; a copy needs them, too


class Inspected(NamedTuple):
    """What is in a log's directory."""

    files: list[tuple[int, int, float, int]]  # of each: first position, size, time of the last write, term
    newest: Survey | None
    records: list[Record]
    archived: bool  # whether the archive has a part of the log
    names: Sequence[str]  # of all files


def inspect(directory: Path, names: Sequence[str] | None = None) -> Inspected:
    """Look at a log without changing anything: all of its newest file, the beginnings of the others.

    `names` are those of all files, if they are known. Raises UnknownVersion and OSError.
    """
    if names is None:
        names = names_in(directory)
    found = segments_in(names)
    files: list[tuple[int, int, float, int]] = []
    newest: Survey | None = None
    known = records(directory, names)
    for base, term in found:
        segment = Segment(directory, base, term=term)
        stat = os.stat(segment.path)
        files.append((base, stat.st_size, stat.st_mtime, term))
        segment.size = stat.st_size
        if (base, term) == found[-1]:
            newest = segment.inspect([each.damage for each in known if each.file == segment.path.name])
        else:
            with open(segment.path, "rb", buffering=0) as file:
                check_magic(str(segment.path), 0, file.read(len(MAGIC)))
    return Inspected(files, newest, known, any(name.endswith(ARCHIVED) for name in names), names)


@dataclass(slots=True)
class TakenUp:
    """What a directory holds, ready to be read and appended to."""

    segments: list[Segment] = field(default_factory=list)  # none in a directory without files
    deferred: list[Deferred] = field(default_factory=list)  # the deferred batches of the newest file
    lost: Ranges = field(default_factory=Ranges)  # positions whose messages were damaged
    records: list[Record] = field(default_factory=list)  # of damage, those that no operator has acknowledged
    found: list[Record] = field(default_factory=list)  # of those, the ones that were written just now
    cut: tuple[Path, int] | None = None  # the file whose torn tail was cut off, and how many bytes that were


def take_up(directory: Path, inspected: Inspected) -> TakenUp:
    """Put damage aside, cut off a torn tail, and return what is left.

    Raises OSError. Nothing is cut off or left out before it is kept aside.
    """
    files, newest, known = inspected.files, inspected.newest, inspected.records
    tidy(directory, inspected.names)
    result = TakenUp()
    result.records = [each for each in known if not each.acknowledged and each.damage.first is not None]
    for (base, size, modified, term), following in zip(files, [*files[1:], None], strict=False):
        segment = Segment(directory, base, term=term)
        segment.size, segment.modified = size, modified
        if following is None:
            assert newest is not None
            result.segments += _take_up_newest(segment, newest, result)
        else:
            segment.end, segment.verified = following[0], False
            damages = [each.damage for each in known if each.file == segment.path.name]
            result.segments += _leave_out(segment, damages, result.lost)
    return result


def _take_up_newest(segment: Segment, found: Survey, result: TakenUp) -> list[Segment]:
    """What is whole of the newest file, once damage in it is kept aside and a torn tail is cut off."""
    damages = found.damages
    if found.exhausted:
        damages = [*damages, Damage(found.whole, segment.size - found.whole, found.end, found.end)]
    for damage in damages:
        record, new = keep(segment.path, damage)
        if not record.acknowledged and record.path not in [each.path for each in result.records]:
            result.records.append(record)
        if new:
            result.found.append(record)
    if found.whole < segment.size:
        os.truncate(segment.path, found.whole)
        result.cut = segment.path, segment.size - found.whole
    for batch in found.deferred:
        result.deferred.append(Deferred(batch[3], batch[2], batch[6]))
    for damage in damages:
        result.lost.add(damage.first or 0, damage.end or 0)
    if found.pieces:
        return [segment.piece(each) for each in found.pieces]
    return [Segment(segment.path.parent, segment.base, segment.path)]


def _leave_out(segment: Segment, damages: list[Damage], lost: Ranges) -> list[Segment]:
    """The parts of an old file that are not damaged, according to its records."""
    parts: list[Segment] = []
    start, base = 0, segment.base

    def add(stop: int, end: int) -> None:
        part = Segment(segment.path.parent, base, segment.path, start)
        part.size, part.end, part.modified, part.verified = stop, end, segment.modified, False
        if not part.empty or base < end:  # a part can have positions and yet no bytes: those are gone too
            parts.append(part)

    for offset, length, first, end in sorted(damages):
        if first is None or end is None or not base <= end <= segment.end or offset + length > segment.size:
            continue  # a record that does not fit this file
        if offset >= start and first >= base:
            add(offset, first)
        start, base = max(start, offset + length), max(base, end)
        lost.add(first, end)
    add(segment.size, segment.end)
    return parts or [segment.nothing_left()]
