"""The spool: a folder of messages that were consumed from a stock nsqd and not yet read by Spark.

Messages are numbered in the order in which they are written. A message is on disk before it is finished at
nsqd, and never changes. Each file holds messages that came together from one topic at one nsqd. Its name is
the number of its first message and their count. A file appears whole.

    JSON: topic, nsqd, count | newline | one batch as in a topic log; its position is the first number

The option that names the folder is `stagingDirectory`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from nsquark import kernel
from nsquark.durable import replace_file
from nsquark.kernel.pure import FRAME, HEADER, MAGIC

from ..errors import BadResponse, ChannelInUse

_NAME = re.compile(r"(\d{20})-(\d+)\.messages")
# How long an acknowledged file stays. Until then the spool recognizes a message that nsqd delivers again, and
# an older checkpoint can be restored.
INCOMPLETE = ".new"  # the suffix of a file that is being written
KEEP_SECONDS = 600.0


class ConsumedMessage(Protocol):
    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


class SpoolFile(NamedTuple):
    """A file of the spool: it holds the messages with the numbers [first, end)."""

    first: int
    end: int
    path: Path


def list_files(folder: Path) -> list[SpoolFile]:
    """The files of a spool, in the order of their messages."""
    found = []
    for path in folder.iterdir():
        if name := _NAME.fullmatch(path.name):
            found.append(SpoolFile(int(name[1]), int(name[1]) + int(name[2]), path))
    return sorted(found)


def read_file(path: Path) -> tuple[str, str, memoryview]:
    """The topic, the nsqd and the batch of a file. Raises BadResponse, OSError."""
    data = path.read_bytes()
    head, newline, _ = data.partition(b"\n")
    try:
        document = json.loads(head)
        return document["topic"], document["nsqd"], memoryview(data)[len(head) + len(newline) :]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadResponse(f"option 'stagingDirectory': {path} is not what was written there") from None


class Spool:
    """The folder, as the one process that writes to it sees it."""

    def __init__(self, folder: Path) -> None:
        """Raises ChannelInUse if another query writes to the folder, OSError if it cannot be used."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ChannelInUse(f"option 'stagingDirectory': {folder} is in use by another query") from None
        for suffix in (INCOMPLETE, ".tmp"):  # earlier versions wrote .tmp
            for incomplete in folder.glob(f"*{suffix}"):
                incomplete.unlink()
        self._files = list_files(folder)
        self.acknowledged = self._read_acknowledged()
        self.end = self._files[-1].end if self._files else self.acknowledged
        self._known_ids: set[tuple[str, bytes]] | None = None  # nsqd and id of every message in the files
        self._changing = threading.Lock()  # a consumer per topic adds messages, and Spark acknowledges them

    def close(self) -> None:
        os.close(self._lock)

    def _read_acknowledged(self) -> int:
        try:
            return int((self.folder / "acknowledged").read_text())
        except FileNotFoundError:
            return self._files[0].first if self._files else 0

    def add(self, topic: str, nsqd: str, messages: Sequence[ConsumedMessage]) -> None:
        """Write messages, and return when they are on disk. Leaves out those that the spool has.

        Raises OSError.
        """
        with self._changing:
            fresh = [each for each in messages if not self._has(nsqd, each)]
            if not fresh:
                return
            head = json.dumps({"topic": topic, "nsqd": nsqd, "count": len(fresh)}).encode()
            path = self.folder / f"{self.end:020d}-{len(fresh)}.messages"
            _replace(path, b"".join([head, b"\n", _pack_batch(self.end, fresh)]))
            self._files.append(SpoolFile(self.end, self.end + len(fresh), path))
            self.end += len(fresh)
            if self._known_ids is not None:
                self._known_ids.update((nsqd, each.id) for each in fresh)

    def _has(self, nsqd: str, message: ConsumedMessage) -> bool:
        """Whether nsqd delivers a message again that the spool has, because the FIN was lost."""
        if message.attempts < 2:
            return False
        if self._known_ids is None:
            self._known_ids = set()
            for file in self._files:
                _, origin, batch = read_file(file.path)
                count = file.end - file.first
                ids = kernel.decode_batches(batch, file.first, count, False, False, True)[3]
                self._known_ids.update((origin, ids[at : at + 16]) for at in range(0, len(ids), 16))
        return (nsqd, message.id) in self._known_ids

    def acknowledge(self, number: int) -> None:
        """Note that Spark needs no message before this number again, and delete old files. Raises OSError."""
        with self._changing:
            if number <= self.acknowledged:
                return
            _replace(self.folder / "acknowledged", b"%d" % number)
            self.acknowledged = number
            expired = time.time() - KEEP_SECONDS
            # The last file stays: it tells the number of the next message.
            while len(self._files) > 1 and self._files[0].end <= number:
                if self._files[0].path.stat().st_mtime > expired:
                    break
                self._files.pop(0).path.unlink()
                self._known_ids = None


def _pack_batch(first: int, messages: Sequence[ConsumedMessage]) -> bytes:
    """A batch of the log format, whose message ids are those of nsqd and need not follow each other."""
    frames = b"".join(
        FRAME.pack(FRAME.size - 4 + len(each.body), 2, each.timestamp_ns, each.attempts, each.id) + each.body
        for each in messages
    )
    time_ns = messages[0].timestamp_ns
    header = HEADER.pack(MAGIC, 0, HEADER.size + len(frames), len(messages), first, 0, time_ns, 0)
    batch = bytearray(header + frames)
    struct.pack_into(">I", batch, 4, kernel.crc32c(batch, 8, len(batch)))
    return bytes(batch)


def _replace(path: Path, data: bytes) -> None:
    replace_file(path, data, path.with_name(path.name + INCOMPLETE))
