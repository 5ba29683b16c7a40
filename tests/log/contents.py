"""What is in a log, told apart without the kernel; and random commits from a seed."""

from __future__ import annotations

import contextlib
import random
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from unittest import mock

from nsquark.errors import LogDamaged
from nsquark.kernel import pure
from nsquark.log import Cursor, Limits, Segment, TopicLog, cursor, segment, sources

HEADER = struct.Struct(">4sIIIQQqq")
EVERYTHING = 1 << 40


@dataclass
class Batch:
    """A whole batch, and the frames of its messages."""

    offset: int
    length: int
    position: int
    first_id: int
    timestamp: int
    due: int
    frames: list[bytes]


def split_frames(frames: bytes | bytearray | memoryview) -> list[bytes]:
    found, at = [], 0
    while at < len(frames):
        (size,) = struct.unpack_from(">I", frames, at)
        assert at + 4 + size <= len(frames)
        found.append(bytes(frames[at : at + 4 + size]))
        at += 4 + size
    return found


def split_batches(data: bytes) -> list[Batch]:
    """The batches of a file that has nothing but whole ones."""
    found: list[Batch] = []
    at = 0
    while at < len(data):
        magic, crc, length, count, position, first_id, timestamp, due = HEADER.unpack_from(data, at)
        assert magic == b"NQB1"
        assert crc == pure.crc32c(data, at + 8, at + length)
        frames = split_frames(data[at + HEADER.size : at + length])
        assert len(frames) == count
        assert [id_of(frame) for frame in frames] == list(range(first_id, first_id + count))
        found.append(Batch(at, length, position, first_id, timestamp, due, frames))
        at += length
    return found


def id_of(frame: bytes) -> int:
    return int(frame[18:34], 16)


def body_of(frame: bytes) -> bytes:
    return frame[34:]


class Ids:
    """Leases ids as a node does, over any number of logs; small blocks make gaps between the ids."""

    def __init__(self, block: int = 1 << 24, first: int = 5 << 54) -> None:
        self.block = block
        self.next = first
        self.leases = 0

    def __call__(self, count: int) -> tuple[int, int]:
        first, size = self.next, max(count, self.block)
        self.next += size + 1
        self.leases += 1
        return first, size


@dataclass
class Model:
    """What a log should hold: the frame of every position, and the deferred batches by their first one."""

    frames: list[bytes] = field(default_factory=list)
    deferred: dict[int, tuple[int, int]] = field(default_factory=dict)  # position: (count, due)
    first: int = 0

    @property
    def end(self) -> int:
        return self.first + len(self.frames)

    def frame(self, position: int) -> bytes:
        return self.frames[position - self.first]

    def add(self, batches: list[Batch]) -> None:
        for batch in batches:
            assert batch.position == self.end
            if batch.due:
                self.deferred[batch.position] = (len(batch.frames), batch.due)
            self.frames += batch.frames

    def publish(self, log: TopicLog, commit: list[tuple[int, list[bytes]]], timestamp: int = 1) -> None:
        """Publish in one commit, and note what has become of it."""
        for due, bodies in commit:
            log.add_bodies(list(bodies), timestamp, due)
        assert log.commit() == sum(len(bodies) for _, bodies in commit)
        chunk = log.tail.find(log.end - 1)
        assert chunk is not None
        batches = split_batches(chunk.data)
        assert [(batch.due, [*map(body_of, batch.frames)]) for batch in merged(batches)] == joined(commit)
        self.add(batches)
        assert log.end == self.end


def joined(commit: list[tuple[int, list[bytes]]]) -> list[tuple[int, list[bytes]]]:
    """Neighbours with one due time as one."""
    result: list[tuple[int, list[bytes]]] = []
    for due, bodies in commit:
        if result and result[-1][0] == due:
            result[-1][1].extend(bodies)
        else:
            result.append((due, list(bodies)))
    return result


def merged(batches: list[Batch]) -> list[Batch]:
    """Neighbours with one due time as one: ids that do not follow each other have made two of them."""
    result: list[Batch] = []
    for batch in batches:
        if result and result[-1].due == batch.due:
            result[-1].frames = result[-1].frames + batch.frames
        else:
            result.append(Batch(**{**vars(batch), "frames": list(batch.frames)}))
    return result


def read_all(log: TopicLog) -> list[bytes]:
    """Every frame of the log, deferred or not."""
    place = Cursor(log, log.first, whatever_due=True)
    frames: list[bytes] = []
    while (run := place.read(EVERYTHING, EVERYTHING)) is not None:
        assert run.position == log.first + len(frames)
        found = split_frames(run.frames)
        assert len(found) == run.count
        assert [id_of(frame) for frame in found] == list(range(run.first_id, run.first_id + run.count))
        frames += found
    return frames


class Draw(random.Random):
    """Random commits from a seed: see tests/kernel/test_twins.py for why not from hypothesis' own draws."""

    def body(self) -> bytes:
        return self.randbytes(self.choice([1, 1, 3, 10, 60, 300]))

    def commit(self) -> list[tuple[int, list[bytes]]]:
        dues = [0, 0, 0, 10**18, 10**18, 2 * 10**18]
        return [
            (self.choice(dues), [self.body() for _ in range(self.choice([1, 1, 2, 5]))])
            for _ in range(self.choice([1, 1, 2, 3]))
        ]

    def limits(self) -> Limits:
        return Limits(
            max_bytes_per_file=self.choice([1, 300, 1000, 100 << 20]),
            tail_messages=self.choice([0, 1, 5, 10000]),
        )

    def ids(self) -> Ids:
        return Ids(self.choice([1, 3, 7, 1 << 24]))


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """An empty directory for one example."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as path:
        yield Path(path) / "topic"


@contextlib.contextmanager
def small_reads(size: int, stride: int = 100) -> Iterator[None]:
    """Files are read `size` bytes at a time, so that little data meets all the edges."""
    with (
        mock.patch.object(cursor, "READ_SIZE", size),
        mock.patch.object(segment, "WINDOW", size),
        mock.patch.object(segment, "INDEX_STRIDE", stride),
        mock.patch.object(sources, "_WINDOW", max(size, HEADER.size)),
    ):
        yield


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("*.log"))


def delete(gone: list[Segment]) -> None:
    """What a topic does with the segments that `trim` gives back."""
    for each in gone:
        each.delete()


def read_what_is_left(log: TopicLog) -> list[bytes]:
    """Every frame of a log that a power cut may have shortened: what is damaged is left out on the way."""
    frames: list[bytes] = []
    cursor = Cursor(log, log.first, whatever_due=True)
    while True:
        try:
            run = cursor.read(1, EVERYTHING)
        except LogDamaged as damaged:
            log.leave_out(cast(Segment, damaged.part))
            cursor = Cursor(log, log.lost.next_gap(cursor.position), whatever_due=True)
            continue
        if run is None:
            return frames
        frames += split_frames(run.frames)
