"""`nsquark dump`: the messages of a segment or of a whole topic, as they lie on the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nsquark import kernel
from nsquark.errors import LogCorrupt, NsquarkError
from nsquark.kernel.pure import FRAME, HEADER
from nsquark.log.file_names import parse_stem
from nsquark.log.segment import SUFFIX

_WINDOW = 1 << 20
_EVERY_BATCH = 0


class StoredMessage(NamedTuple):
    position: int
    id: str
    timestamp_ns: int
    due_ns: int  # 0: it was not deferred
    body: bytes


class NoSegment(NsquarkError):
    """What was named is neither a segment nor the directory of a topic."""


def messages(path: Path, start: int = 0) -> Iterator[StoredMessage]:
    """The messages of a segment, or of all segments of a topic's directory, from position `start` on.

    Raises NoSegment, OSError, and LogCorrupt at the first batch that is not whole.
    """
    paths = sorted(path.glob("*" + SUFFIX)) if path.is_dir() else [path]
    segments = [each for each in paths if each.suffix == SUFFIX and parse_stem(each.stem)]
    if not segments or not all(each.is_file() for each in segments):
        raise NoSegment(f"{path} is neither a segment (…{SUFFIX}) nor a topic's directory")
    for each, following in zip(segments, [*segments[1:], None], strict=True):
        next_base, _ = (None if following is None else parse_stem(following.stem)) or (start + 1, 0)
        if next_base > start:
            yield from _messages_of(each, start)


def _messages_of(path: Path, start: int) -> Iterator[StoredMessage]:
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        yield from messages_between(file.fileno(), str(path), 0, size, start)


def messages_between(fd: int, name: str, offset: int, stop: int, start: int) -> Iterator[StoredMessage]:
    """The messages from position `start` on of the batches at the offsets [offset, stop) of a segment.

    Raises OSError, and LogCorrupt at the first batch that is not whole.
    """
    window = _WINDOW
    while offset < stop:
        data = os.pread(fd, min(window, stop - offset), offset)
        end, needed, batches, _ = kernel.scan_batches(data, 0, len(data), True, _EVERY_BATCH)
        for batch in batches:
            if batch[3] + batch[2] > start:
                yield from _messages_in(data, batch, start)
        offset += end
        if offset < stop and (not needed or offset + needed > stop):
            raise LogCorrupt(name, offset, "a batch is damaged or torn")
        window = max(_WINDOW, needed)


def _messages_in(data: bytes, batch: kernel.Batch, start: int) -> Iterator[StoredMessage]:
    at, _, count, position, _, _, due = batch
    at += HEADER.size
    for number in range(position, position + count):
        length, _, timestamp, _, message_id = FRAME.unpack_from(data, at)
        if number >= start:
            body = data[at + FRAME.size : at + 4 + length]
            yield StoredMessage(number, message_id.decode("ascii"), timestamp, due, body)
        at += 4 + length
