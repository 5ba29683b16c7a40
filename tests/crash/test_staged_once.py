"""nsqd is killed while applications stage, publish and replay: every batch is in its topics exactly once.

An application does what a Spark driver and its tasks do: it stages a batch per partition, sometimes with a
second attempt that loses, publishes it, and after a crash replays the batch it has no answer for. Consumers
finish what comes, so that files are deleted meanwhile; other producers publish in between.
`NSQUARK_CRASH_ROUNDS` and `NSQUARK_CRASH_SEED` are those of test_nothing_lost.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nsquark import kernel
from reliability.crashes.record import mpub_body
from tests.crash.test_nothing_lost import ROUNDS, SEED
from tests.daemon import Closed, Nsqd

TOPICS = ("orders", "bills")
CHANNEL = "c"
SERIES = 2


@dataclass
class App:
    """What an application remembers over nsqd's lives: the batch it is at."""

    name: str
    batch: int = 0
    rows: dict[int, list[tuple[str, int, bytes]]] = field(default_factory=dict)  # of the batch, by partition
    answered: dict[int, dict[str, int]] = field(default_factory=dict)
    everything: list[bytes] = field(default_factory=list)

    def next_batch(self, rng: random.Random) -> None:
        self.rows = {}
        for partition in range(rng.choice((1, 2, 5))):
            self.rows[partition] = rows = []
            for number in range(rng.choice((0, 1, 30, 300, 1000))):
                if number % 20 == 0:
                    topic, defer = rng.choice(TOPICS), rng.choice((0, 0, 0, 0, 1, 50))
                size = rng.choice((0, 0, 0, 100, 2000, 20_000))
                body = b"%s %d %d %d " % (self.name.encode(), self.batch, partition, number) + b"x" * size
                rows.append((topic, defer, body))


class Life:
    def __init__(self, nsqd: Nsqd, rng: random.Random, seen: dict[bytes, set[bytes]]) -> None:
        self.nsqd = nsqd
        self.rng = rng
        self.seen = seen  # ids by body
        self.publishing = asyncio.Event()

    async def ask(self, path: str, body: bytes) -> tuple[int, dict[str, object]]:
        try:
            status, answer = await self.nsqd.http("POST", path, body)
        except (ConnectionError, IndexError, ValueError):  # it died: no answer, or half of one
            raise Closed from None
        return status, json.loads(answer)

    async def stage(self, app: App, partition: int, attempt: str, rows: list[tuple[str, int, bytes]]) -> None:
        seq = at = 0
        while at < len(rows):
            topic, defer, _ = rows[at]
            bodies = []
            most = self.rng.choice((1, 20, 20, 20))
            while at < len(rows) and rows[at][:2] == (topic, defer) and len(bodies) < most:
                bodies.append(rows[at][2])
                at += 1
            path = (
                f"/staged/put?app={app.name}&batch={app.batch}&partition={partition}"
                f"&attempt={attempt}&seq={seq}&topic={topic}&defer={defer}"
            )
            status, answer = await self.ask(path, mpub_body(bodies))
            assert status == 200, answer
            if answer["known"]:
                return
            seq += 1

    async def run_app(self, app: App) -> None:
        rng = self.rng
        try:
            while True:
                wanted = []
                for partition, rows in app.rows.items():
                    if rng.random() < 0.2:  # one that fails half-way, or is too slow
                        await self.stage(app, partition, f"lost{rng.random()}"[2:].replace(".", "-"), rows)
                    attempt = f"a{rng.randrange(1 << 60):x}"
                    await self.stage(app, partition, attempt, rows)
                    wanted.append({"partition": partition, "attempt": attempt, "messages": len(rows)})
                await self.publish(app, wanted)
                if rng.random() < 0.3:  # its answer was lost, as far as the driver knows
                    await self.publish(app, wanted)
                app.everything += [body for rows in app.rows.values() for _, _, body in rows]
                app.batch += 1
                app.next_batch(rng)
        except Closed:
            pass

    async def publish(self, app: App, wanted: list[dict[str, object]]) -> None:
        body = json.dumps({"partitions": wanted}).encode()
        counts: dict[str, int] = {}
        for rows in app.rows.values():
            for topic, _, _ in rows:
                counts[topic] = counts.get(topic, 0) + 1
        self.publishing.set()
        status, answer = await self.ask(f"/staged/publish?app={app.name}&batch={app.batch}", body)
        if status == 404:
            # Its stages are gone, so it was published before: that is how the next answer must put it.
            status, answer = await self.ask(f"/staged/publish?app={app.name}&batch={app.batch}", body)
        assert (status, answer["topics"]) == (200, counts), answer

    async def produce(self) -> None:
        number = 0
        try:
            async with await self.nsqd.connect() as client:
                while True:
                    await client.mpub(TOPICS[number % 2], [b"between"] * self.rng.choice((1, 50)))
                    number += 1
        except Closed:
            pass

    async def consume(self, topic: str) -> None:
        try:
            async with await self.nsqd.connect() as client:
                await client.sub(topic, CHANNEL, rdy=500)
                while True:
                    message = await client.message()
                    self.seen.setdefault(message.body, set()).add(message.id)
                    client.fin(message)
        except Closed:
            pass

    async def run(self, apps: list[App]) -> None:
        tasks = [asyncio.create_task(self.run_app(app)) for app in apps]
        tasks += [asyncio.create_task(self.consume(topic)) for topic in TOPICS]
        tasks.append(asyncio.create_task(self.produce()))
        timeout = self.rng.uniform(0.02, 0.7)
        if self.rng.random() < 0.7:  # while something is published, if it comes to that
            watch = asyncio.create_task(self.publishing.wait())
            await asyncio.wait([watch, *tasks], timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
            watch.cancel()
            timeout = self.rng.uniform(0.0, 0.05)
        done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_EXCEPTION)
        self.nsqd.kill()
        for task in tasks:
            await task
        assert not done, "a client ended before nsqd did"
        assert not [line for line in self.nsqd.lines if " ERROR: " in line]


