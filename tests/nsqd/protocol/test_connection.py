"""How connections begin and end. The states between are in test_read_states.py."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from nsquark.nsqd.protocol import connection as connection_module
from nsquark.nsqd.protocol.read_states import CLOSED, LINGERING
from tests.daemon import pub, until
from tests.nsqd.api import running


async def test_a_connection_is_known_while_it_lasts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(tmp_path) as api:
        client = await api.client()
        await client.pub("t", b"x")
        [connection] = api.broker.connections
        name = connection.session.remote_address
        assert f"TCP: new client({name})" in caplog.text
        client.close()
        await until(lambda: not api.broker.connections)
        assert connection.read_state is CLOSED
        assert f"PROTOCOL(V2): [{name}] exiting ioloop" in caplog.text


async def test_a_broker_that_stops_takes_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        api.broker.stopping = True
        client = await api.client()
        await client.closed()
        assert not api.broker.connections


async def test_a_client_that_does_not_close_its_half_is_closed_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "LINGER", 0.05)
    async with running(tmp_path) as api:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.broker.tcp_port)
        writer.write(b"  V2BOGUS\n")
        await until(lambda: any(each.read_state is LINGERING for each in api.broker.connections))
        writer.write(pub("t", b"x"))  # which is dropped
        await until(lambda: not api.broker.connections)
        assert b"E_INVALID" in await reader.read()
        assert not api.broker.topics
        writer.close()


async def test_an_error_that_nobody_expected_ends_one_connection_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as api:
        client, other = await api.client(), await api.client()
        await client.pub("t", b"x")
        await other.pub("t", b"x")
        victim = next(iter(api.broker.connections))
        victim.failed(RuntimeError("never mind"))
        await until(lambda: len(api.broker.connections) == 1)
        assert "never mind" in caplog.text
        assert victim.read_state is CLOSED
