"""What an nsqd may send, and what it is answered; what it must not, and that no other connection notices."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import socket
import struct

import pytest

from nsquark.nsqlookupd import connection
from nsquark.nsqlookupd.connection import Connection
from nsquark.wire import LookupParser
from tests.daemon import PATIENCE, until
from tests.nsqlookupd.served import MAGIC, Lookupd, identify, running


async def test_identify_tells_where_to_ask_over_http(lookupd: Lookupd) -> None:
    nsqd = await lookupd.connect()
    assert json.loads(await nsqd.ask(identify())) == {
        "broadcast_address": "lookup1.example",
        "hostname": os.uname().nodename,
        "http_port": lookupd.http_port,
        "tcp_port": lookupd.tcp_port,
        "version": "1.3.0",
    }


async def test_commands_may_be_pipelined(lookupd: Lookupd) -> None:
    nsqd = await lookupd.connect()
    nsqd.send(identify() + b"REGISTER orders archive\nPING\nREGISTER events\nUNREGISTER events\n")
    answers = [await nsqd.answer() for _ in range(5)]
    assert answers[0].startswith(b'{"broadcast_address":')
    assert answers[1:] == [b"OK"] * 4


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"FOO bar\n", b"E_INVALID invalid command FOO"),
        (b"ping\n", b"E_INVALID invalid command ping"),
        (b"\r\n", b"E_INVALID invalid command "),
        (b"REGISTER\n", b"E_INVALID client must IDENTIFY"),
        (b"REGISTER t\n", b"E_INVALID client must IDENTIFY"),
        (b"UNREGISTER t\n", b"E_INVALID client must IDENTIFY"),
        (b"IDENTIFY\n\xff\xff\xff\xff", b"E_BAD_BODY IDENTIFY failed to read body"),
        (b"IDENTIFY\n\x80\0\0\0", b"E_BAD_BODY IDENTIFY failed to read body"),
        (b"IDENTIFY\n\x7f\xff\xff\xff", b"E_BAD_BODY IDENTIFY failed to read body"),
        (b"IDENTIFY\n\0\0\0\0", b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"IDENTIFY\n\0\0\0\4null", b"E_BAD_BODY IDENTIFY missing fields"),
        (identify(tcp_port="4150"), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify(version=""), b"E_BAD_BODY IDENTIFY missing fields"),
        (b"x" * 100_000, b"E_INVALID command line longer than 16384"),
    ],
)
async def test_before_identify(lookupd: Lookupd, sent: bytes, answer: bytes) -> None:
    nsqd = await lookupd.connect()
    assert await nsqd.ask(sent) == answer
    await nsqd.closed()
    assert await lookupd.get("/topics") == {"topics": []}


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"IDENTIFY\n", b"E_INVALID cannot IDENTIFY again"),
        (b"REGISTER\n", b"E_INVALID REGISTER insufficient number of params"),
        (b"UNREGISTER \n", b"E_INVALID UNREGISTER insufficient number of params"),
        (b"REGISTER  c\n", b"E_BAD_TOPIC REGISTER topic name '' is not valid"),
        (b"REGISTER *\n", b"E_BAD_TOPIC REGISTER topic name '*' is not valid"),
        (b"UNREGISTER a\xffb c\n", b"E_BAD_TOPIC UNREGISTER topic name 'a\xffb' is not valid"),
        (b"REGISTER t c!\n", b"E_BAD_CHANNEL REGISTER channel name 'c!' is not valid"),
        (b"UNREGISTER t #ephemeral\n", b"E_BAD_CHANNEL UNREGISTER channel name '#ephemeral' is not valid"),
    ],
)
async def test_after_identify(lookupd: Lookupd, sent: bytes, answer: bytes) -> None:
    nsqd = await lookupd.producer("REGISTER orders")
    assert await nsqd.ask(sent) == answer
    # before the peer has closed, or even read it
    assert await lookupd.producers("orders") == []
    await nsqd.closed()


@pytest.mark.parametrize("magic", [b"  V2", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\0"])
async def test_another_protocol_is_refused(lookupd: Lookupd, magic: bytes) -> None:
    nsqd = await lookupd.connect(magic)
    assert await nsqd.answer() == b"E_BAD_PROTOCOL"
    await nsqd.closed()


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"IDENTIFY\n\0\0", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\0\0\0\5{", b"E_BAD_BODY IDENTIFY failed to read body"),
    ],
)
async def test_a_body_that_ends_too_soon(lookupd: Lookupd, sent: bytes, answer: bytes) -> None:
    nsqd = await lookupd.connect()
    nsqd.send(sent)
    nsqd.writer.write_eof()
    assert await nsqd.answer() == answer
    await nsqd.closed()


async def test_half_a_line_is_not_executed(lookupd: Lookupd) -> None:
    nsqd = await lookupd.producer("REGISTER orders")
    nsqd.send(b"PING\nREGISTER half")
    nsqd.writer.write_eof()
    assert await nsqd.answer() == b"OK"
    await nsqd.closed()
    await until(lambda: not lookupd.directory.connections)
    assert await lookupd.get("/topics") == {"topics": ["orders"]}


async def test_two_spaces_register_the_topic_alone(lookupd: Lookupd) -> None:
    await lookupd.producer("REGISTER orders  archive", "REGISTER events archive surplus parameters")
    assert await lookupd.get("/channels?topic=orders") == {"channels": []}
    assert await lookupd.get("/channels?topic=events") == {"channels": ["archive"]}


async def test_only_identify_and_ping_count_as_news(lookupd: Lookupd) -> None:
    nsqd = await lookupd.producer("REGISTER orders")
    (peer,) = lookupd.directory.registrations.peers
    peer.last_update = before = peer.last_update - 600_000_000_000
    await nsqd.ok("REGISTER orders", "UNREGISTER orders archive", "REGISTER events")
    assert peer.last_update == before
    assert await lookupd.producers("orders") == []
    assert await lookupd.get("/nodes") == {"producers": []}
    await nsqd.ok("PING")
    assert await lookupd.producers("orders") == ["nsqd1.example"]


async def test_unregistering_the_topic_takes_the_channels_along(lookupd: Lookupd) -> None:
    nsqd = await lookupd.producer("REGISTER orders archive", "REGISTER orders billing", "UNREGISTER orders")
    assert await lookupd.get("/lookup?topic=orders") == {"channels": ["archive", "billing"], "producers": []}
    assert list(await lookupd.get("/debug")) == ["client::"]
    await nsqd.ok("UNREGISTER orders archive", "UNREGISTER unknown", "UNREGISTER un known")


@pytest.mark.parametrize("channel_first", [True, False])
async def test_ephemeral_names_go_in_either_order(lookupd: Lookupd, channel_first: bool) -> None:
    nsqd = await lookupd.producer("REGISTER x#ephemeral y#ephemeral")
    lines = ["UNREGISTER x#ephemeral y#ephemeral", "UNREGISTER x#ephemeral"]
    await nsqd.ok(*(lines if channel_first else reversed(lines)))
    assert await lookupd.get("/topics") == {"topics": []}
    assert await lookupd.get("/channels?topic=x%23ephemeral") == {"channels": []}


async def test_too_many_registrations_end_that_connection_alone() -> None:
    async with running(max_registrations_per_producer=4) as lookupd:
        modest = await lookupd.producer("REGISTER a b", "REGISTER c d", broadcast_address="modest")
        greedy = await lookupd.producer("REGISTER a b", "REGISTER c d", broadcast_address="greedy")
        assert await greedy.ask(b"REGISTER e\n") == (
            b"E_INVALID REGISTER refused: more than 4 registrations of one producer"
        )
        await greedy.closed()
        assert await lookupd.producers("a") == ["modest"]
        await modest.ok("PING")


# ---- clients that do nothing, or too much


async def test_who_does_not_identify_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDENTIFY_WITHIN", 0.05)
    async with running() as lookupd:
        good = await lookupd.producer("REGISTER orders")
        for greeting in (b"", b"  V", b"  V1", b"  V1PING\n", b"  V1IDENTIFY\n\0\0\1\0{"):
            silent = await lookupd.connect(greeting)
            async with asyncio.timeout(PATIENCE):
                await silent.reader.read()
        await good.ok("PING")
        assert len(lookupd.directory.connections) == 1


async def test_who_does_not_read_is_not_read_from(lookupd: Lookupd) -> None:
    """Millions of PINGs, and the answers are not taken: what piles up is the peer's problem."""
    with socket.create_connection(("127.0.0.1", lookupd.tcp_port)) as flood:
        flood.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(flood, b"  V1" + identify())
        sent = 0
        try:
            while True:
                async with asyncio.timeout(0.5):
                    await loop.sock_sendall(flood, b"PING\n" * 20_000)
                sent += 1
                assert sent < 1000, "it reads on and on"
        except TimeoutError:
            pass
        (stuck,) = lookupd.directory.connections
        assert stuck._transport.get_write_buffer_size() < 1 << 20
        nsqd = await lookupd.producer("REGISTER orders", "PING")
        assert await lookupd.producers("orders") == ["nsqd1.example"]
        nsqd.close()


