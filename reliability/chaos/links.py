"""A link between two processes: a proxy that can cut, cut one way, delay, and hold bytes.

A direction that is held takes no more bytes, as a network that loses every packet. When it is released, the
bytes go on as TCP would send them again, or the connections are reset.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

CHUNK = 1 << 16
_RESET = struct.pack("ii", 1, 0)


class Direction:
    """One way of a link."""

    def __init__(self) -> None:
        self.delay = 0.0
        self._open = asyncio.Event()
        self._open.set()

    @property
    def held(self) -> bool:
        return not self._open.is_set()

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    async def pass_on(self) -> None:
        await self._open.wait()
        if self.delay:
            await asyncio.sleep(self.delay)
            await self._open.wait()


class Link:
    """Takes connections at `address` and makes one to `target` for each."""

    def __init__(self, name: str, address: tuple[str, int], target: tuple[str, int]) -> None:
        self.name = name
        self.address = address
        self.target = target
        self.there = Direction()  # to the target
        self.back = Direction()
        self.bytes = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    async def open(self) -> None:
        """Take connections."""
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, *self.address, limit=CHUNK)

    async def close(self) -> None:
        """Refuse connections, and reset those that there are: the target's process is gone."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await self.reset()

    async def reset(self) -> None:
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def hold(self, there: bool = True, back: bool = True) -> None:
        if there:
            self.there.hold()
        if back:
            self.back.hold()

    def delay(self, seconds: float) -> None:
        self.there.delay = self.back.delay = seconds

    async def mend(self, reset: bool = False) -> None:
        """Let everything pass, with `reset` on new connections."""
        if reset:
            await self.reset()
        self.delay(0.0)
        self.there.release()
        self.back.release()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._connection(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target: asyncio.StreamWriter | None = None
        try:
            await self.there.pass_on()
            answers, target = await asyncio.open_connection(*self.target, limit=CHUNK)
            pumps = [
                asyncio.ensure_future(self._pump(reader, target, self.there)),
                asyncio.ensure_future(self._pump(answers, writer, self.back)),
            ]
            try:
                await asyncio.gather(*pumps)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass  # one side is gone, and so the other is told
        finally:
            for each in (writer, target):
                if each is not None:
                    _abort(each)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        while data := await reader.read(CHUNK):
            await direction.pass_on()
            self.bytes += len(data)
            writer.write(data)
            await writer.drain()
        await direction.pass_on()
        with suppress(OSError):
            writer.write_eof()


def _abort(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
