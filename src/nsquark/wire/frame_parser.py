"""The bytes of an nsqd, turned into frames. No sockets, tasks or clocks.

The mirror of `parser`: bytes come in through `get_buffer` and `received`, events come out of `next_event`.
Runs of messages, and runs of `OK`, come as one event: the kernel finds them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from nsquark import kernel
from nsquark.errors import ConnectionLost, NotNsqd

from .frames import ERROR, MESSAGE, RESPONSE

MAX_FRAME = 128 << 20  # beyond any --max-msg-size in use; a size above is taken for noise
_ROOM = 128 << 10
_LEAST_ROOM = 16 << 10
_HEAD = struct.Struct(">ii")
_OTHERS = {  # how the answers begin that other ports give to a client of nsqd
    b"HTTP": "an HTTP server",
    b"\x15\x03": "a TLS server (HTTPS?)",
    b"\x00\x00\x00\x0eE_BA": "nsqlookupd",
}

M = TypeVar("M", bound=kernel.Delivery)


@dataclass(slots=True)
class Messages(Generic[M]):
    """A run of messages."""

    run: list[M]


@dataclass(slots=True)
class Oks:
    """A run of `OK`."""

    count: int


@dataclass(slots=True)
class Response:
    """Any other response: a heartbeat, CLOSE_WAIT, a JSON document."""

    data: bytes


@dataclass(slots=True)
class Error:
    """An error frame: code, space, text."""

    data: bytes


class FrameParser(Generic[M]):
    """Has its own buffer. Messages are objects of `kind`, with `source` and the time of their arrival."""

    __slots__ = ("_data", "_end", "_kind", "_max_frame", "_source", "_start", "_view")

    def __init__(self, kind: type[M], source: Any, max_frame: int = MAX_FRAME) -> None:
        self._kind = kind
        self._source = source
        self._max_frame = max_frame
        self._data = bytearray(_ROOM)
        self._view = memoryview(self._data)
        self._start = self._end = 0  # the bytes between have come and are not parsed yet

    def get_buffer(self) -> memoryview:
        """The memory to read the next bytes into."""
        have = self._end - self._start
        if not have:
            self._start = self._end = 0
            if len(self._data) > _ROOM:  # after a giant frame
                self._replace(_ROOM)
        elif len(self._data) - self._end < _LEAST_ROOM:
            # The size that a frame claims costs no memory: the buffer grows with the bytes that have come.
            self._replace(max(_ROOM, 2 * have))
        return self._view[self._end :]

    def _replace(self, room: int) -> None:
        data = bytearray(room)
        have = self._end - self._start
        data[:have] = self._view[self._start : self._end]
        self._data, self._view = data, memoryview(data)
        self._start, self._end = 0, have

    def received(self, count: int) -> None:
        """Take note of `count` bytes read into the buffer."""
        self._end += count

    def feed(self, data: kernel.Buffer) -> None:
        """Copy bytes into the buffer, however many they are."""
        room = self.get_buffer()
        if len(data) > len(room):
            self._replace(self._end - self._start + len(data) + _LEAST_ROOM)
            room = self._view[self._end :]
        room[: len(data)] = data
        self._end += len(data)

    def take_rest(self) -> bytes:
        """Remove and return the bytes that are not parsed yet: they belong to another layer."""
        rest = bytes(self._view[self._start : self._end])
        self._start = self._end = 0
        return rest

    @property
    def pending(self) -> int:
        """How many bytes of an incomplete frame have come."""
        return self._end - self._start

    def next_event(self, now: float) -> Messages[M] | Oks | Response | Error | None:
        """The next event, or None when more bytes are needed. `now` is when the messages came.

        Raises ConnectionLost where the bytes are no frame: there is no way back into step.
        """
        start, end = self._start, self._end
        if end - start < 8:
            return None
        size, frame_type = _HEAD.unpack_from(self._data, start)
        if frame_type == MESSAGE:
            stop, run = kernel.read_messages(self._data, start, end, self._kind, self._source, now)
            if run:
                self._start = stop
                return Messages(run)
            if size < 30:
                raise ConnectionLost(f"a message frame of {size} bytes")
        elif frame_type == RESPONSE:
            stop, count = kernel.scan_oks(self._data, start, end)
            if count:
                self._start = stop
                return Oks(count)
        elif frame_type != ERROR:
            self._check_protocol(start)
            raise ConnectionLost(f"a frame of unknown type {frame_type}")
        if not 4 <= size <= self._max_frame:
            raise ConnectionLost(f"a frame of {size} bytes")
        if end - start - 4 < size:
            return None
        self._start = start + 4 + size
        data = bytes(self._view[start + 8 : self._start])
        return Error(data) if frame_type == ERROR else Response(data)

    def _check_protocol(self, start: int) -> None:
        """Raise NotNsqd if the bytes are those of a port that is easily mistaken for nsqd's."""
        head = bytes(self._view[start : start + 8])
        for beginning, who in _OTHERS.items():
            if head.startswith(beginning):
                raise NotNsqd(
                    f"{who} answers here; nsqd's TCP port is the one of --tcp-address, usually 4150"
                )
