"""The V1 protocol between nsqd and nsqlookupd, both sides of it. No sockets, tasks or clocks.

nsqd sends a line a command, IDENTIFY with a body; nsqlookupd answers each with a size and that many bytes,
without a frame type. `LookupParser` reads the commands, `AnswerParser` the answers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from nsquark.errors import BadBody, BadProtocol, ConnectionLost, Invalid, ProtocolError

from .identify import parse_document

LOOKUP_MAGIC = b"  V1"
MAX_LINE = 16384  # with its line feed
MAX_BODY = 1 << 20
MAX_FIELD = 1024  # of the document, in characters: hosts and versions are short
_SIZE = struct.Struct(">i")


@dataclass(slots=True)
class PeerInfo:
    """What an nsqd says of itself."""

    broadcast_address: str = ""
    hostname: str = ""
    tcp_port: int = 0
    http_port: int = 0
    version: str = ""


def parse_peer(body: bytes) -> PeerInfo:
    """The document of an IDENTIFY. Raises BadBody."""
    peer = parse_document(body, PeerInfo)
    if not (peer.broadcast_address and peer.tcp_port and peer.http_port and peer.version):
        raise BadBody("IDENTIFY missing fields")
    if max(map(len, (peer.broadcast_address, peer.hostname, peer.version))) > MAX_FIELD:
        raise BadBody("IDENTIFY field too long")
    return peer


def parse_lookupd(answer: bytes) -> PeerInfo:
    """What an nsqlookupd answers to IDENTIFY: the same document of itself. Raises BadBody."""
    return parse_document(answer, PeerInfo)


class LookupParser:
    """The bytes of an nsqd: the magic, then lines, and the body that a line is followed by."""

    __slots__ = ("_body", "_data", "_searched", "_size", "_start", "greeted")

    def __init__(self) -> None:
        self._data = bytearray()
        self._start = 0  # what lies before is done with
        self._searched = 0  # and up to here is no line feed
        self._body = False
        self._size = -1  # of the body, once it is known
        self.greeted = False

    def feed(self, data: bytes) -> None:
        del self._data[: self._start]
        self._searched -= self._start
        self._start = 0
        self._data += data

    def greet(self) -> bool:
        """Whether the magic is there, before anything else is asked for. Raises BadProtocol."""
        if len(self._data) < len(LOOKUP_MAGIC):
            return False
        if not self._data.startswith(LOOKUP_MAGIC):
            raise BadProtocol
        self._start = len(LOOKUP_MAGIC)
        self.greeted = True
        return True

    def expect_body(self) -> None:
        """What comes next is a size and a body."""
        self._body = True

    def next_line(self) -> list[bytes] | None:
        """The next command, split at its spaces; None if it is not all there. Raises ProtocolError."""
        data = self._data
        end = data.find(b"\n", max(self._start, self._searched))
        if (len(data) if end < 0 else end + 1) - self._start > MAX_LINE:
            raise Invalid(f"command line longer than {MAX_LINE}")
        if end < 0:
            self._searched = len(data)
            return None
        line = bytes(data[self._start : end])
        self._start = self._searched = end + 1
        return line.strip().split(b" ")

    @property
    def awaits_body(self) -> bool:
        return self._body

    def next_body(self) -> bytes | None:
        """The body that `expect_body` announced; None if it is not all there. Raises BadBody."""
        if self._size < 0:
            if len(self._data) - self._start < _SIZE.size:
                return None
            (size,) = _SIZE.unpack_from(self._data, self._start)
            if not 0 <= size <= MAX_BODY:
                raise BadBody("IDENTIFY failed to read body")
            self._size = size
            self._start += _SIZE.size
        end = self._start + self._size
        if len(self._data) < end:
            return None
        body = bytes(self._data[self._start : end])
        self._start = self._searched = end
        self._body = False
        self._size = -1
        return body

    def cut_short(self) -> ProtocolError | None:
        """What to answer if nothing more comes; None if nothing was begun that has an answer."""
        if not self._body:
            return None
        return BadBody("IDENTIFY failed to read body" + (" size" if self._size < 0 else ""))


class AnswerParser:
    """The bytes of an nsqlookupd, turned into answers of at most `limit` bytes."""

    __slots__ = ("_data", "_limit")

    def __init__(self, limit: int) -> None:
        self._data = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The answers that are complete now. Raises ConnectionLost for a size that cannot be meant."""
        self._data += data
        start = 0
        while len(self._data) - start >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._data, start)
            if not 0 <= size <= self._limit:
                raise ConnectionLost(f"answer of {size} bytes, limit is {self._limit}")
            end = start + _SIZE.size + size
            if len(self._data) < end:
                break
            yield bytes(self._data[start + _SIZE.size : end])
            start = end
        del self._data[:start]


def pack_answer(data: bytes) -> bytes:
    return _SIZE.pack(len(data)) + data


def pack_lookup_identify(document: bytes) -> bytes:
    return b"IDENTIFY\n" + _SIZE.pack(len(document)) + document


def pack_register(topic: str, channel: str = "") -> bytes:
    return _pack_line("REGISTER", topic, channel)


def pack_unregister(topic: str, channel: str = "") -> bytes:
    return _pack_line("UNREGISTER", topic, channel)


def _pack_line(command: str, topic: str, channel: str) -> bytes:
    return f"{command} {topic} {channel}".rstrip(" ").encode() + b"\n"


LOOKUP_OK = pack_answer(b"OK")
PING = b"PING\n"
