"""Damaged bytes that were put aside, each in a file of its own. The name of that file says what they are.

    00000000000000000000.log.4711+512.10-15.bad   512 bytes from offset 4711 of that segment, which held the
                                                  positions from 10 up to (not including) 15
    journal.000007.120+33.bad                     33 bytes from offset 120 of that journal
    ….acknowledged                                the same, and an operator has seen it

Such a file is called a record. It is written and synced before anything else is done about the damage. No
record is ever overwritten or deleted here. The file that was damaged stays as it is: its records say which
parts of it to leave out.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nsquark import changes
from nsquark.durable import sync_path, write_all

from .file_names import names_in

BAD, ACKNOWLEDGED = ".bad", ".acknowledged"
_TEMPORARY = ".bad.tmp"
_PIECE = 1 << 20
_NAME = re.compile(
    r"(?P<file>.+)\.(?P<offset>\d+)\+(?P<length>\d+)(?:\.(?P<first>\d+)-(?P<end>\d+))?(?:\.n\d+)?"
    r"(?P<state>\.bad|\.acknowledged)"
)


class Damage(NamedTuple):
    """Bytes of a file that do not read as they were written. `first` and `end` are the positions lost.

    Bytes of a journal have no positions.
    """

    offset: int
    length: int
    first: int | None = None
    end: int | None = None


@dataclass(slots=True, frozen=True)
class Record:
    """A file that keeps damaged bytes."""

    path: Path
    file: str  # the name of the file that was damaged
    damage: Damage
    acknowledged: bool

    @property
    def lost(self) -> tuple[int, int]:
        """The positions that were lost, as a half-open range."""
        return self.damage.first or 0, self.damage.end or 0

    def __str__(self) -> str:
        _, length, first, end = self.damage
        at = f"{length} bytes at offset {self.damage.offset} of {self.path.with_name(self.file)} are damaged"
        if not length:
            at = f"bytes are missing at offset {self.damage.offset} of {self.path.with_name(self.file)}"
        if first is None or end is None:
            return f"{at}, kept in {self.path.name}"
        what = f"lost positions {first} to {end - 1}" if end > first else "no position is lost"
        return f"{what}: {at}, kept in {self.path.name}"


def records(directory: Path, names: Iterable[str] | None = None) -> list[Record]:
    """All records of a directory, by name. `names` are those of its files, if they are known."""
    found = []
    for name in sorted(names_in(directory) if names is None else names):
        match = _NAME.fullmatch(name) if name.endswith((BAD, ACKNOWLEDGED)) else None
        if match is not None:
            first, end = match["first"], match["end"]
            damage = Damage(
                int(match["offset"]),
                int(match["length"]),
                None if first is None else int(first),
                None if end is None else int(end),
            )
            found.append(Record(directory / name, match["file"], damage, match["state"] == ACKNOWLEDGED))
    return found


def keep(path: Path, damage: Damage, aside: Path | None = None) -> tuple[Record, bool]:
    """Put damaged bytes of a file aside, unless that was done before: (record, whether it is new).

    The disk holds the record when this returns. `aside`, if given, stands in for `path` in the record's
    directory and name. Raises OSError, and nothing has changed.
    """
    aside = path if aside is None else aside
    positions = "" if damage.first is None else f".{damage.first}-{damage.end}"
    stem = f"{aside.name}.{damage.offset}+{damage.length}{positions}"
    directory = aside.parent
    with open(path, "rb", buffering=0) as source:
        for number in range(1 << 16):
            name = stem if not number else f"{stem}.n{number}"
            for state in (BAD, ACKNOWLEDGED):
                known = directory / (name + state)
                if known.exists() and _same(source.fileno(), damage, known):
                    return Record(known, aside.name, damage, state == ACKNOWLEDGED), False
            if not any((directory / (name + state)).exists() for state in (BAD, ACKNOWLEDGED)):
                break
        kept = directory / (name + BAD)
        temporary = directory / f"{name}.{os.urandom(4).hex()}{_TEMPORARY}"
        try:
            with open(temporary, "xb", buffering=0) as target:
                os.fchmod(target.fileno(), 0o600)
                for piece in _pieces(source.fileno(), damage):
                    write_all(target.fileno(), piece)
                os.fsync(target.fileno())
            os.rename(temporary, kept)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    sync_path(directory)
    if changes.listeners:
        changes.tell_put(kept, kept.read_bytes())
    return Record(kept, aside.name, damage, False), True


def acknowledge(record: Record) -> Record:
    """Note on the disk that an operator has seen the record. Raises OSError."""
    if record.acknowledged:
        return record
    path = record.path.with_name(record.path.name[: -len(BAD)] + ACKNOWLEDGED)
    with contextlib.suppress(FileNotFoundError):  # an operator has removed it, and so has seen it
        os.rename(record.path, path)
        changes.tell_renamed(record.path, path)
        sync_path(path.parent)
    return Record(path, record.file, record.damage, True)


def tidy(directory: Path, names: Iterable[str]) -> None:
    """Delete records that a crash has left unfinished, of the files with these names. Raises OSError."""
    for name in names:
        if name.endswith(_TEMPORARY):
            (directory / name).unlink(missing_ok=True)


def _pieces(fd: int, damage: Damage) -> Iterator[bytes]:
    at, end = damage.offset, damage.offset + damage.length
    while at < end:
        piece = os.pread(fd, min(_PIECE, end - at), at)
        if not piece:
            return
        yield piece
        at += len(piece)


def _same(fd: int, damage: Damage, known: Path) -> bool:
    with open(known, "rb", buffering=0) as file:
        for piece in _pieces(fd, damage):
            if file.read(len(piece)) != piece:
                return False
        return not file.read(1)
