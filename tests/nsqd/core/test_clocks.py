"""Which clock says when: deadlines pass by the monotonic one, due times come by the one that can be set."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nsquark.nsqd.core.timers import Timers
from nsquark.nsqd.core.topic import Topic
from tests.daemon import Nsqd, dpub
from tests.nsqd.harness import SECOND, Clock, Harness, Publisher, Reader
from tests.settable_clock import SettableClock

HOUR = 3600 * SECOND
LONGEST = "2562047h47m16.854775807s"  # an int64 of nanoseconds


@pytest.fixture
def clock(tmp_path: Path) -> SettableClock:
    return SettableClock(tmp_path)


async def test_a_timeout_passes_although_the_clock_is_set_back(clock: SettableClock, tmp_path: Path) -> None:
    with clock.used():
        nsqd = Nsqd(tmp_path / "data", "--msg-timeout=500ms").start()
    with nsqd:
        async with await nsqd.connect() as client:
            await client.sub("t", "c", 1)
            await client.pub("t", b"x")
            first = await client.message()
            clock.set(-3600)
            again = await client.message()
            assert (first.id, again.id, again.attempts) == (first.id, first.id, 2)


async def test_what_is_deferred_comes_soon_after_the_clock_is_set_forward(
    clock: SettableClock, tmp_path: Path
) -> None:
    with clock.used():
        nsqd = Nsqd(tmp_path / "data").start()
    with nsqd:
        async with await nsqd.connect() as client:
            await client.sub("t", "c", 1)
            await client.dpub("t", 600_000, b"x")
            clock.set(3600)
            assert (await client.message()).body == b"x"


def test_deadlines_and_due_times_have_clocks_of_their_own(tmp_path: Path) -> None:
    clock = Clock()
    harness = Harness(tmp_path, clock)
    topic = Topic(harness, "t", tmp_path / "t")
    topic.journaling.rewrite()
    channel = topic.channel("c")
    reader = Reader(msg_timeout_ns=2 * SECOND)
    channel.add_consumer(reader.consumer)
    channel.set_ready(reader.consumer, 10)
    topic.publish([b"flies"], 0, Publisher())
    topic.publish([b"waits"], 5, Publisher())
    harness.turn.run()
    assert [body for _, _, body in reader.take()] == [b"flies"]
    clock.set_back = HOUR
    harness.pass_time(3 * SECOND)
    assert [(attempts, body) for _, attempts, body in reader.take()] == [(2, b"flies")]
    harness.pass_time(3 * SECOND)
    assert {body for _, _, body in reader.take()} == {b"flies"}
    clock.set_back = 0
    harness.pass_time(0)
    assert [body for _, _, body in reader.take()] == [b"waits"]
    topic.close()


async def test_a_timer_looks_at_a_clock_that_can_be_set_now_and_then() -> None:
    now = 0
    timers = Timers(asyncio.get_running_loop(), lambda: now, look_every=0.001)
    woken = asyncio.Event()

    class Sleeper:
        wakes_at = 1 << 63

        def wake(self, now: int) -> None:
            woken.set()

    timers.schedule(Sleeper(), HOUR)
    now = 2 * HOUR
    async with asyncio.timeout(20):
        await woken.wait()
    timers.close()


async def test_the_longest_time_there_is_can_be_waited_for(tmp_path: Path) -> None:
    data = tmp_path / "data"
    longest_ms = (1 << 63) // 1_000_000
    with Nsqd(data, f"--max-req-timeout={LONGEST}").start() as nsqd:
        async with await nsqd.connect() as client:
            await client.sub("t", "c", 10)
            await client.pub("t", b"requeued")
            client.req(await client.message(), longest_ms * 2)  # too long: the longest
            await client.ask(dpub("t", longest_ms, b"deferred"))
            status, _ = await nsqd.http("POST", f"/pub?topic=t&defer={longest_ms}", b"deferred")
            assert status == 200
            await client.caught_up()
            _, stats = await nsqd.http("GET", "/stats?format=json&topic=t")
            assert b'"in_flight_count":0,"deferred_count":3' in stats
            nsqd.kill()
        nsqd.start(f"--max-req-timeout={LONGEST}")
        _, stats = await nsqd.http("GET", "/stats?format=json&topic=t")
        assert b'"deferred_count":3' in stats
        assert not [line for line in nsqd.lines if "Traceback" in line or "failed" in line]
