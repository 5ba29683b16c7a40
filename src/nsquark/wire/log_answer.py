"""The head of an answer to `GET /log/read`: nsqd packs it, every reader of logs parses it.

0       4       8          16      24       32
| NQR1  | u32   | u64      | u64   | u64    | ...      | ...
| magic | count | position | epoch | length | batches  | index: count times u32, unless index=0
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from nsquark.errors import NsquarkError

_HEAD = struct.Struct(">4sIQQQ")
_MAGIC = b"NQR1"
SIZE = _HEAD.size


class NoLogAnswer(NsquarkError):
    """What came does not begin as an answer of `/log/read` does."""


class LogAnswerHead(NamedTuple):
    """`messages` from `position` on, in batches of `length` bytes."""

    messages: int
    position: int
    epoch: int
    length: int


def pack_head(head: LogAnswerHead) -> bytes:
    return _HEAD.pack(_MAGIC, *head)


def parse_head(data: bytes | bytearray) -> LogAnswerHead:
    """The head with which `data` begins. Raises NoLogAnswer."""
    if len(data) < SIZE:
        raise NoLogAnswer(f"{len(data)} bytes")
    magic, *head = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise NoLogAnswer(f"it begins with {bytes(magic)!r}")
    return LogAnswerHead(*head)
