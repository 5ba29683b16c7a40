"""A folder of messages that were consumed: numbered, on disk before they are finished, the same ever after.

A file is what came from one nsqd of one topic at a time. It is named by the number of its first message, and
appears whole: written beside, synced, renamed.

    JSON: topic, nsqd, count | newline | a batch, as logs have it: the position is the number of the first
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.types import StructType

from nsquark import kernel

from ..errors import BadAnswer, ChannelInUse, DataLost
from ..source.decode import Decoder

_NAME = re.compile(r"(\d{20})-(\d+)\.messages")
_HEADER = struct.Struct(">4sIIIQQqq")
_FRAME = struct.Struct(">IIqH16s")
# What is acknowledged stays for a while: for a redelivery to be known, and a checkpoint to be restored.
KEEP = 600.0


class Delivered(Protocol):
    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


class Chunk(NamedTuple):
    first: int
    end: int
    path: Path


def chunks(folder: Path) -> list[Chunk]:
    found = []
    for path in folder.iterdir():
        if name := _NAME.fullmatch(path.name):
            found.append(Chunk(int(name[1]), int(name[1]) + int(name[2]), path))
    return sorted(found)


class Staging:
    """The folder as its one writer has it."""

    def __init__(self, folder: Path) -> None:
        """Raises ChannelInUse if another query has it, OSError if it cannot be used."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ChannelInUse(f"option 'stagingDirectory': {folder} is in use by another query") from None
        for leftover in folder.glob("*.tmp"):
            leftover.unlink()
        self._chunks = chunks(folder)
        self.acknowledged = self._read_acknowledged()
        self.end = self._chunks[-1].end if self._chunks else self.acknowledged
        self._known: set[tuple[str, bytes]] | None = None
        self._changing = threading.Lock()  # one consumer a topic adds, and Spark acknowledges

    def close(self) -> None:
        os.close(self._lock)

    def _read_acknowledged(self) -> int:
        try:
            return int((self.folder / "acknowledged").read_text())
        except FileNotFoundError:
            return self._chunks[0].first if self._chunks else 0

    def add(self, topic: str, nsqd: str, messages: Sequence[Delivered]) -> None:
        """Return when they are on disk. Those that are there already are left out. Raises OSError."""
        with self._changing:
            self._add(topic, nsqd, messages)

    def _add(self, topic: str, nsqd: str, messages: Sequence[Delivered]) -> None:
        fresh = [each for each in messages if not self._is_known(nsqd, each)]
        if not fresh:
            return
        head = json.dumps({"topic": topic, "nsqd": nsqd, "count": len(fresh)}).encode()
        path = self.folder / f"{self.end:020d}-{len(fresh)}.messages"
        self._write(path, b"".join([head, b"\n", _batch(self.end, fresh)]))
        self._chunks.append(Chunk(self.end, self.end + len(fresh), path))
        self.end += len(fresh)
        if self._known is not None:
            self._known.update((nsqd, each.id) for each in fresh)

    def _is_known(self, nsqd: str, message: Delivered) -> bool:
        """Whether a message that comes again was stored, and its FIN lost."""
        if message.attempts < 2:
            return False
        if self._known is None:
            self._known = set()
            for chunk in self._chunks:
                _, where, batch = read_chunk(chunk.path)
                count = chunk.end - chunk.first
                ids = kernel.decode_batches(batch, chunk.first, count, False, False, True)[3]
                self._known.update((where, ids[at : at + 16]) for at in range(0, len(ids), 16))
        return (nsqd, message.id) in self._known

    def acknowledge(self, position: int) -> None:
        """Everything before it is done with. Raises OSError."""
        with self._changing:
            if position > self.acknowledged:
                self._acknowledge(position)

    def _acknowledge(self, position: int) -> None:
        self._write(self.folder / "acknowledged", b"%d" % position)
        self.acknowledged = position
        before = time.time() - KEEP
        # the last one stays: it says where to go on
        while len(self._chunks) > 1 and self._chunks[0].end <= position:
            if self._chunks[0].path.stat().st_mtime > before:
                break
            self._chunks.pop(0).path.unlink()
            self._known = None

    def _write(self, path: Path, data: bytes) -> None:
        beside = path.with_suffix(".tmp")
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.rename(path)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _batch(position: int, messages: Sequence[Delivered]) -> bytes:
    frames = b"".join(
        _FRAME.pack(30 + len(each.body), 2, each.timestamp_ns, each.attempts, each.id) + each.body
        for each in messages
    )
    time_ns = messages[0].timestamp_ns
    header = _HEADER.pack(b"NQB1", 0, _HEADER.size + len(frames), len(messages), position, 0, time_ns, 0)
    batch = bytearray(header + frames)
    struct.pack_into(">I", batch, 4, kernel.crc32c(batch, 8, len(batch)))
    return bytes(batch)


def read_chunk(path: Path) -> tuple[str, str, memoryview]:
    """(topic, nsqd, batch). Raises BadAnswer, OSError."""
    data = path.read_bytes()
    head, newline, _ = data.partition(b"\n")
    try:
        told = json.loads(head)
        return told["topic"], told["nsqd"], memoryview(data)[len(head) + len(newline) :]
    except (ValueError, KeyError, TypeError):
        raise BadAnswer(f"option 'stagingDirectory': {path} is not what was written there") from None


def read_rows(paths: Iterable[Path], start: int, end: int, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The messages with these numbers. Raises DataLost if some are gone."""
    for path in paths:
        name = _NAME.fullmatch(path.name)
        assert name is not None
        first = int(name[1])
        try:
            topic, nsqd, batch = read_chunk(path)
        except FileNotFoundError:
            raise DataLost(
                f"option 'stagingDirectory': offsets [{start}, {end}) are to be read, but {path} is gone"
            ) from None
        low, high = max(start, first), min(end, first + int(name[2]))
        yield Decoder(schema, topic, nsqd).decode(batch, low, high - low)
