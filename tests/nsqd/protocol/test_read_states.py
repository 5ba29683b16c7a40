"""The table of read states, and that real connections walk along it."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from nsquark.errors import PubFailed
from nsquark.nsqd import server
from nsquark.nsqd.protocol import connection as connection_module
from nsquark.nsqd.protocol import reading
from nsquark.nsqd.protocol.connection import Connection
from nsquark.nsqd.protocol.read_states import (
    AUTHORIZING,
    BUSY,
    CLOSED,
    CLOSING,
    DISCARDING,
    ENDED,
    HALF_CLOSED,
    LINGERING,
    READING,
    RECEIVING,
    TRANSITIONS,
    UNREAD,
    UPGRADING,
    WAITING,
    ReadState,
    check_transition,
)
from nsquark.wire import OK
from tests.daemon import identify, mpub, pub, sized, until
from tests.nsqd.api import running
from tests.security.auth_server import AuthServer, entry

FAILED = [READING, DISCARDING, LINGERING, CLOSING, CLOSED]


# ---- the table


def test_every_state_has_a_row_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(ReadState)
    reached = {READING}
    while more := {each for state in reached for each in TRANSITIONS[state]} - reached:
        reached |= more
    assert reached == set(ReadState)


def test_every_state_leads_to_the_end_and_none_leads_back_from_it() -> None:
    assert not TRANSITIONS[CLOSED]
    for state in set(ReadState) - {CLOSED}:
        assert CLOSED in TRANSITIONS[state]
        assert CLOSING in TRANSITIONS[state]
    for state in ENDED:
        assert TRANSITIONS[state] <= ENDED


def test_what_pauses_reading_begins_while_reading_and_goes_back_to_it() -> None:
    for pausing in (*WAITING, UNREAD):
        assert READING in TRANSITIONS[pausing]
        assert {state for state in ReadState if pausing in TRANSITIONS[state]} == {READING}


def test_no_state_is_in_groups_that_exclude_each_other() -> None:
    assert not WAITING & (ENDED | RECEIVING)
    assert set(ReadState) - WAITING - ENDED == {READING, UNREAD}


@pytest.mark.parametrize("state", ReadState)
@pytest.mark.parametrize("following", ReadState)
def test_a_step_beside_the_table_is_refused(state: ReadState, following: ReadState) -> None:
    if following in TRANSITIONS[state]:
        check_transition(state, following)
        return
    with pytest.raises(RuntimeError, match=f"{state.name} cannot be {following.name}"):
        check_transition(state, following)


# ---- connections


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[ReadState]:
    """The states that the connections of the test go through: with one connection, its way."""
    states = [READING]

    def noted(state: ReadState, following: ReadState) -> None:
        assert state is states[-1]
        check_transition(state, following)
        states.append(following)

    monkeypatch.setattr(reading, "check_transition", noted)
    return states


def in_order(states: list[ReadState], wanted: list[ReadState]) -> bool:
    """Whether the states come in this order, once repeated steps are left out."""
    return [states[0], *(b for a, b in pairwise(states) if a is not b)] == wanted


async def test_commands_that_take_long_are_done_over_several_turns(
    tmp_path: Path, walked: list[ReadState], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PARSE_NS", 0)
    async with running(tmp_path) as api:
        client = await api.client()
        client.send(b"NOP\nNOP\n" + pub("t", b"x"))
        await client.ok()
        assert in_order(walked, [READING, BUSY, READING, BUSY, READING])


async def test_the_answer_of_an_auth_server_is_waited_for(tmp_path: Path, walked: list[ReadState]) -> None:
    async with AuthServer({"s": [entry()]}) as server:
        async with running(tmp_path, auth_http_address=[server.address]) as api:
            client = await api.client()
            client.send(b"AUTH\n" + sized(b"s") + pub("t", b"x"))
            await client.answer()
            await client.ok()
            assert in_order(walked, [READING, AUTHORIZING, READING])


async def test_who_is_not_authorized_lingers_and_is_closed(tmp_path: Path, walked: list[ReadState]) -> None:
    async with AuthServer({"s": [entry()]}) as server:
        async with running(tmp_path, auth_http_address=[server.address]) as api:
            client = await api.client()
            client.send(b"AUTH\n" + sized(b"unknown") + pub("t", b"x"))
            assert (await client.error()).startswith(b"E_AUTH_FAILED")
            client.close()
            await until(lambda: not api.broker.connections)
            assert in_order(walked, [READING, AUTHORIZING, *FAILED[1:]])


async def test_an_upgrade_is_waited_for(tmp_path: Path, walked: list[ReadState]) -> None:
    async with running(tmp_path) as api:
        client = await api.client()
        client.send(identify(feature_negotiation=True, snappy=True))
        await client.answer()
        await until(lambda: walked[-1] is READING and len(walked) > 1)
        assert in_order(walked, [READING, UPGRADING, READING])


async def test_an_error_is_told_before_the_end(tmp_path: Path, walked: list[ReadState]) -> None:
    async with running(tmp_path) as api:
        client = await api.client()
        client.send(b"BOGUS\n" + pub("t", b"x"))
        assert await client.error() == b"E_INVALID invalid command BOGUS"
        client.close()
        await until(lambda: not api.broker.connections)
        assert in_order(walked, FAILED)
        assert not api.broker.topics


@pytest.mark.parametrize("command", [b"", b"NOP\n", b"PUB t\n", pub("t", b"x")])
async def test_a_client_that_closes_its_half(tmp_path: Path, walked: list[ReadState], command: bytes) -> None:
    async with running(tmp_path) as api:
        client = await api.client()
        client.send(command)
        client.half_close()
        await until(lambda: not api.broker.connections)
        assert in_order(walked, [READING, HALF_CLOSED, CLOSING, CLOSED])


async def test_an_end_within_a_publish_is_understood_however_long_that_takes(
    tmp_path: Path, walked: list[ReadState], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as api:
        client = await api.client()
        command = mpub("t", [b"xyz"])
        client.send(command)
        await client.ok()
        monkeypatch.setattr(reading, "PARSE_NS", 0)
        client.send(command[:-1])
        client.half_close()
        assert await client.error() == b"E_BAD_MESSAGE MPUB failed to read message body"
        await until(lambda: not api.broker.connections)
        assert in_order(walked, [READING, HALF_CLOSED, CLOSING, CLOSED])


async def test_a_reset_ends_it_at_once(tmp_path: Path, walked: list[ReadState]) -> None:
    async with running(tmp_path) as api:
        client = await api.client()
        await client.pub("t", b"x")
        sock = client.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing is a reset
        client.abort()
        await until(lambda: not api.broker.connections)
        assert walked[-1] is CLOSED


async def test_a_client_that_does_not_read_is_not_read_from(
    tmp_path: Path, walked: list[ReadState], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "UNREAD_ANSWERS", 0)
    monkeypatch.setattr(connection_module, "HIGH_WATER", 1000)
    loop = asyncio.get_running_loop()
    many = 100_000
    async with running(tmp_path) as api:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", api.broker.tcp_port))
            await until(lambda: api.broker.connections)
            [connection] = api.broker.connections
            ours = connection._transport.get_extra_info("socket")
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            sending = asyncio.ensure_future(loop.sock_sendall(client, b"  V2" + pub("t", b"x") * many))
            await until(lambda: connection.read_state is UNREAD)
            got = 0
            while got < many * len(OK):
                got += len(await loop.sock_recv(client, 1 << 20))
            await sending
            assert connection.read_state is READING
            assert walked.count(UNREAD) < walked.count(READING)
            assert set(walked) <= {READING, BUSY, UNREAD}


@pytest.mark.parametrize("state", [BUSY, AUTHORIZING, UPGRADING])
async def test_a_publish_that_cannot_be_stored_ends_a_connection_that_waits(
    tmp_path: Path, walked: list[ReadState], state: ReadState
) -> None:
    """Its answer comes out of turn: after the error the client is heard to its end."""
    async with running(tmp_path) as api:
        client = await api.client()
        client.send(b"NOP\n")
        await until(lambda: api.broker.connections)
        [connection] = api.broker.connections
        await until(lambda: connection.greeted)
        answer = connection._answers.expect(PubFailed)
        connection.wait(state)
        answer.settle("the disk is full")
        assert await client.error() == b"E_PUB_FAILED PUB failed the disk is full"
        client.close()
        await until(lambda: not api.broker.connections)
        assert in_order(walked, [READING, state, LINGERING, CLOSING, CLOSED])


@pytest.mark.skipif(server.new_poll(bytearray(1 << 18)) is None, reason="there is no SocketPoll here")
async def test_what_comes_after_the_last_answer_is_dropped(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        client = await api.client()
        await client.pub("t", b"1")
        [connection] = api.broker.connections
        answer = connection._answers.expect(PubFailed)  # a publish that takes its time
        client.send(b"BOGUS\n")
        await until(lambda: connection.read_state is DISCARDING)
        client.send(pub("t", b"2") + b"BOGUS\n")
        await (await api.client()).pub("other", b"3")  # it is read by now
        answer.settle(None)
        await client.ok()
        assert await client.error() == b"E_INVALID invalid command BOGUS"
        assert (await api.topic("t"))["message_count"] == 1


def unwanted(connection: Connection) -> list[Callable[[], None]]:
    return [lambda: connection.put_off(lambda: None), lambda: connection.wait(AUTHORIZING)]


async def test_a_fault_of_ours_is_found_where_it_is_made(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        client = await api.client()
        client.send(b"BOGUS\n")
        await until(lambda: any(each.read_state is LINGERING for each in api.broker.connections))
        [connection] = api.broker.connections
        for step in unwanted(connection):
            with pytest.raises(RuntimeError, match="LINGERING cannot be"):
                step()
