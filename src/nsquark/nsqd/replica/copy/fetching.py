"""The follower's requests to its primary: answers that are whole and bounded, and the upgraded stream."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast
from urllib.parse import quote, urlsplit

from nsquark.cli.flags import StartError
from nsquark.errors import NsquarkError
from nsquark.net.congestion import do_not_pace
from nsquark.nsqd.options import Options

from ..changes.access import HEADER, read_secret
from ..changes.frames import MAX_SEQUENCE, Data
from ..changes.stream import write_at_once

MOST = 256 << 20  # bytes of an answer
TIMEOUT = 30.0
LONGEST_HEAD = 64 << 10
READ = 512 << 10  # bytes that are taken from a stream at a time


class Refused(NsquarkError):
    """The primary has answered, but not with what was asked for."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(f"{status} {what}")
        self.status = status


class Primary:
    """An nsqd whose files are copied and whose stream is followed."""

    def __init__(self, options: Options, address: str, named_by: str) -> None:
        """`named_by` says in errors where the address is from. Raises StartError."""
        url = urlsplit(address)
        try:
            port = url.port
        except ValueError:
            port = -1
        if url.scheme not in ("http", "https") or not url.hostname or port == -1 or url.path.strip("/"):
            raise StartError(f"{named_by} must be http(s)://<addr>:<port>, not {address!r}")
        self.host, self.port = url.hostname, port or (4151 if url.scheme == "http" else 4152)
        self._secret = read_secret(options)
        self._tls: ssl.SSLContext | None = None
        if url.scheme == "https":
            try:
                self._tls = ssl.create_default_context(cafile=options.tls_root_ca_file or None)
                if options.tls_cert:
                    self._tls.load_cert_chain(options.tls_cert, options.tls_key or None)
            except (OSError, ssl.SSLError) as error:
                raise StartError(f"{named_by}: failed to build TLS config - {error}") from None

    async def get(self, route: str, query: dict[str, object]) -> bytes:
        """The body of a whole answer. Raises Refused, OSError and asyncio.TimeoutError."""
        async with asyncio.timeout(TIMEOUT):
            reader, writer = await self._ask(route, query, "Connection: close\r\n")
            try:
                status, headers = await _head(reader)
                length = headers.get("content-length", "")
                if not length.isdigit() or int(length) > MOST:
                    raise Refused(status, f"an answer of {length[:20]!r} bytes")
                body = await reader.readexactly(int(length))
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
                raise ConnectionError(f"the answer is cut short: {error}") from None
            finally:
                writer.close()
        if status != 200:
            raise Refused(status, body[:200].decode("utf-8", "replace"))
        return body

    async def follow(
        self, stream: str, sequence: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
        """A stream of frames, and the sequence at which the primary was. Raises as `get` does."""
        async with asyncio.timeout(TIMEOUT):
            upgrade = "Connection: Upgrade\r\nUpgrade: nsquark-replica\r\n"
            query: dict[str, object] = {"stream": stream, "from": sequence}
            reader, writer = await self._ask("/replica/stream", query, upgrade)
            try:
                status, headers = await _head(reader)
                end = headers.get("x-nsquark-sequence", "")
                if status != 101 or not end.isdigit():
                    raise Refused(status, "no stream")
            except BaseException as error:
                writer.close()
                if isinstance(error, asyncio.IncompleteReadError | asyncio.LimitOverrunError):
                    raise ConnectionError("the answer is cut short") from None
                raise
        return reader, writer, int(end)

    async def open_stream(self, stream: str, sequence: int, more: dict[str, object]) -> FrameConnection:
        """The same as `follow`, for a caller that is called with what comes. Raises as `get` does."""
        async with asyncio.timeout(TIMEOUT):
            upgrade = "Connection: Upgrade\r\nUpgrade: nsquark-replica\r\n"
            query: dict[str, object] = {"stream": stream, "from": sequence} | more
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(FrameConnection, self.host, self.port, ssl=self._tls)
            try:
                connection.write(self._request("/replica/stream", query, upgrade))
                status, headers = _parse_head(await connection.head)
                end = headers.get("x-nsquark-sequence", "")
                if status != 101 or not end.isdigit() or int(end) > MAX_SEQUENCE:
                    raise Refused(status, "no stream")
                connection.end = int(end)
            except BaseException:
                connection.close()
                raise
        return connection

    async def _ask(
        self, path: str, query: dict[str, object], headers: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=self._tls, limit=1 << 20)
        writer.write(self._request(path, query, headers))
        return reader, writer

    def _request(self, path: str, query: dict[str, object], headers: str) -> bytes:
        text = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items())
        secret = f"{HEADER}: {self._secret}\r\n" if self._secret else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        target = f"{path}?{text}" if text else path
        request = f"GET {target} HTTP/1.1\r\nHost: {host}:{self.port}\r\n{secret}{headers}\r\n"
        return request.encode("latin-1")


class FrameStream:
    """An upgraded connection: `head` is the answer's head, and what follows goes to a function.

    `end` is the sequence at which the primary was. `ended` ends with the connection, or with what the
    function raised. `FrameConnection` makes a protocol of asyncio of it.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.head: asyncio.Future[bytes] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.end = 0
        self._buffer = b""  # until `start`
        self._room = memoryview(bytearray(READ))
        self._received: Callable[[Data], None] | None = None
        self._transport: asyncio.Transport | None = None
        self._fd = -1

    def start(self, received: Callable[[Data], None]) -> None:
        """Call this function with what has come and what comes from now on. It must not keep the bytes."""
        self._received = received
        data, self._buffer = self._buffer, b""
        if data:
            self._take(data)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            write_at_once(self._transport, self._fd, [data], len(data))

    def close(self) -> None:
        self._received = _ignore
        if self._transport is not None:
            self._transport.abort()
        for future in (self.head, self.ended):
            if not future.done():
                future.cancel()

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        tls = transport.get_extra_info("sslcontext") is not None
        self._fd = -1 if sock is None or tls else sock.fileno()
        if self._fd >= 0:
            do_not_pace(self._fd)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self._take(self._room[:nbytes])

    def _take(self, data: Data) -> None:
        if self._received is not None:
            try:
                self._received(data)
            except Exception as error:
                self.fail(error)
            return
        self._buffer += data
        if not self.head.done():
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if end:
                self._buffer = rest
                self.head.set_result(head)
            elif len(self._buffer) > LONGEST_HEAD:
                self.fail(ConnectionError("no HTTP: the head does not end"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self._fd = None, -1
        self.fail(ConnectionError("the primary has ended the stream"))

    def fail(self, error: Exception) -> None:
        """End the connection, and have the tasks that wait for it see the error."""
        if self._transport is not None:
            self._transport.abort()
        self._received = _ignore
        for future in (self.head, self.ended):
            if not future.done():
                future.set_exception(error)
                future.exception()  # whether or not a task waits for it


class FrameConnection(FrameStream, asyncio.BufferedProtocol):
    """A class that is compiled to a C type cannot be a subclass of this one in Python."""

    __slots__ = ()


def _ignore(_data: Data) -> None:
    pass


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    return _parse_head(await reader.readuntil(b"\r\n\r\n"))


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    text = head.decode("latin-1")
    first, *lines = text.split("\r\n")
    status = first.split(" ")[1:2]
    if not status or not status[0].isdigit():
        raise ConnectionError(f"no HTTP: {first[:60]!r}")
    pairs = (line.partition(":") for line in lines if line)
    return int(status[0]), {name.lower(): value.strip() for name, _, value in pairs}
