"""Conversations between nsqd and nsqlookupd as NSQ 1.3.0 has them, one side of each played from the record.

The record says what nsqd (>) and nsqlookupd (<) put on the wire, in order; what is ours must send its half
byte for byte. Names and ports that differ from machine to machine are filled in.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from tests.daemon import PATIENCE, sized
from tests.nsqd.api import running as running_nsqd
from tests.nsqlookupd.served import running as running_lookupd

NSQD, LOOKUPD = ">", "<"
Record = Sequence[tuple[str, bytes]]

OF_NSQD = (
    b'{"broadcast_address":"nsqd1.example","hostname":"%(host)b","http_port":%(http)d,"tcp_port":%(tcp)d,'
    b'"version":"1.3.0"}'
)
OF_LOOKUPD = (
    b'{"broadcast_address":"lookup1.example","hostname":"%(host)b","http_port":%(http)d,"tcp_port":%(tcp)d,'
    b'"version":"1.3.0"}'
)
OK = (LOOKUPD, b"\0\0\0\2OK")


def record(nsqd: bytes, lookupd: bytes, *lines: bytes) -> Record:
    found = [(NSQD, b"  V1"), (NSQD, b"IDENTIFY\n" + sized(nsqd)), (LOOKUPD, sized(lookupd))]
    for line in lines:
        found += [(NSQD, line), OK]
    return found


async def play(
    part: str, conversation: Record, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Say one half, and see that the other is said."""
    for who, data in conversation:
        if who == part:
            writer.write(data)
        else:
            async with asyncio.timeout(PATIENCE):
                assert await reader.readexactly(len(data)) == data


async def test_gos_nsqd_and_our_nsqlookupd() -> None:
    """An nsqd with a topic of old gets a topic with two channels, deletes it, and is idle for a while."""
    async with running_lookupd() as lookupd:
        ours = {"host": os.uname().nodename.encode(), "http": lookupd.http_port, "tcp": lookupd.tcp_port}
        before = record(
            OF_NSQD % {b"host": b"nsqd1", b"http": 4151, b"tcp": 4150},
            OF_LOOKUPD % {name.encode(): value for name, value in ours.items()},
            b"REGISTER old archive\n",
            b"REGISTER t\n",
            b"REGISTER t c\n",
            b"REGISTER t d#ephemeral\n",
        )
        after = [
            (NSQD, b"UNREGISTER t\n"),
            OK,
            (NSQD, b"UNREGISTER t c\n"),
            OK,
            (NSQD, b"UNREGISTER t d#ephemeral\n"),
            OK,
            (NSQD, b"PING\n"),
            OK,
        ]
        nsqd = await lookupd.connect(magic=b"")
        await play(NSQD, before, nsqd.reader, nsqd.writer)
        assert await lookupd.get("/topics") == {"topics": ["old", "t"]}
        assert await lookupd.get("/channels?topic=t") == {"channels": ["c", "d#ephemeral"]}
        assert await lookupd.producers("t") == ["nsqd1.example"]
        await play(NSQD, after, nsqd.reader, nsqd.writer)
        assert await lookupd.get("/lookup?topic=t") == {"channels": ["c"], "producers": []}
        (node,) = (await lookupd.get("/nodes"))["producers"]
        assert (node["topics"], node["tombstones"]) == (["old"], [False])


async def test_our_nsqd_and_gos_nsqlookupd(tmp_path: Path) -> None:
    """The same from the other side; ours takes its channels away before the topic, so that nothing warns."""
    done = asyncio.Event()
    steps: asyncio.Queue[Record] = asyncio.Queue()

    async def lookupd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await play(LOOKUPD, await steps.get(), reader, writer)
                done.set()
        finally:
            writer.close()

    async with running_nsqd(tmp_path, broadcast_address="nsqd1.example") as api:
        await api.done("/topic/create?topic=old")
        await api.done("/channel/create?topic=old&channel=archive")
        server = await asyncio.start_server(lookupd, "127.0.0.1", 0)
        # There is no HTTP port where it says that it has one: that is only logged.
        theirs = {b"host": b"lookup1", b"http": 1, b"tcp": server.sockets[0].getsockname()[1]}
        ours = {
            b"host": os.uname().nodename.encode(),
            b"http": api.broker.http_port,
            b"tcp": api.broker.tcp_port,
        }
        from_lookupd = OF_LOOKUPD.replace(b"lookup1.example", b"127.0.0.1") % theirs
        for record_, posts in (
            (record(OF_NSQD % ours, from_lookupd, b"REGISTER old archive\n"), ()),
            ([(NSQD, b"REGISTER t\n"), OK], ("/topic/create?topic=t",)),
            ([(NSQD, b"REGISTER t c\n"), OK], ("/channel/create?topic=t&channel=c",)),
            ([(NSQD, b"REGISTER t d#ephemeral\n"), OK], ("/channel/create?topic=t&channel=d%23ephemeral",)),
            ([(NSQD, b"UNREGISTER t c\n"), OK], ("/channel/delete?topic=t&channel=c",)),
            ([(NSQD, b"UNREGISTER t d#ephemeral\nUNREGISTER t\n"), OK, OK], ("/topic/delete?topic=t",)),
        ):
            done.clear()
            steps.put_nowait(record_)
            if not posts:
                address = f"127.0.0.1:{theirs[b'tcp']}"
                assert (
                    await api.put("/config/nsqlookupd_tcp_addresses", json.dumps([address]).encode())
                ).status == 200
            for path in posts:
                await api.done(path)
            async with asyncio.timeout(PATIENCE):
                await done.wait()
        server.close()


def test_the_record_is_the_one_of_the_specification() -> None:
    document = OF_NSQD % {b"host": b"nsqd1", b"http": 4151, b"tcp": 4150}
    assert struct.pack(">i", len(document)) == b"\0\0\0\x6b"
    document = OF_LOOKUPD % {b"host": b"lookup1", b"http": 4161, b"tcp": 4160}
    assert struct.pack(">i", len(document)) == b"\0\0\0\x6f"