def some_flags(rng: random.Random) -> list[str]:
    return [
        f"--max-bytes-per-file={rng.choice((4096, 65536, 104857600))}",
        f"--sync-every={rng.choice((1, 2500))}",
        f"--mem-queue-size={rng.choice((0, 10000))}",
        "--max-rdy-count=500",
    ]


@pytest.mark.timeout(300 + 10 * ROUNDS)
@pytest.mark.parametrize("series", range(SERIES))
async def test_every_staged_batch_is_published_exactly_once(tmp_path: Path, series: int) -> None:
    rng = random.Random(f"{SEED} staged {series}")
    apps = [App("one"), App("two")]
    seen: dict[bytes, set[bytes]] = {}
    for app in apps:
        app.next_batch(rng)
    nsqd = Nsqd(tmp_path / "data")
    with nsqd.start():
        for topic in TOPICS:
            await nsqd.post(f"/topic/create?topic={topic}")
            await nsqd.post(f"/channel/create?topic={topic}&channel={CHANNEL}")
    number, flags = 0, ["none"]
    try:
        lives = max(5, ROUNDS // 4)
        for number in range(1, 10 * lives):
            flags = some_flags(rng)
            with nsqd.start(*flags):
                await Life(nsqd, rng, seen).run(apps)
            # On a busy machine a life may be too short for any batch: then there are more of them.
            if number >= lives - 1 and sum(len(app.everything) for app in apps) > 100:
                break
        await everything_was_seen_once(nsqd, apps, seen)
    except BaseException as error:
        error.add_note(f"NSQUARK_CRASH_SEED={SEED}, series {series}, round {number}: {' '.join(flags)}")
        error.add_note("\n".join(nsqd.lines[-20:]))
        raise


async def everything_was_seen_once(nsqd: Nsqd, apps: list[App], seen: dict[bytes, set[bytes]]) -> None:
    """Drain both topics. A batch without an answer may be there or not, but as a whole and once."""
    with nsqd.start():
        for topic in TOPICS:
            async with await nsqd.connect() as client:
                await client.sub(topic, CHANNEL, rdy=500)
                await client.dpub(topic, 200, b"the end")  # behind every deferred one
                while (message := await client.message()).body != b"the end":
                    seen.setdefault(message.body, set()).add(message.id)
                    client.fin(message)
                client.fin(message)
        status, answer = await nsqd.http("GET", "/staged")
        assert status == 200
        last = {each["app"]: each for each in json.loads(answer)["apps"]}
    others = len(seen.pop(b"between", ())) + len(TOPICS)
    twice = [body[:40] for body, ids in seen.items() if len(ids) > 1]
    assert not twice, twice[:10]
    expected = {body for app in apps for body in app.everything}
    for app in apps:
        if app.name in last and last[app.name]["last_batch"] == app.batch:
            expected |= {body for rows in app.rows.values() for _, _, body in rows}
    assert len(expected) > 100, "too little to tell"
    assert not expected - seen.keys(), sorted(body[:40] for body in expected - seen.keys())[:10]
    assert not seen.keys() - expected, sorted(body[:40] for body in seen.keys() - expected)[:10]
    # A message stored twice could have the same id twice: the logs tell by their length.
    assert sum(log_end(nsqd.data_path / "topics" / topic) for topic in TOPICS) == len(expected) + others


def log_end(directory: Path) -> int:
    """How many messages the log has ever got."""
    newest = max(directory.glob("*.log"))
    data = newest.read_bytes()
    _, _, _, last = kernel.scan_batches(data, 0, len(data), True, 1 << 20)
    return int(newest.stem) if last is None else last[3] + last[2]
