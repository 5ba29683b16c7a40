"""An OK through each layer, and what a connection is afterwards. With TLS: tests/security."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsquark.nsqd.protocol.read_states import LINGERING, READING
from nsquark.wire import OK
from nsquark.wire.compression import Deflate, Snappy, Stream
from tests.daemon import identify, pub, until
from tests.nsqd.api import running


@pytest.mark.parametrize(("name", "stream"), [("snappy", Snappy()), ("deflate", Deflate())])
async def test_compression_begins_with_an_ok(tmp_path: Path, name: str, stream: Stream) -> None:
    async with running(tmp_path) as api:
        client = await api.client()
        client.send(identify(feature_negotiation=True, **{name: True}))
        assert json.loads((await client.answer()).data)[name] is True
        said = b""
        while said != OK:
            said += b"".join(map(bytes, stream.decompress(await client.reader.read(100))))
        client.writer.write(stream.compress(pub("t", b"x")))
        said = b""
        while said != OK:
            said += b"".join(map(bytes, stream.decompress(await client.reader.read(100))))
        [connection] = api.broker.connections
        assert getattr(connection.session, name)
        assert connection.read_state is READING
        assert (await api.topic("t"))["message_count"] == 1


async def test_both_compressions_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        client = await api.client()
        client.send(identify(feature_negotiation=True, snappy=True, deflate=True))
        assert (await client.error()).startswith(b"E_IDENTIFY_FAILED")
        await until(lambda: all(each.read_state is LINGERING for each in api.broker.connections))
