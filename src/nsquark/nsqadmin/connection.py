"""A browser's connection: uvicorn's HTTP, with bounds that uvicorn leaves to a proxy in front of it.

uvicorn writes the head of an answer and its body one after the other. `JoinedWrites` makes one write of both.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 65536
HEAD_TIMEOUT = 60.0
WRITE_TIMEOUT = 60.0
MAX_UNSENT = 256 << 20
JOINED = 65536  # bytes: to copy a longer body would cost more than a second buffer in the same system call


class JoinedWrites:
    """A transport that holds writes back until the answer is complete, or until the loop turns.

    Every write of its own is a system call and a packet, which cost more than making a short answer. What a
    streamed answer writes goes out with the next turn of the loop, and so does a head whose body lets wait.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """uvicorn would ask the socket for its addresses, which uvloop makes anew for every question."""
        return default if name == "socket" else self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(data)

    def flush(self) -> None:
        if self._held:
            held, self._held = self._held, []
            if sum(map(len, held)) <= JOINED:
                self._transport.write(b"".join(held))
            else:
                self._transport.writelines(held)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._held = []
        self._transport.abort()


class Unsent:
    """What all connections together have been given and their browsers have not taken.

    The answer for a large cluster has ten megabytes, and a thousand readers that stop would be ten gigabytes.
    Past `MAX_UNSENT` bytes the connection that has been waiting longest is cut off.
    """

    def __init__(self) -> None:
        self.total = 0
        self._waiting: dict[BoundedConnection, int] = {}  # in the order in which they began to wait

    def add(self, connection: BoundedConnection, size: int) -> None:
        self.remove(connection)
        self._waiting[connection] = size
        self.total += size
        while self.total > MAX_UNSENT and len(self._waiting) > 1:
            oldest = next(iter(self._waiting))
            self.remove(oldest)
            oldest.transport.abort()

    def remove(self, connection: BoundedConnection) -> None:
        self.total -= self._waiting.pop(connection, 0)


class BoundedConnection(HttpToolsProtocol):
    """The head of a request is at most `MAX_HEAD` bytes long, and whole within `HEAD_TIMEOUT` seconds.

    A browser that takes nothing of its answer for `WRITE_TIMEOUT` seconds is cut off, or earlier if there are
    many of them (`Unsent`).
    """

    _head_size = 0
    _in_head = True
    _patience: asyncio.TimerHandle | None = None  # with the head
    _writing: asyncio.TimerHandle | None = None
    _joined: JoinedWrites

    def __init__(self, unsent: Unsent, **uvicorns: Any) -> None:
        """`uvicorns` are the arguments of uvicorn's own connection."""
        super().__init__(**uvicorns)
        self._unsent = unsent

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        self._joined = JoinedWrites(transport, self.loop)
        super().connection_made(self._joined)  # type: ignore[arg-type]  # it has all of a transport's methods
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_writing_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_size += len(data)
        super().data_received(data)
        # Counted in whole reads, so what follows a short head in the same read does it no harm.
        if self._in_head and self._head_size > MAX_HEAD and not self.transport.is_closing():
            self.transport.abort()

    def on_response_complete(self) -> None:
        self._joined.flush()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(WRITE_TIMEOUT, self.transport.abort)
        self._unsent.add(self, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._stop_writing_timer()
        super().resume_writing()

    def _stop_writing_timer(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
            self._unsent.remove(self)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_size = 0
        self._wait_for_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_waiting()
        super().on_headers_complete()

    def _wait_for_head(self) -> None:
        if self._patience is None:  # a first request has to come within the time of its connection
            self._patience = self.loop.call_later(HEAD_TIMEOUT, self._give_up)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        self._patience = None
        if not self.transport.is_closing():
            self.transport.abort()
