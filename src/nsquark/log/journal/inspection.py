"""Reading the files of a journal, without changing anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nsquark import kernel
from nsquark.errors import UnknownVersion
from nsquark.kernel.pure import BLOCK

from ..archived import SUFFIX as ARCHIVED
from ..damage import Damage
from ..file_names import names_in, parse_stem, with_term
from ..segment import SUFFIX as SEGMENT
from .records import MAGIC
from .state import JournalState

PREFIX = "journal."


@dataclass(slots=True)
class JournalFile:
    """A file of a journal, as it was read."""

    path: Path
    state: JournalState
    whole: bool  # whether its snapshot is: the first block, or all blocks up to where it is complete
    damages: list[Damage] = field(default_factory=list)
    torn: int = 0  # bytes at its end that are not a whole block
    size: int = 0


@dataclass(slots=True)
class InspectedJournal:
    """What is in a topic's directory of journals: the newest file that can be used, and what is damaged."""

    state: JournalState
    generations: list[int]
    readable: bool  # there is a file that can be used, or there is none, or nothing was ever written
    paths: list[Path]  # of the files of these generations
    files: list[JournalFile]  # the newer ones that cannot be used, and then the one that is used
    names: Sequence[str]  # of all files of the directory


def inspect_journal(directory: Path, names: Sequence[str] | None = None) -> InspectedJournal:
    """Read the journal without changing anything. Raises UnknownVersion and OSError.

    `names` are those of all files of the directory, if they are known.
    """
    if names is None:
        names = names_in(directory)
    parsed = [(parse_stem(name[len(PREFIX) :]), name) for name in names if name.startswith(PREFIX)]
    known = sorted((number, directory / name) for number, name in parsed if number is not None)
    generations, found = [number[0] for number, _ in known], [path for _, path in known]
    files: list[JournalFile] = []
    # The newest file whose snapshot is whole says everything. A file before it was kept until then.
    for path in reversed(found):
        files.append(_read_file(path))
        if files[-1].whole:
            return InspectedJournal(files[-1].state, generations, True, found, files, names)
    empty = not any(file.size for file in files) and not _has_messages(directory, names)
    return InspectedJournal(JournalState(), generations, not files or empty, found, files, names)


def _has_messages(directory: Path, names: Sequence[str]) -> bool:
    """Whether the log beside the journal has, or had, any.

    A topic's first journal is written before its first message. So an empty journal beside an empty log is
    that of a topic whose creation was killed between the creation of the file and the write.
    """
    logs = (name for name in names if name.endswith((SEGMENT, ARCHIVED)))
    return any(os.stat(directory / name).st_size for name in logs)


def file_name(generation: int, term: int = 0) -> str:
    return PREFIX + with_term(f"{generation:06d}", term)


def _read_file(path: Path) -> JournalFile:
    """Apply every whole block, also behind a damaged one: docs/log-format.md says why that is safe."""
    data = path.read_bytes()
    file = JournalFile(path, JournalState(), False, size=len(data))
    view = memoryview(data)
    at, incomplete = 0, False
    while at < len(data):
        end = _block_end(data, at)
        if end > at:
            try:
                unknown = file.state.apply(view[at + BLOCK.size : end])
            except ValueError as error:  # with a right checksum: it is no damage
                raise UnknownVersion(str(path), f"has a strange block at offset {at}, {error}") from None
            if unknown:
                raise UnknownVersion(str(path), f"has a record {unknown!r} in its block at offset {at}")
            file.whole = file.whole or at == 0
            at = end
            continue
        magic = data[at : at + len(MAGIC)]
        if magic[:3] == MAGIC[:3] and magic[3:].isdigit() and magic != MAGIC:
            raise UnknownVersion(str(path), f"has a block of format {magic.decode('ascii')} at offset {at}")
        following = _next_block(data, at)
        if following < 0:
            file.torn = len(data) - at
            break
        file.damages.append(Damage(at, following - at))
        incomplete = incomplete or file.state.in_snapshot
        at = following
    # A snapshot says first what a channel has passed, and only later what of that is not finished.
    file.whole = file.whole and not incomplete and not file.state.in_snapshot
    return file


def _block_end(data: bytes, at: int) -> int:
    """Where the block ends that begins at `at`; -1 if no whole block begins there."""
    if len(data) - at < BLOCK.size:
        return -1
    magic, crc, length = BLOCK.unpack_from(data, at)
    end: int = at + BLOCK.size + length
    if magic != MAGIC or end > len(data) or kernel.crc32c(data, at + 8, end) != crc:
        return -1
    return end


def _next_block(data: bytes, at: int) -> int:
    """Where the next whole block begins behind a damaged one; -1 if there is none.

    No record can be taken for a block: the only part of it that clients choose is the name of a channel.
    """
    while (at := data.find(MAGIC, at + 1)) >= 0:
        if _block_end(data, at) > at:
            return at
    return -1
