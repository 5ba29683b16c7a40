"""Disk queues as Go's nsqd writes them, byte by byte from the documented format."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

TIME = 1_700_000_000_000_000_000


def record(number: int, body: bytes = b"", attempts: int = 0, timestamp: int | None = None) -> bytes:
    """A message of a queue: length, time, attempts, id, body."""
    body = body or b"message %d" % number
    time = TIME + number if timestamp is None else timestamp
    return struct.pack(">iqH16s", 26 + len(body), time, attempts, b"%016x" % (0xABC0000 + number)) + body


def write_queue(
    directory: Path,
    name: str,
    records: Sequence[bytes],
    per_file: int = 1 << 30,
    read: int = 0,
    meta: bytes | None = None,
    rolls_late: bool = False,
) -> list[Path]:
    """Write a queue of which the first `read` records were read; returns its data files.

    A file holds `per_file` bytes. With `rolls_late` a file is left only when it has reached them, as nsqd did
    up to 1.2.1; then the next one may not exist yet.
    """
    number, offset = 0, 0
    start = (0, 0)
    contents: dict[int, bytearray] = {}
    for index, each in enumerate(records):
        if not rolls_late and offset and offset + len(each) > per_file:
            number, offset = number + 1, 0
        if index == read:
            start = number, offset
        contents.setdefault(number, bytearray()).extend(each)
        offset += len(each)
        if rolls_late and offset >= per_file:
            number, offset = number + 1, 0
    if read >= len(records):
        start = number, offset
    paths = []
    for index, content in contents.items():
        if index >= start[0]:  # a file that was read to its end is deleted
            paths.append(directory / f"{name}.diskqueue.{index:06d}.dat")
            paths[-1].write_bytes(content)
    if meta is None:
        meta = b"%d\n%d,%d\n%d,%d\n" % (len(records) - read, *start, number, offset)
    if meta:
        (directory / f"{name}.diskqueue.meta.dat").write_bytes(meta)
    return paths


def write_metadata(directory: Path, topics: dict[str, list[str]], name: str = "nsqd.dat") -> None:
    entries = ",".join(
        '{"name":"%s","paused":false,"channels":%s}'  # noqa: UP031 - braces
        % (topic, "[" + ",".join('{"name":"%s","paused":false}' % each for each in channels) + "]")  # noqa: UP031
        for topic, channels in topics.items()
    )
    (directory / name).write_text('{"topics":[' + entries + '],"version":"1.3.0"}')
