"""Which files a disk queue has, and what its metadata say.

    orders.diskqueue.000000.dat         the queue of topic orders: records, the oldest file first
    orders.diskqueue.meta.dat           how far it is read and written
    orders:mail.diskqueue.000003.dat    the queue of its channel mail (; for : on Windows)
    ….dat.bad, ….tmp                    what Go's nsqd could not read; what a crash has left: not of the queue

The metadata are three lines: the depth; the file and offset of the next read; those of the next write.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nsquark.names import is_ephemeral, is_valid_name

QUEUE_FILE = re.compile(r"(?P<name>.+)\.diskqueue\.(?P<part>meta|\d{6,18})\.dat")
_SEPARATORS = re.compile("[:;]")
_META = re.compile(rb"(-?\d{1,19})\n(\d{1,18}),(\d{1,18})\n(\d{1,18}),(\d{1,18})\n")
_LARGEST_META = 256  # bytes


class QueueMeta(NamedTuple):
    """What a queue says of itself. `depth` is a hint: after a crash of Go's nsqd it is wrong."""

    depth: int
    read_file: int
    read_offset: int
    write_file: int
    write_offset: int


def parse_meta(text: bytes) -> QueueMeta | None:
    """None if this is not what Go's nsqd writes."""
    match = _META.fullmatch(text)
    return None if match is None else QueueMeta(*map(int, match.groups()))


def pack_meta(meta: QueueMeta) -> bytes:
    return b"%d\n%d,%d\n%d,%d\n" % meta


@dataclass(slots=True)
class QueueFiles:
    """The files of one queue, as a directory has them."""

    name: str  # as in the names of the files
    topic: str
    channel: str | None  # None: the queue of the topic itself
    meta_path: Path
    has_meta_file: bool = False
    meta: QueueMeta | None = None  # None: there is no file, or it does not read
    data: dict[int, Path] = field(default_factory=dict)  # by number
    sizes: dict[int, int] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether Go's nsqd could have written it: it keeps no queue for what is ephemeral."""
        names = [self.topic] if self.channel is None else [self.topic, self.channel]
        return all(is_valid_name(each) and not is_ephemeral(each) for each in names)

    @property
    def paths(self) -> list[Path]:
        return [*self.data.values(), *([self.meta_path] if self.has_meta_file else [])]

    def unread(self) -> list[tuple[int, int]]:
        """(number, offset): the files that hold something unread, and where that begins."""
        start, offset = (0, 0) if self.meta is None else (self.meta.read_file, self.meta.read_offset)
        found = [(each, offset if each == start else 0) for each in sorted(self.data) if each >= start]
        return [(number, begin) for number, begin in found if begin < self.sizes[number]]

    def unread_bytes(self) -> int:
        return sum(self.sizes[number] - begin for number, begin in self.unread())

    def missing(self) -> int:
        """How many files are not there of those that the metadata speak of, as holding something unread."""
        if self.meta is None:
            return 0
        last = self.meta.write_file if self.meta.write_offset else self.meta.write_file - 1
        expected = last - self.meta.read_file + 1
        if self.meta.read_file == last and self.meta.read_offset >= self.meta.write_offset:
            return 0
        return max(0, expected - sum(self.meta.read_file <= each <= last for each in self.data))


def find_queues(directory: Path) -> list[QueueFiles]:
    """The queues in a directory, by name. Raises OSError."""
    found: dict[str, QueueFiles] = {}
    for entry in sorted(os.listdir(directory)):
        match = QUEUE_FILE.fullmatch(entry)
        path = directory / entry
        if match is None or not path.is_file():
            continue
        queue = found.get(match["name"])
        if queue is None:
            topic, *channel = _SEPARATORS.split(match["name"], maxsplit=1)
            meta_path = directory / f"{match['name']}.diskqueue.meta.dat"
            queue = QueueFiles(match["name"], topic, channel[0] if channel else None, meta_path)
            found[match["name"]] = queue
        if match["part"] == "meta":
            queue.has_meta_file = True
            with open(path, "rb", buffering=0) as file:
                queue.meta = parse_meta(file.read(_LARGEST_META))
        else:
            number = int(match["part"])
            queue.data[number], queue.sizes[number] = path, os.stat(path).st_size
    return list(found.values())
