"""The clients of one life of nsqd: producers, consumers, an operator and staging applications, all at once.

They enter everything in the record. Each has its own random numbers, so that a seed makes the same choices
again (the moments are the machine's).
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import time
from collections.abc import Coroutine
from typing import Any

from tests.daemon import PATIENCE, RESPONSE, Client, Closed, Nsqd
from tests.security.upgraded import connect

from . import history as h
from .consumer import Consumer
from .record import (
    BACKLOG,
    BRIEF,
    CHANNELS,
    LONG_TIMEOUT,
    LONGEST_DELAY_MS,
    MOVES,
    ORDERS,
    SHORT_TIMEOUT,
    SIZES,
    SLOW,
    Memory,
    Publish,
    Record,
    asked_timeout,
    body_of,
    key_of,
    mpub_body,
)
from .staging import Stager

GONE = (ConnectionError, OSError, asyncio.IncompleteReadError)


class Life:
    def __init__(
        self, nsqd: Nsqd, record: Record, memory: Memory, seed: str, number: int, tls: ssl.SSLContext | None
    ) -> None:
        self.nsqd = nsqd
        self.record = record
        self.memory = memory
        self.number = number
        self.over = False
        self._seed = seed
        self._tls = tls
        self._names = 0

    def rng(self, task: str) -> random.Random:
        return random.Random(f"{self._seed} {self.number} {task}")

    # ---- starting with a look at the logs

    async def look(self) -> None:
        """Read what the logs have got since the last look, before anything is published."""
        for topic in CHANNELS:
            status, answer = await self._get(f"/log/range?topic={topic}")
            if status != 200:
                continue
            told = json.loads(answer)
            epoch, next_position = self.memory.read.get(topic, ("", 0))
            start = max(told["first"], next_position) if epoch == told["epoch"] else told["first"]
            entries = await self._entries(topic, start, told["next"])
            self.memory.read[topic] = told["epoch"], told["next"]
            self.memory.ranges[topic] = told["first"], told["next"]
            self.record.counts["messages read from logs"] += len(entries)
            self.record.counts["logs found trimmed"] += told["first"] > told["origin"]
            self.record.add(
                h.LogRead(
                    time.time(),
                    topic,
                    told["epoch"],
                    told["origin"],
                    told["first"],
                    told["next"],
                    start,
                    entries,
                )
            )
        status, answer = await self._get("/stats?format=json&include_clients=false")
        for topic in json.loads(answer)["topics"]:
            for name in (topic["topic_name"], *(each["channel_name"] for each in topic["channels"])):
                if name.endswith("#ephemeral"):
                    self.strange(f"{name} is there after a crash")

    async def _entries(self, topic: str, start: int, end: int) -> list[tuple[int, str, str]]:
        entries: list[tuple[int, str, str]] = []
        while start < end:
            path = (
                f"/topic/peek?topic={topic}&from={start}&limit={min(1000, end - start)}&max_bytes={16 << 20}"
            )
            status, answer = await self._get(path)
            if status != 200:
                self.strange(f"{path} was answered {status} {answer[:200]!r}")
                break
            messages = json.loads(answer)["messages"]
            if not messages or messages[0]["position"] != start:
                self.strange(f"{topic} has nothing at {start}, and ends at {end}")
                break
            for message in messages:
                body = message.get("body", "").encode()
                entries.append((message["position"], message["id"], key_of(body) or repr(body[:60])))
            start = messages[-1]["position"] + 1
        return entries

    def strange(self, text: str) -> None:
        self.record.add(h.Strange(time.time(), text))

    def unexpected(self, text: str) -> None:
        """An answer that is right only when nsqd is stopping."""
        if not self.over:
            self.strange(text)

    async def _get(self, path: str) -> tuple[int, bytes]:
        return await self.nsqd.http("GET", path)

    async def _post(self, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Raises Closed when nsqd is gone before the whole answer has come."""
        try:
            return await self.nsqd.http("POST", path, body)
        except (*GONE, IndexError, ValueError):
            raise Closed from None

    # ---- connections

    async def connect(self, rng: random.Random, timeout: float = LONG_TIMEOUT) -> Client:
        """A connection as plain, or as encrypted and compressed, as it happens. Raises Closed."""
        kind = rng.random()
        tls = self._tls if kind < 0.12 else None
        compression = "snappy" if 0.08 < kind < 0.2 else "deflate" if 0.2 < kind < 0.28 else ""
        try:
            client = await connect(self.nsqd, tls, compression, msg_timeout=asked_timeout(timeout))
        except (*GONE, TimeoutError) as error:
            if not self.over and not isinstance(error, ConnectionError | asyncio.IncompleteReadError):
                self.unexpected(f"no connection: {error!r}")
            raise Closed(str(error)) from None
        for feature in ("TLS" if tls is not None else "", compression or "plain"):
            if feature:
                self.record.counts[f"connections, {feature}"] += 1
        return client

    # ---- producers

    def new_publish(self, rng: random.Random, kind: str, topic: str) -> Publish:
        keys, bodies = [], []
        for _ in range(rng.choice((1, 4, 20)) if kind == "MPUB" else 1):
            self._names += 1
            keys.append(f"{self.number}.{self._names}")
            bodies.append(body_of(keys[-1], rng.choice(SIZES)))
        delay_ms = rng.randrange(1, LONGEST_DELAY_MS) if kind == "DPUB" else 0
        return Publish(kind, topic, tuple(keys), bodies, delay_ms)

    def sending(self, publish: Publish, way: str = "") -> int:
        operation = self.record.operation()
        self.record.counts[way + publish.kind + (", repeated" if publish.repeats else "")] += 1
        self.record.add(
            h.Publishing(
                time.time(),
                operation,
                publish.topic,
                publish.keys,
                publish.delay_ms / 1000,
                repeats=publish.repeats,
            )
        )
        return operation

    def answered(self, operation: int, publish: Publish) -> None:
        self.record.counts["messages answered OK"] += len(publish.keys)
        self.record.add(h.Published(time.time(), operation))

    async def produce(self, task: str, ephemeral: str, limit: int) -> None:
        """Publish in every way the protocol has, then keep the connection until it ends."""
        rng = self.rng(task)
        repeated = [each for each in self.memory.unanswered if rng.random() < 0.3]
        for each in repeated:
            self.memory.unanswered.remove(each)
            each.repeats = True
        before = self._names
        while not self.over:
            waiting: list[tuple[int, Publish]] = []
            try:
                client = await self.connect(rng)
            except Closed:
                return
            try:
                while self._names - before < limit:
                    publishes, repeated = repeated, []
                    topic = rng.choice((ORDERS, ORDERS, MOVES, BRIEF, SLOW, BACKLOG, ephemeral))
                    kind = rng.choice(("PUB", "PUB", "PUBs", "MPUB", "DPUB"))
                    for _ in range(rng.choice((2, 8, 25)) if kind == "PUBs" else 1):
                        publishes.append(self.new_publish(rng, kind.rstrip("s"), topic))
                    waiting = [(self.sending(each), each) for each in publishes]
                    client.send(b"".join(each.command() for each in publishes))
                    while waiting:
                        frame = await client.answer()
                        if frame != (RESPONSE, b"OK"):
                            if waiting[0][1].topic != BRIEF:
                                self.unexpected(f"{waiting[0][1].kind} to {waiting[0][1].topic}: {frame}")
                            raise Closed
                        self.answered(*waiting.pop(0))
                    if rng.random() < 0.3:
                        await asyncio.sleep(rng.uniform(0.0, 0.01))
                await client.frame()
            except Closed:
                self.memory.unanswered += [each for _, each in waiting if "#" not in each.topic]
            except TimeoutError:
                self.unexpected(f"a publish was not answered within {PATIENCE} s")
            finally:
                client.abort()

    async def post(self, limit: int) -> None:
        """Publish over HTTP."""
        rng = self.rng("http")
        try:
            for _ in range(limit):
                kind = rng.choice(("PUB", "MPUB", "DPUB"))
                publish = self.new_publish(rng, kind, rng.choice((ORDERS, MOVES, BRIEF, SLOW, BACKLOG)))
                operation = self.sending(publish, "HTTP ")
                if kind == "MPUB":
                    path, body = f"/mpub?topic={publish.topic}&binary=true", mpub_body(publish.bodies)
                else:
                    defer = f"&defer={publish.delay_ms}" if publish.delay_ms else ""
                    path, body = f"/pub?topic={publish.topic}{defer}", publish.bodies[0]
                status, answer = await self._post(path, body)
                if (status, answer) == (200, b"OK"):
                    self.answered(operation, publish)
                elif publish.topic != BRIEF and answer:
                    self.unexpected(f"{path} was answered {status} {answer[:200]!r}")
                await asyncio.sleep(rng.uniform(0.0, 0.01))
        except Closed:
            pass

    # ---- consumers

    async def consume(self, task: str, topic: str, channel: str) -> None:
        """Come, consume, leave, and come again."""
        rng = self.rng(task)
        timeout = SHORT_TIMEOUT if topic == SLOW else LONG_TIMEOUT
        once = channel.endswith("#ephemeral") or topic.endswith("#ephemeral")
        while not self.over:
            try:
                client = await self.connect(rng, timeout)
            except Closed:
                return
            consumer = Consumer(self.record, client, rng, (topic, channel), timeout, self.unexpected)
            try:
                await consumer.subscribe(rng.choice((1, 7, 100)))
                await consumer.run()
            except Closed:
                pass
            except TimeoutError:
                self.unexpected(f"{consumer} had no answer within {PATIENCE} s")
            finally:
                consumer.leave()
            if once:
                return

    # ---- the operator

    async def operate(self, orders: int) -> None:
        """Have a few things done to topics and channels, one after the other."""
        rng = self.rng("operator")
        try:
            for _ in range(orders):
                await asyncio.sleep(rng.uniform(0.0, 0.015))
                topic = rng.choice((ORDERS, MOVES, MOVES, BRIEF, BRIEF))
                if topic == BRIEF:
                    channel = rng.choice(("", *CHANNELS[BRIEF]))
                    await self.order(rng.choice(("delete", "delete", "create", "empty")), topic, channel)
                elif topic == MOVES and rng.random() < 0.75:
                    await self._move(rng)
                else:
                    channel = rng.choice(("", *CHANNELS[topic]))
                    await self.order("pause", topic, channel)
                    if rng.random() < 0.8:
                        await asyncio.sleep(rng.uniform(0.0, 0.02))
                        await self.order("unpause", topic, channel)
        except Closed:
            pass

    async def _move(self, rng: random.Random) -> None:
        seeker, committer = CHANNELS[MOVES]
        first, end = self.memory.ranges.get(MOVES, (0, 0))
        action = rng.choice(("seek", "commit", "commit", "empty"))
        if action == "commit":
            await self.order("commit", MOVES, committer, rng.randint(first, end))
        elif action == "empty":
            await self.order("empty", MOVES, seeker)
        else:
            # Mostly near the end: what is sought must be delivered again.
            place = rng.choice(("earliest", "latest", str(max(first, end - rng.randrange(60)))))
            await self.order("seek", MOVES, seeker, place=place)

    async def order(
        self, action: str, topic: str, channel: str = "", position: int = -1, place: str = ""
    ) -> bool:
        operation = self.record.operation()
        kind = "channel" if channel else "topic"
        self.record.counts[f"{kind} {action}"] += 1
        self.record.add(h.Ordering(time.time(), operation, action, topic, channel, position))
        path = f"/{kind}/{action}?topic={topic}"
        if channel:
            path += f"&channel={channel}"
        if action in ("seek", "commit"):
            path += f"&to={place or position}"
        status, answer = await self._post(path)
        if status == 200:
            where = json.loads(answer)["position"] if action == "seek" else -1
            self.record.add(h.Ordered(time.time(), operation, where))
            return True
        self.record.add(h.OrderFailed(time.time(), operation))
        # A topic is trimmed as its channels finish: what was its first position may be gone.
        if topic != BRIEF and not (action == "seek" and status == 410):
            self.unexpected(f"{path} was answered {status} {answer[:200]!r}")
        return False

    # ---- everything at once

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """The clients of an ordinary life."""
        rng = self.rng("life")
        ephemeral = f"t{self.number}#ephemeral"
        work = [self.produce(f"producer {each}", ephemeral, rng.choice((20, 60, 120))) for each in range(2)]
        work.append(self.post(rng.choice((5, 15))))
        work.append(self.operate(rng.choice((0, 3, 10))))
        for app in self.memory.apps:
            if rng.random() < 0.6:
                own = self.rng(f"staging {app.name}")
                work.append(Stager(app, self.record, own, self._post, self.unexpected).run())
        for topic, channels in CHANNELS.items():
            for channel in channels:
                for each in range(rng.choice((0, 1, 1, 2))):
                    work.append(self.consume(f"{topic} {channel} {each}", topic, channel))
        if rng.random() < 0.3:
            work.append(self.consume("ephemeral", ORDERS, f"c{self.number}#ephemeral"))
            work.append(self.consume("of ephemeral", ephemeral, "c"))
        rng.shuffle(work)
        return work
