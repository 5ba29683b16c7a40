"""Seek, commit and dead letters under SIGKILL: what was answered holds, and no message is lost on its way."""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import Closed, Nsqd

SEED = os.environ.get("NSQUARK_CRASH_SEED", "") or str(random.randrange(1 << 32))
ROUNDS = max(6, int(os.environ.get("NSQUARK_CRASH_ROUNDS", "0")) // 10)


async def told(nsqd: Nsqd, method: str, path: str) -> Any:
    status, body = await nsqd.http(method, path)
    assert status == 200, (path, status, body)
    return json.loads(body)


def crash(nsqd: Nsqd) -> None:
    nsqd.kill()
    nsqd.restart()


async def test_where_a_channel_was_moved_it_is_after_a_crash(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    flags = ["--max-bytes-per-file=3000", "--retention-bytes=1000000"]
    with Nsqd(tmp_path / "data", *flags).start() as nsqd:
        await nsqd.post("/topic/create?topic=t")
        for channel in ("seek", "commit"):
            await nsqd.post(f"/channel/create?topic=t&channel={channel}")
        epoch, end, committed = "", 0, 0
        for number in range(ROUNDS):
            async with await nsqd.connect() as client:
                await client.mpub("t", [b"%d.%d" % (number, each) for each in range(40)])
                await client.dpub("t", 3_600_000, b"later")
            end += 41
            for _ in range(3):
                sought = rng.randint(0, end)
                answer = await told(nsqd, "POST", f"/channel/seek?topic=t&channel=seek&to={sought}")
                assert answer["position"] == sought
                commit = rng.randint(0, end)
                committed = max(committed, commit)
                path = f"/log/range?topic=t&channel=commit&commit={commit}"
                assert (await told(nsqd, "GET", path))["channel"]["position"] == committed
            crash(nsqd)
            for channel, position in (("seek", sought), ("commit", committed)):
                state = await told(nsqd, "GET", f"/log/range?topic=t&channel={channel}")
                assert epoch in ("", state["epoch"]), f"NSQUARK_CRASH_SEED={SEED}"
                epoch = state["epoch"]
                assert (state["first"], state["next"]) == (0, end)
                place = state["channel"]
                owed = place["depth"] + place["deferred_count"]
                assert (place["position"], owed) == (position, end - position), f"NSQUARK_CRASH_SEED={SEED}"


async def consume(nsqd: Nsqd, topic: str, channel: str) -> list[bytes]:
    """Take and finish everything that is there now."""
    async with await nsqd.connect() as client:
        await client.sub(topic, channel)
        await client.pub(topic, b"the end")
        client.rdy(1000)
        bodies: list[bytes] = []
        while not bodies or bodies[-1] != b"the end":
            message = await client.message()
            client.fin(message)
            bodies.append(message.body)
        await client.caught_up()
    return [body for body in bodies if body != b"the end"]


async def give_back(nsqd: Nsqd) -> None:
    """Give every message back at once, until nsqd is gone."""
    try:
        async with await nsqd.connect() as client:
            await client.sub("t", "c", rdy=50)
            while True:
                client.req(await client.message(60))
    except (Closed, ConnectionError):
        pass


@pytest.mark.timeout(300 + 10 * ROUNDS)
async def test_no_message_is_lost_on_its_way_to_the_dead_letters_and_back(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    flags = ["--max-attempts=2", "--max-bytes-per-file=20000", f"--sync-every={rng.choice((1, 2500))}"]
    published: set[bytes] = set()
    with Nsqd(tmp_path / "data", *flags, "--sync-timeout=20ms").start() as nsqd:
        await nsqd.post("/topic/create?topic=t")
        await nsqd.post("/channel/create?topic=t&channel=c")
        for number in range(ROUNDS):
            bodies = [b"%d.%d " % (number, each) + os.urandom(rng.choice((0, 3, 500))) for each in range(100)]
            published.update(bodies)
            async with await nsqd.connect() as client:
                await client.mpub("t", bodies)
            work = [asyncio.create_task(give_back(nsqd))]
            if number % 2:
                work.append(asyncio.create_task(redeliver(nsqd)))
            await asyncio.sleep(rng.uniform(0.0, 0.15))
            crash(nsqd)
            await asyncio.gather(*work)
        letters = await consume(nsqd, "t.c.dead", "redeliver")
        dead = [letter.split(b"\n", 1) for letter in letters]
        assert all(json.loads(history)["channel"] == "c" for history, _ in dead)
        alive = await consume(nsqd, "t", "c")
        assert {body for _, body in dead} | set(alive) >= published, f"NSQUARK_CRASH_SEED={SEED}"
        assert not [line for line in nsqd.lines if " ERROR: " in line and "TOUCH" not in line]


async def redeliver(nsqd: Nsqd) -> None:
    try:
        status, body = await nsqd.http("POST", "/channel/redeliver?topic=t&channel=c")
        assert status == 200, body
    except (ConnectionError, IndexError):
        pass  # it was killed meanwhile


async def test_a_limit_and_the_dead_survive(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data").start() as nsqd:
        await nsqd.post("/topic/create?topic=t")
        await nsqd.post("/channel/create?topic=t&channel=c")
        await nsqd.post("/channel/max_attempts?topic=t&channel=c&to=1")
        crash(nsqd)
        async with await nsqd.connect() as client:
            await client.sub("t", "c", rdy=10)
            await client.pub("t", b"poison")
            client.req(await client.message())
            await client.caught_up()
        crash(nsqd)
        (letter,) = set(await consume(nsqd, "t.c.dead", "redeliver"))
        assert letter.split(b"\n", 1)[1] == b"poison"
