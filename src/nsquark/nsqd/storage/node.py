"""What this node must never forget: its identity, and which message ids and positions it has given away.

An id has 64 bits:

    63      54              24           0
    | node  | block         | message    |
    | id    | number        | of block   |

A topic's log leases a block of ids, then numbers its messages within it, so that ids of one lease follow
each other. Blocks are handed out by a counter that never goes back. The file says how far the counter may
have got; it is written before a stretch of blocks is used, so even a power cut makes no id appear twice.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from pathlib import Path

from nsquark import kernel
from nsquark.durable import replace_file
from nsquark.log import Damage, keep, records

logger = logging.getLogger(__name__)

NODE_SHIFT = 54
BLOCK_SHIFT = 24
BLOCKS = 1 << (NODE_SHIFT - BLOCK_SHIFT)
STRETCH = 1024
FILE_NAME = "nsquark.dat"
TOPICS = "topics"
VERSION = 1  # of the file
TERM_VERSION = 2  # of a file with a term
# What `parse` raises for a file that no node has written.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


def pack(node: str, blocks: int, floor: int, term: int = 0) -> bytes:
    """The content of the file. A digit of it could change and leave good JSON, so it has a CRC."""
    known: dict[str, object] = {"node": node, "blocks": blocks, "floor": floor, "version": VERSION}
    if term:  # a release that does not know terms would not find the files that have them in their names
        known |= {"version": TERM_VERSION, "term": term}
    return json.dumps(known | {"crc": _crc(node, blocks, floor, term)}).encode()


def parse(text: bytes) -> tuple[str, int, int, int]:
    """Node, blocks, floor and term. Raises one of UNREADABLE."""
    known = json.loads(text)
    node, blocks, floor = str(known["node"]), int(known["blocks"]), int(known["floor"])
    term = int(known.get("term", 0))
    # Files of older releases have no CRC.
    if known.get("crc", (expected := _crc(node, blocks, floor, term))) != expected:
        raise ValueError("the CRC is wrong")
    if not 0 <= floor < 1 << 63:
        raise ValueError(f"logs begin at {floor}")
    if not 0 <= blocks <= 2 * BLOCKS:  # a node that has given away all ids is ahead of them by a stretch
        raise ValueError(f"{blocks} blocks")
    if not 0 <= term < 1 << 32:
        raise ValueError(f"term {term}")
    return node, blocks, floor, term


def _crc(node: str, blocks: int, floor: int, term: int) -> int:
    text = f"{node} {blocks} {floor}{f' {term}' if term else ''}".encode()
    return kernel.crc32c(text, 0, len(text))


class Node:
    def __init__(self, data_path: Path, node_id: int) -> None:
        self._path = data_path / FILE_NAME
        self._node_id = node_id
        self.uuid = os.urandom(16).hex()
        self.floor = 0  # where the logs of new topics begin: behind every log that was deleted
        self.term = 0  # of the files that logs begin: it rises when a copy of this node takes its place
        self._next = 0
        self._until = 0
        self._saving = threading.Lock()
        try:
            text: bytes | None = self._path.read_bytes()
        except FileNotFoundError:
            # without the file, logs say that it is lost: a new node has none
            text = b"" if any((data_path / TOPICS).glob("*")) else None
        if text is not None:
            try:
                self.uuid, self._next, self.floor, self.term = parse(text)
            except UNREADABLE as error:
                # No node uses up a block a second, so this is ahead of all ids that were given since then.
                self._next = int(time.time()) - 1_577_836_800
                logger.error("%s does not read (%r): going on with block %d", self._path, error, self._next)
                if text:
                    keep(self._path, Damage(0, len(text)))
        self.damage = [each for each in records(data_path) if not each.acknowledged]
        self._until = self._next + STRETCH
        self.save()

    def lease(self, count: int) -> tuple[int, int]:
        """(first id, how many): at least `count` ids that follow each other and were never given before."""
        blocks = -(-count >> BLOCK_SHIFT)
        if self._next + blocks > self._until:
            before, self._until = self._until, self._next + blocks + STRETCH
            try:
                self.save()
            except OSError:
                self._until = before  # as far as the file knows
                raise
        if self._next + blocks > BLOCKS:
            raise OverflowError("this node has given away all its message ids")
        first = self._node_id << NODE_SHIFT | self._next << BLOCK_SHIFT
        self._next += blocks
        return first, blocks << BLOCK_SHIFT

    def raise_floor(self, position: int) -> None:
        """Let no new log begin before `position`. Takes effect on disk with the next `save`."""
        self.floor = max(self.floor, position)

    def save(self) -> None:
        """Safe to call from any thread: a later state is never replaced by an earlier one."""
        with self._saving:
            write_atomically(self._path, pack(self.uuid, self._until, self.floor, self.term))


def write_atomically(path: Path, data: bytes) -> None:
    """Replace one of nsqd's own files so that there is always a whole one, whenever the machine stops."""
    number = int.from_bytes(os.urandom(8), "big") >> 1  # NSQ's way to name it: any thread may be at it
    replace_file(path, data, path.with_name(f"{path.name}.{number}.tmp"), 0o600)
