"""What stands in a file: the line of a message, and the compression of lines.

A compressed file is a row of members (zstd: frames), one for each group of messages that was synced together.
Each member can be read without the others.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Protocol

import cramjam

from nsquark.client import Message

Lines = Callable[[Sequence[Message]], list[bytes]]
"""Makes the lines of messages, without their newlines."""


def plain_lines(messages: Sequence[Message]) -> list[bytes]:
    return [message.body for message in messages]


_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def jsonl_lines(messages: Sequence[Message]) -> list[bytes]:
    return [_jsonl_line(message) for message in messages]


def _jsonl_line(message: Message) -> bytes:
    document: dict[str, object] = {
        "id": message.id.decode("ascii", "replace"),
        "timestamp_ns": message.timestamp_ns,
        "attempts": message.attempts,
        "node": message.nsqd_address,
    }
    try:
        document["body"] = message.body.decode()
    except UnicodeDecodeError:
        document["body_base64"] = b64encode(message.body).decode()
    return _to_json(document).encode()


class Encoder(Protocol):
    """Turns lines into the bytes of a file."""

    def add(self, data: bytes) -> bytes:
        """Take data, and return the bytes to write now."""

    def end_member(self) -> bytes:
        """The rest of the bytes for what was added; they stand for themselves, whatever follows."""


class Plain:
    def add(self, data: bytes) -> bytes:
        return data

    def end_member(self) -> bytes:
        return b""


class Gzip:
    # A member is written when it ends, so that a kill seldom leaves half of one.

    def __init__(self, level: int) -> None:
        self._level = level
        self._begin()

    def _begin(self) -> None:
        self._member = zlib.compressobj(self._level, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        self._pieces: list[bytes] = []

    def add(self, data: bytes) -> bytes:
        self._pieces.append(self._member.compress(data))
        return b""

    def end_member(self) -> bytes:
        data = b"".join((*self._pieces, self._member.flush()))
        self._begin()
        return data


class Zstd:
    def __init__(self, level: int) -> None:
        self._level = level
        self._frame = cramjam.zstd.Compressor(level)

    def add(self, data: bytes) -> bytes:
        self._frame.compress(data)
        return b""

    def end_member(self) -> bytes:
        data = bytes(self._frame.finish())
        self._frame = cramjam.zstd.Compressor(self._level)
        return data
