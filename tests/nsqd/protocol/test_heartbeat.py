"""Heartbeats and deadlines, by a clock that the test reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nsquark.nsqd.protocol.connection import Connection
from nsquark.nsqd.protocol.read_states import AUTHORIZING, UPGRADING, ReadState
from tests.daemon import Client, identify, pub, until
from tests.nsqd.api import Api, running

INTERVAL = 30_000_000_000  # ns: what a client has that asks for nothing
HEARTBEAT = (0, b"_heartbeat_")


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running(tmp_path) as api:
        yield api


async def connected(api: Api) -> tuple[Client, Connection]:
    client = await api.client()
    await client.pub("t", b"x")
    [connection] = api.broker.connections
    return client, connection


async def test_a_heartbeat_comes_every_interval(api: Api) -> None:
    client, connection = await connected(api)
    now = connection.heard_at
    connection.heartbeat.wake(now + INTERVAL // 2)  # early: nothing is due
    for beat in (1, 2):
        connection.heard_at = now + beat * INTERVAL
        connection.heartbeat.wake(now + beat * INTERVAL + 10_000_000)
    client.send(pub("t", b"x"))
    assert [tuple(await client._read_frame()) for _ in range(3)] == [HEARTBEAT, HEARTBEAT, (0, b"OK")]


async def test_two_silent_intervals_end_a_connection(api: Api) -> None:
    _, connection = await connected(api)
    connection.heartbeat.wake(connection.last_heard() + 2 * INTERVAL - 1)
    assert not connection.is_closing()
    connection.heartbeat.wake(connection.last_heard() + 2 * INTERVAL)
    await until(lambda: not api.broker.connections)


async def test_silence_within_a_command_is_told(api: Api) -> None:
    client, connection = await connected(api)
    client.send(b"MPUB t\n\0\0")
    await until(lambda: connection._parser.cut_short() is not None or connection._stream.kept)
    connection.heartbeat.wake(connection.last_heard() + 2 * INTERVAL)
    assert await client.error() == b"E_BAD_BODY MPUB failed to read body size"


async def test_publishes_on_the_short_way_are_signs_of_life(api: Api) -> None:
    client, connection = await connected(api)
    before = connection.last_heard()
    await client.pub("t", b"x")
    assert connection._stream.following
    assert connection.last_heard() > before


@pytest.mark.parametrize("state", [AUTHORIZING, UPGRADING])
async def test_while_nsqd_is_waited_for_silence_does_not_count(api: Api, state: ReadState) -> None:
    _, connection = await connected(api)
    now = connection.last_heard()
    connection.wait(state)
    for number in range(1, 10):
        connection.heartbeat.wake(now + number * INTERVAL)
    assert not connection.is_closing()


async def test_a_client_that_does_not_read_for_an_interval_is_let_go(api: Api) -> None:
    _, connection = await connected(api)
    connection.pause_writing()
    connection.heartbeat.wake(connection.unread_since + INTERVAL - 1)
    assert not connection.is_closing()
    connection.heartbeat.wake(connection.unread_since + INTERVAL)
    assert connection.is_closing()


async def test_without_heartbeats_there_are_no_deadlines(api: Api) -> None:
    client, connection = await connected(api)
    client.send(identify(heartbeat_interval=-1))
    await client.ok()
    connection.heartbeat.wake(connection.heard_at + 1000 * INTERVAL)
    assert not connection.is_closing()
    await client.pub("t", b"x")
