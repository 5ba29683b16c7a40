"""Opening a log of which the archive has a part: which segments are here, and which are only there.

The file of a segment counts where it has all that was archived of it. So a crash between a record of the
archive and the deletion of the segment leaves nothing to be done.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from pathlib import Path

from .archived import EXPIRED, TEMPORARY, Archived, Expired, Store, read_archived, record_name
from .ranges import Ranges
from .segment import Segment


@dataclass(slots=True)
class TakenUpArchive:
    here: list[Segment]  # in files, in order
    there: list[Segment] = field(default_factory=list)  # only in the archive, in order
    unread: list[tuple[Path, str]] = field(default_factory=list)  # records that do not read, each with why
    leftovers: list[Path] = field(default_factory=list)  # files that have less than the archive
    expired: list[Expired] = field(default_factory=list)  # the archive is to let go of these


def take_up_archive(directory: Path, here: list[Segment], store: Store, lost: Ranges) -> TakenUpArchive:
    """Compare the segments in files with what was archived; adds to `lost` what neither of them has.

    Raises UnknownVersion and OSError.
    """
    known, unread = read_archived(directory)
    expired, unread_too = read_archived(directory, EXPIRED)
    result = TakenUpArchive(here, unread=unread + unread_too, leftovers=list(directory.glob("*" + TEMPORARY)))
    result.expired = [Expired(each, directory / record_name(each, EXPIRED)) for each in expired]
    if not known:
        return result
    parts: dict[str, list[Segment]] = {}
    for segment in here:
        parts.setdefault(segment.path.name, []).append(segment)
    by_file: dict[str, list[Archived]] = {}
    for each in known:
        by_file.setdefault(each.file, []).append(each)
    there: list[Archived] = []
    for name, archived in by_file.items():
        file = parts.get(name, [])
        if not file or _has_less(file, archived):
            there += archived
            result.leftovers += [file[0].path] if file else []
            result.here = [each for each in result.here if each not in file]
        else:
            _match(file, archived)
    result.there = [Segment.of_archive(each, store) for each in sorted(there, key=lambda each: each.base)]
    _find_lost(result, lost)
    return result


def _has_less(file: list[Segment], archived: list[Archived]) -> bool:
    """Whether a file lacks bytes that were archived of it, and has none that came later."""
    stop = max(each.stop for each in archived)
    size = max(each.size for each in file)
    bytes_here = sum(each.size - each.start for each in file)
    return size <= stop and bytes_here < sum(each.size for each in archived)


def _match(file: list[Segment], archived: list[Archived]) -> None:
    """Have the segments of a file know what was archived of them."""
    for segment in file:
        for each in archived:
            if (each.base, each.start, each.stop) == (segment.base, segment.start, segment.size):
                segment.archived = each
                segment.end = each.end  # the file behind it may be gone, and what follows begins later


def _find_lost(found: TakenUpArchive, lost: Ranges) -> None:
    """Positions between the segments that none of them has. What lies within a file was found before."""
    end = -1
    for segment in heapq.merge(found.here, found.there, key=lambda each: each.base):
        if 0 <= end < segment.base:
            lost.add(end, segment.base)
        end = max(end, segment.end)
