"""What the archive has of a topic: a small file beside the segments for each piece of the log that is there.

    00000000000000451200.archived           what was archived of the positions from 451200 on
    00000000000000451200.t000003.archived   the same, of a segment of term 3
    00000000000000000000.expired            what was archived there is to be deleted, and no part of the log

Such a file is written when the archive holds the piece for sure, and the segment is deleted after that. So a
start knows what the archive has without asking it. The file is one line of JSON with a CRC of its own. It is
renamed when the piece is no part of the log any more, and deleted when the archive has let go of the piece.
"""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nsquark import kernel
from nsquark.errors import UnknownVersion

from .file_names import parse_stem, with_term

if TYPE_CHECKING:
    from .segment import Segment

SUFFIX = ".archived"
EXPIRED = ".expired"
TEMPORARY = ".archived.tmp"
VERSION = 1
MOST_MARKS = 32
_LARGEST = 64 << 10  # bytes of such a file
_MOST = 1 << 63
_PARTS = 4  # of a key: node, topic, epoch, segment


class Archived(NamedTuple):
    """A run of whole batches that the archive holds as one object.

    It is the bytes [start, stop) of a segment's file, and has the positions [base, end).
    """

    key: str  # of the object, relative to the archive
    file: str  # the name of the segment's file
    base: int
    end: int
    start: int
    stop: int
    crc: int  # CRC-32 of the object
    time: int  # of the first message, ns since the epoch
    modified: float  # when the segment was written last
    marks: tuple[tuple[int, int], ...]  # (position, offset in the file) of some batches, the first among them

    @property
    def size(self) -> int:
        """The bytes of the object."""
        return self.stop - self.start


class Store(Protocol):
    """Gives segments back that are only in the archive."""

    def path_of(self, archived: Archived) -> Path:
        """Where the bytes lie while they are fetched, at the offsets that they had in the segment."""

    def fetch(self, segment: Segment) -> None:
        """Have the file at that path, whole and checked. For a thread. Raises ArchiveAway."""

    def forget(self, archived: Archived) -> None:
        """Delete the file at that path: it is not wanted, or does not read as it was written."""


class Expired:
    """A piece that is no part of the log any more, and that the archive may still have."""

    __slots__ = ("archived", "confirmed", "path")

    def __init__(self, archived: Archived, path: Path) -> None:
        self.archived = archived
        self.path = path  # of the file that says so
        self.confirmed: bool | None = None  # whether that file stays after any crash; None: not asked yet


def archived_name(base: int, term: int, suffix: str = SUFFIX) -> str:
    return with_term(f"{base:020d}", term) + suffix


def record_name(archived: Archived, suffix: str = SUFFIX) -> str:
    """The name of the file that tells of this piece."""
    parsed = _parse_file(archived.file)
    return archived_name(archived.base, 0 if parsed is None else parsed[1], suffix)


def pack_archived(archived: Archived) -> bytes:
    told = {"version": VERSION, **archived._asdict()}
    return (json.dumps({**told, "check": _check(told)}) + "\n").encode()


def parse_archived(path: str, data: bytes) -> Archived:
    """Raises UnknownVersion, and ValueError for what is no such file."""
    told = json.loads(data)
    if type(told) is not dict:
        raise ValueError("it is no object")
    version, check = told.pop("version", None), told.pop("check", None)
    if type(version) is int and version > VERSION:
        raise UnknownVersion(path, f"has version {version}, not {VERSION}")
    if version != VERSION or check != _check({"version": version, **told}):
        raise ValueError("its CRC is wrong")
    try:
        marks = tuple((position, offset) for position, offset in told.pop("marks"))
        found = Archived(**told, marks=marks)
    except (TypeError, ValueError):
        raise ValueError("a part of it is missing") from None
    numbers = (
        found.base,
        found.end,
        found.start,
        found.stop,
        found.crc,
        *(at for mark in marks for at in mark),
    )
    if not all(type(each) is int and 0 <= each < _MOST for each in numbers):
        raise ValueError("a number is none")
    if type(found.time) is not int or type(found.modified) not in (int, float):
        raise ValueError("a time is none")
    if not is_key(found.key) or type(found.file) is not str or _parse_file(found.file) is None:
        raise ValueError("it names no object, or no segment")
    if not _is_consistent(found):
        raise ValueError("it contradicts itself")
    return found


def _is_consistent(found: Archived) -> bool:
    """Whether its batches, of which the marks tell, follow each other within it."""
    bounds = [(found.base, found.start), *found.marks[1:], (found.end, found.stop)]
    if found.marks[:1] != ((found.base, found.start),):
        return False
    return all(one[0] < other[0] and one[1] < other[1] for one, other in pairwise(bounds))


def is_key(key: object) -> bool:
    """Whether this names an object of a topic below the archive, and nothing outside of it."""
    if type(key) is not str or not (key.isascii() and key.isprintable()):
        return False
    parts = key.split("/")
    return len(parts) >= _PARTS and all(part not in ("", ".", "..") for part in parts)


def _parse_file(name: str) -> tuple[int, int] | None:
    """(first position, term) of the file of a segment; None if this is no name of one."""
    stem, dot, suffix = name.rpartition(".")
    return parse_stem(stem) if (dot, suffix) == (".", "log") else None


def _check(told: dict[str, object]) -> str:
    text = json.dumps(told, sort_keys=True).encode()
    return f"{kernel.crc32c(text, 0, len(text)):08x}"


def read_archived(directory: Path, suffix: str = SUFFIX) -> tuple[list[Archived], list[tuple[Path, str]]]:
    """What was archived of a topic, in the order of the log; and the files that do not read, each with why.

    With the suffix EXPIRED, what of it is to be deleted. A file that tells of another topic counts as one
    that does not read: what it names is not this topic's to read, or to delete. Raises UnknownVersion and
    OSError.
    """
    found: list[Archived] = []
    unread: list[tuple[Path, str]] = []
    for name in sorted(os.listdir(directory)):
        if not name.endswith(suffix) or parse_stem(name.removesuffix(suffix)) is None:
            continue
        path = directory / name
        with open(path, "rb") as file:
            data = file.read(_LARGEST)
        try:
            archived = parse_archived(str(path), data)
            if (
                record_name(archived, suffix) != name
                or archived.key.split("/")[-_PARTS + 1] != directory.name
            ):
                raise ValueError("it is of another segment or topic")
            found.append(archived)
        except (ValueError, KeyError, RecursionError) as error:
            unread.append((path, str(error)))
    return sorted(found, key=lambda each: each.base), unread


def few_marks(marks: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """At most `MOST_MARKS` of these, evenly, the first among them."""
    step = -(-len(marks) // MOST_MARKS)
    return tuple(marks[::step])