async def test_garbage_disturbs_nobody(lookupd: Lookupd) -> None:
    good = await lookupd.producer("REGISTER orders archive")
    for garbage in (os.urandom(10_000), b"  V1" + os.urandom(10_000), b"  V1" + identify() + b"\0" * 20_000):
        bad = await lookupd.connect(garbage)
        async with asyncio.timeout(PATIENCE):
            try:
                while await bad.reader.read(65536):
                    pass
            except ConnectionResetError:
                pass
    await good.ok("PING")
    assert await lookupd.producers("orders") == ["nsqd1.example"]


async def test_a_reset_is_a_goodbye_too(lookupd: Lookupd) -> None:
    nsqd = await lookupd.producer("REGISTER orders")
    nsqd.writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    nsqd.writer.transport.abort()
    await until(lambda: not lookupd.directory.connections)
    assert await lookupd.get("/lookup?topic=orders") == {"channels": [], "producers": []}


@pytest.mark.parametrize(
    "said",
    [
        b"",
        MAGIC + b"IDENTIFY\n" + (1 << 20).to_bytes(4, "big") + bytes(500_000),
        MAGIC + identify() + b"REGISTER t c\n" + b"x" * 10_000,
        MAGIC + b"NONSENSE\n",
    ],
)
async def test_who_hangs_up_leaves_nothing(said: bytes) -> None:
    def held() -> int:
        return sum(type(each) in (Connection, LookupParser) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    logging.disable()
    try:
        async with running() as lookupd:
            before = held()
            _, writer = await asyncio.open_connection("127.0.0.1", lookupd.tcp_port)
            writer.write(said)
            await until(lambda: held() == before + 2)
            writer.transport.abort()
            await until(lambda: held() == before)
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()
