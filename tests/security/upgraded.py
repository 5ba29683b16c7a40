"""A V2 connection with layers, made by hand: every step can be left out or done wrong."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any

from nsquark.wire.compression import Deflate, Snappy, Stream
from tests.daemon import RESPONSE, Client, Nsqd, identify, sized


class _Reader:
    """What comes through a compressed stream."""

    def __init__(self, reader: asyncio.StreamReader, stream: Stream) -> None:
        self._reader = reader
        self._stream = stream
        self._ready = bytearray()

    async def readexactly(self, count: int) -> bytes:
        while len(self._ready) < count:
            data = await self._reader.read(1 << 16)
            if not data:
                raise asyncio.IncompleteReadError(bytes(self._ready), count)
            for piece in self._stream.decompress(data):
                self._ready += piece
        taken = bytes(self._ready[:count])
        del self._ready[:count]
        return taken

    async def read(self) -> bytes:
        while data := await self._reader.read(1 << 16):
            for piece in self._stream.decompress(data):
                self._ready += piece
        return bytes(self._ready)


class _Writer:
    def __init__(self, writer: asyncio.StreamWriter, stream: Stream) -> None:
        self._writer = writer
        self._stream = stream

    def write(self, data: bytes) -> None:
        self._writer.write(self._stream.compress(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


def compress_with(client: Client, stream: Stream) -> None:
    client.reader = _Reader(client.reader, stream)  # type: ignore[assignment]
    client.writer = _Writer(client.writer, stream)  # type: ignore[assignment]


async def negotiate(client: Client, **asked: object) -> dict[str, Any]:
    """The answer to an IDENTIFY."""
    client.send(identify(feature_negotiation=True, **asked))
    frame = await client.answer()
    assert frame.kind == RESPONSE, frame
    answer: dict[str, Any] = json.loads(frame.data)
    return answer


async def connect(
    nsqd: Nsqd,
    tls: ssl.SSLContext | None = None,
    compression: str = "",
    secret: str = "",
    **asked: object,
) -> Client:
    """A client that has been through all of it."""
    client = await nsqd.connect()
    if compression:
        asked[compression] = True
    answer = await negotiate(client, tls_v1=tls is not None, **asked)
    assert answer["tls_v1"] is (tls is not None)
    if tls is not None:
        await client.writer.start_tls(tls, server_hostname="localhost")
        await client.ok()
    if compression:
        assert answer[compression] is True
        compress_with(client, Snappy() if compression == "snappy" else Deflate(answer["deflate_level"]))
        await client.ok()
    if secret:
        client.send(auth(secret))
        assert (await client.answer()).kind == RESPONSE
    return client


def auth(secret: str) -> bytes:
    return b"AUTH\n" + sized(secret.encode())
