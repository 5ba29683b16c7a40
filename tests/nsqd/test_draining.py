"""SIGTERM: nsqd leaves its lookupds, consumers finish, everything is stored. A second one waits for none."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from tests.daemon import Closed, Nsqd, Nsqlookupd, until


async def ended(nsqd: Nsqd) -> int:
    await until(lambda: not nsqd.running)
    return nsqd.process.returncode


async def test_consumers_finish_what_they_have_and_get_no_more(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data").start("--drain-timeout=60s") as nsqd:
        publisher, consumer = await nsqd.connect(), await nsqd.connect()
        await publisher.mpub("t", [b"one", b"two"])
        await consumer.sub("t", "ch", rdy=1)
        message = await consumer.message()
        nsqd.process.send_signal(signal.SIGTERM)
        nsqd.wait_for_line("consumers have 60 s to answer 1 messages")

        assert await nsqd.http("GET", "/ready") == (503, b"NOK - stopping")
        assert await nsqd.http("GET", "/live") == (200, b"OK")
        assert await nsqd.http("GET", "/ping") == (200, b"OK")
        with pytest.raises(Closed):
            await nsqd.connect()
        publisher.send(b"SUB t other\n")
        assert await publisher.error() == b"E_SUB_FAILED SUB failed nsqd is stopping"
        await nsqd.post("/pub?topic=t", b"three")  # publishes are taken to the end
        consumer.rdy(10)
        consumer.touch(message)
        assert not consumer.messages
        assert nsqd.running

        consumer.fin(message)
        assert await ended(nsqd) == 0
        assert not consumer.messages
        with Nsqd(tmp_path / "data").start() as again:
            consumer = await again.connect()
            await consumer.sub("t", "ch", rdy=5)
            got = [await consumer.message(), await consumer.message()]
            assert [(each.body, each.attempts) for each in got] == [(b"two", 1), (b"three", 1)]


async def test_a_second_signal_waits_for_no_consumer(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data").start("--drain-timeout=10m") as nsqd:
        client = await nsqd.connect()
        await client.pub("t", b"one")
        await client.sub("t", "ch", rdy=1)
        await client.message()
        nsqd.process.send_signal(signal.SIGTERM)
        nsqd.wait_for_line("consumers have 600 s to answer 1 messages")
        assert nsqd.stop() == 0
        nsqd.wait_for_line("1 messages were not answered, and will be delivered again")


async def test_the_time_is_bounded_and_nothing_in_flight_takes_none(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data").start("--drain-timeout=300ms") as nsqd:
        client = await nsqd.connect()
        await client.pub("t", b"one")
        await client.sub("t", "ch", rdy=1)
        await client.message()
        begun = time.monotonic()
        assert await asyncio.to_thread(nsqd.stop) == 0
        assert time.monotonic() - begun >= 0.3
        nsqd.wait_for_line("1 messages were not answered")
    with Nsqd(tmp_path / "data").start("--drain-timeout=10m") as nsqd:
        client = await nsqd.connect()
        await client.sub("t", "ch", rdy=0)
        assert nsqd.stop() == 0


async def test_the_lookupds_are_left_first(tmp_path: Path, nsqlookupd: Nsqlookupd) -> None:
    flag = f"--lookupd-tcp-address={nsqlookupd.tcp_address}"
    with Nsqd(tmp_path / "data").start(flag, "--drain-timeout=10m") as nsqd:
        client = await nsqd.connect()
        await client.pub("t", b"one")
        await client.sub("t", "ch", rdy=1)
        message = await client.message()

        await until(lambda: listed(nsqlookupd, 1))
        nsqd.process.send_signal(signal.SIGTERM)
        await until(lambda: listed(nsqlookupd, 0))
        assert nsqd.running
        client.fin(message)
        assert await ended(nsqd) == 0


async def listed(nsqlookupd: Nsqlookupd, count: int) -> bool:
    return len((await nsqlookupd.get("/nodes"))["producers"]) == count
