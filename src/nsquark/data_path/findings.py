"""What a check of a data directory finds, and what can be done about it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from pathlib import Path

from nsquark.durable import sync_path


class Level(IntEnum):
    """How bad a finding is. The worst one of a report decides the exit code of `nsquark check`."""

    NOTE = 0  # nothing is wrong
    WARNING = 1  # a start of nsqd mends it, and nothing that was answered is lost
    ERROR = 2  # something is lost or broken, or nsqd would not start


class Aside:
    """The folder to which a repair moves what is broken. It is made when the first file comes."""

    def __init__(self, data_path: Path, name: str) -> None:
        """`name` is that of a folder in the data directory; a number is added if it is taken."""
        self._data_path = data_path
        names = (name if not number else f"{name}.{number}" for number in count())
        self.folder = next(data_path / each for each in names if not (data_path / each).exists())

    def move(self, path: Path) -> str:
        """Move a file here, under its path within the data directory. Raises OSError."""
        target = self.folder / path.relative_to(self._data_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        # A link never overwrites; a rename would.
        os.link(path, target)
        os.unlink(path)
        sync_path(target.parent)
        sync_path(path.parent)
        return f"moved to {target}"


Repair = Callable[[Aside], str]
"""Mends one finding and tells how, in a few words. Raises OSError."""


@dataclass(slots=True)
class Finding:
    level: Level
    path: Path
    text: str
    repair: Repair | None = None
    repaired: str = ""  # what the repair has done


@dataclass(slots=True)
class ChannelSummary:
    name: str
    unfinished: int
    oldest: int  # the lowest position that is not finished


@dataclass(slots=True)
class TopicSummary:
    """What is known of a topic whose files were read."""

    name: str
    directory: Path
    segments: int = 0
    size: int = 0
    first: int = 0
    end: int = 0
    lost: int = 0  # messages
    oldest_ns: int | None = None
    newest_ns: int | None = None
    channels: list[ChannelSummary] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    data_path: Path
    in_use: bool = False
    topics: list[TopicSummary] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    bytes_read: int = 0

    @property
    def worst(self) -> Level:
        left = [each.level for each in self.findings if not each.repaired]
        return max(left, default=Level.NOTE)

    def add(self, level: Level, path: Path, text: str, repair: Repair | None = None) -> None:
        self.findings.append(Finding(level, path, text, repair))
