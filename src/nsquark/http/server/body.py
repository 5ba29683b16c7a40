"""A response body that is too large for memory: made and sent piece by piece.

Handlers that stream read from a disk, so pieces are made in threads. The same thread writes a piece straight
into the socket; the event loop only learns that the piece is gone, or that the socket is full. Where bytes
must go through TLS, the transport sends them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from nsquark.errors import ConnectionLost
from nsquark.net.congestion import do_not_pace

if TYPE_CHECKING:
    from .connection import HttpConnection

Buffer = bytes | bytearray | memoryview
THROUGH_TRANSPORT = 64 << 10  # at a time: encrypting is the loop's work, and others want a turn
Threads: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Does something in a thread, and gives what it returns."""


class BodyWriter:
    """Sends one body, after its head. `close` it in any case."""

    def __init__(self, connection: HttpConnection, transport: asyncio.Transport, patience: float) -> None:
        """`patience` is how long a client may take nothing before it is given up."""
        self._connection = connection
        self._transport = transport
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None
        self._fd = _duplicate(transport)

    async def send(self, run: Threads, make: Callable[[], Buffer]) -> int:
        """Send what `make`, called in a thread, returns; returns how many bytes that were.

        Raises ConnectionLost, and whatever `make` raises.
        """
        if self._fd < 0:
            data = memoryview(await run(make))
            for start in range(0, len(data), THROUGH_TRANSPORT):
                self._transport.write(data[start : start + THROUGH_TRANSPORT])
                await self._drained()
            return len(data)

        size, rest = 0, memoryview(b"")

        def make_and_send() -> None:
            nonlocal size, rest
            rest = memoryview(make())
            size = len(rest)
            send_some()

        def send_some() -> None:
            nonlocal rest
            try:
                while len(rest):
                    rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                pass  # the socket is full
            except OSError as error:
                raise ConnectionLost(str(error)) from None

        await run(make_and_send)
        while len(rest):
            await self._writable()
            await run(send_some)
        return size

    @property
    def direct(self) -> bool:
        """Whether bytes go into the socket, past the transport."""
        return self._fd >= 0

    async def send_file(self, run: Threads, descriptor: int, offset: int, stop: int) -> None:
        """Send these bytes of a file, which never come to user space. For `direct` ones.

        Raises ConnectionLost, and OSError if they cannot be read.
        """

        def send_some() -> None:
            nonlocal offset
            try:
                while offset < stop:
                    sent = os.sendfile(self._fd, descriptor, offset, stop - offset)
                    if not sent:
                        raise OSError("the file is shorter than it was")
                    offset += sent
            except BlockingIOError:
                pass  # the socket is full
            except ConnectionError as error:
                raise ConnectionLost(str(error)) from None

        await run(send_some)
        while offset < stop:
            await self._writable()
            await run(send_some)

    async def _writable(self) -> None:
        """Wait until the socket takes more."""
        self._waiting = waiting = self._loop.create_future()
        self._loop.add_writer(self._fd, self.wake)
        try:
            await asyncio.wait_for(waiting, self._patience)
        except TimeoutError:
            raise ConnectionLost("the client does not read") from None
        finally:
            self._loop.remove_writer(self._fd)
            self._waiting = None
        if self._transport.is_closing():
            raise ConnectionLost("the connection is closed")

    async def _drained(self) -> None:
        """Wait until the transport, which pauses us while it has anything, has sent everything."""
        while True:
            await asyncio.sleep(0)  # many write at the end of the loop's turn
            if self._transport.is_closing():
                raise ConnectionLost("the connection is closed")
            if self._connection.can_write:
                if not self._transport.get_write_buffer_size():
                    return
                continue
            self._waiting = waiting = self._loop.create_future()
            try:
                await asyncio.wait_for(waiting, self._patience)
            except TimeoutError:
                raise ConnectionLost("the client does not read") from None
            finally:
                self._waiting = None

    async def begin(self, head: bytes) -> None:
        """Send the head of the response, and have nothing left in the transport. Closes itself on failure."""
        self._transport.set_write_buffer_limits(0)
        self._transport.write(head)
        try:
            await self._drained()
        except BaseException:
            self.close()
            raise

    def wake(self) -> None:
        """The socket takes more, everything is sent, or the connection is lost."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._connection.close_body(self)
        if not self._transport.is_closing():
            self._transport.set_write_buffer_limits()


def _duplicate(transport: asyncio.Transport) -> int:
    """A descriptor of the transport's socket, which may be closed while a thread writes.

    -1 where bytes must not go past the transport: with TLS, its own or that of layers, which show no socket.
    """
    socket = transport.get_extra_info("socket")
    if socket is None or transport.get_extra_info("sslcontext") is not None:
        return -1
    descriptor = os.dup(socket.fileno())
    do_not_pace(descriptor)
    return descriptor
