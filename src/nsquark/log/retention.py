"""How much a log keeps: its limits, and which of its files may be deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .segment import Segment


class Limits(NamedTuple):
    """How large a log and its parts may grow. 0 switches a retention off."""

    max_bytes_per_file: int = 100 << 20
    tail_messages: int = 10000
    retention_bytes: int = 0
    retention_time: float = 0.0
    archive_bytes: int = 0  # of what is archived, also while the disk has it; here 0 is without limit
    archive_time: float = 0.0


UNLIMITED = -1
_MOST = (1 << 63) - 1  # bytes, or ns


class Retention(NamedTuple):
    """What one log keeps in place of what all logs keep. None leaves it at that, UNLIMITED keeps all."""

    bytes: int | None = None
    time: int | None = None  # ns
    archive_bytes: int | None = None
    archive_time: int | None = None  # ns

    def apply_to(self, limits: Limits) -> Limits:
        """These limits, with this retention in place of theirs."""
        if self.bytes is not None:
            limits = limits._replace(retention_bytes=_MOST if self.bytes == UNLIMITED else self.bytes)
        if self.time is not None:
            time = _MOST if self.time == UNLIMITED else self.time
            limits = limits._replace(retention_time=time / 1e9)
        if self.archive_bytes is not None:
            limits = limits._replace(archive_bytes=max(self.archive_bytes, 0))
        if self.archive_time is not None:
            limits = limits._replace(archive_time=max(self.archive_time, 0) / 1e9)
        return limits


def is_retained(limits: Limits, size: int, age: float) -> bool:
    """Whether retention keeps a file that no channel needs, in a log of `size` bytes.

    `age` is how long ago the file was last written, in seconds. Retention keeps a file as long as no limit
    that was set is exceeded.
    """
    if not limits.retention_bytes and not limits.retention_time:
        return False
    if limits.retention_bytes and size > limits.retention_bytes:
        return False
    return not limits.retention_time or age <= limits.retention_time


def is_beyond_archive(limits: Limits, size: int, age: float) -> bool:
    """Whether the archive is to let go of its oldest segment, when it has `size` bytes of the log."""
    if limits.archive_bytes and size > limits.archive_bytes:
        return True
    return bool(limits.archive_time) and age > limits.archive_time


def count_deletable(segments: Sequence[Segment], low: int, limits: Limits, now: float) -> int:
    """How many of the oldest segments may go, when no channel needs anything before the position `low`.

    A file goes as a whole, with all its segments. The newest file stays.
    """
    size = size_of(segments)
    deletable = 0
    while True:
        path = segments[deletable].path
        end = deletable
        while end < len(segments) and segments[end].path == path:
            end += 1
        if end == len(segments) or segments[end - 1].end > low:
            return deletable
        if is_retained(limits, size, now - segments[deletable].modified):
            return deletable
        size -= size_of(segments[deletable:end])
        deletable = end


def count_archived(segments: Sequence[Segment]) -> int:
    """How many of the oldest segments are in the archive, or have nothing to put there. Whole files only."""
    number = 0
    while number < len(segments) and (segments[number].archived is not None or segments[number].empty):
        number += 1
    while 0 < number < len(segments) and segments[number].path == segments[number - 1].path:
        number -= 1
    return number


def size_of(segments: Sequence[Segment]) -> int:
    """The bytes of these segments."""
    return sum(segment.size - segment.start for segment in segments)
