"""The rounds on one data directory, and the end at which everything that is owed must come."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import ssl
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from tests.daemon import Closed, Nsqd
from tests.security.upgraded import connect

from . import history as h
from .checking.findings import Finding
from .consumer import Consumer
from .load import Life
from .record import BACKLOG, CHANNELS, LATE, LONG_TIMEOUT, SHORT_TIMEOUT, Memory, Record, asked_timeout

LONGEST_START = 0.08  # seconds until nsqd listens, about
EVENTS = (0, 5, 30, 100)  # in a round, at the least
LONGEST_ROUND = 20.0  # seconds in which they must have come
LONG_ROUND = 1.2  # seconds, now and then: once a second nsqd looks what it may delete


@dataclass
class Settings:
    seconds_per_round: float = 0.08
    sync_every: int | None = None  # None: differs from round to round
    patience: float = 10.0  # how long nothing comes before what is owed is lost


class Series:
    """Kill and restart one nsqd again and again."""

    def __init__(
        self, nsqd: Nsqd, seed: str, settings: Settings, tls: ssl.SSLContext | None, flags: list[str]
    ) -> None:
        self.nsqd = nsqd
        self.record = Record()
        self.rounds = 0
        self._created = False  # the topics and channels that are there from the beginning
        self._memory = Memory()
        self._seed = seed
        self._settings = settings
        self._tls = tls
        self._rng = rng = random.Random(f"{seed} series")
        self._flags = [
            *flags,
            f"--retention-bytes={rng.choice((0, 20_000))}",
            f"--max-attempts={rng.choice((0, 3, 6))}",
            f"--msg-timeout={round(SHORT_TIMEOUT * 1000)}ms",  # other consumers ask for a longer one
        ]
        self.record.add(h.Promised(time.time(), BACKLOG, LATE))

    @property
    def findings(self) -> list[Finding]:
        return self.record.checker.findings

    async def run(self, rounds: int) -> None:
        """Run so many rounds and bring it to an end; stops where something is found."""
        while self.rounds < rounds:
            await self.round()
            if self.findings:
                return
        await self.end()

    # ---- a round

    def _round_flags(self) -> list[str]:
        rng, sync_every = self._rng, self._settings.sync_every
        return [
            *self._flags,
            f"--max-bytes-per-file={rng.choice((4096, 4096, 65536, 104857600))}",
            f"--sync-every={rng.choice((1, 100, 2500)) if sync_every is None else sync_every}",
            f"--sync-timeout={rng.choice(('10ms', '2s'))}",
            f"--mem-queue-size={rng.choice((0, 10, 10000))}",
        ]

    async def _start(self) -> Life:
        self.rounds += 1
        self.nsqd.tcp_address = self.nsqd.http_address = "127.0.0.1:0"
        self.record.add(h.Started(time.time(), self.rounds))
        await asyncio.to_thread(self.nsqd.start, *self._round_flags())
        life = Life(self.nsqd, self.record, self._memory, self._seed, self.rounds, self._tls)
        await life.look()
        return life

    async def _kill_while_starting(self) -> None:
        """Kill it in the midst of its recovery, perhaps."""
        self.rounds += 1
        self.nsqd.tcp_address = self.nsqd.http_address = "127.0.0.1:0"
        self.nsqd.data_path.mkdir(parents=True, exist_ok=True)
        self.record.add(h.Started(time.time(), self.rounds))
        process = self.nsqd.spawn(self.nsqd.command(*self._round_flags()))
        await asyncio.sleep(self._rng.uniform(0.0, LONGEST_START))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
        self.record.counts["SIGKILL while starting"] += 1
        self.record.add(h.Killed(time.time()))

    async def round(self) -> None:
        """One life of nsqd: a look at its logs, all clients at work, and its end at some moment."""
        rng = self._rng
        if rng.random() < 0.1:
            await self._kill_while_starting()
        life = await self._start()
        if not self._created:
            self._created = True
            for topic, names in CHANNELS.items():
                await life.order("create", topic)
                for channel in names:
                    await life.order("create", topic, channel)
        seconds = (
            LONG_ROUND if rng.random() < 0.02 else rng.uniform(0.3, 1.7) * self._settings.seconds_per_round
        )
        end = signal.SIGTERM if rng.random() < 0.07 else signal.SIGKILL
        await self._live(life, life.work(), seconds, end, rng.choice(EVENTS))

    async def _live(
        self,
        life: Life,
        work: list[Coroutine[Any, Any, None]],
        seconds: float,
        end: signal.Signals,
        events: int = 0,
    ) -> None:
        """Have the work done for so long, and until so many events are in the record; then end nsqd."""
        before = len(self.record.events)
        tasks = [asyncio.create_task(each) for each in work]
        _, busy = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        # A busy machine may have done nothing in that time.
        deadline = time.monotonic() + LONGEST_ROUND
        while busy and len(self.record.events) - before < events and time.monotonic() < deadline:
            done, busy = await asyncio.wait(busy, timeout=0.005, return_when=asyncio.FIRST_EXCEPTION)
            if any(task.exception() for task in done):
                break
        life.over = True
        status = await self._end(end)
        await asyncio.gather(*tasks)
        now = time.time()
        if end is signal.SIGKILL:
            self.record.counts["SIGKILL"] += 1
            self.record.add(h.Killed(now))
        else:
            self.record.counts["SIGTERM"] += 1
            self.record.add(h.Stopped(now))
        if status != (-signal.SIGKILL if end is signal.SIGKILL else 0):
            life.strange(f"nsqd ended with status {status}")
        for line in self.nsqd.lines:
            if (" ERROR: " in line and "_FAILED " not in line) or "Traceback" in line:
                life.strange(f"nsqd's log: {line}")

    async def _end(self, end: signal.Signals) -> int:
        if end is signal.SIGKILL:
            self.nsqd.kill()
            return self.nsqd.process.wait()
        return await asyncio.to_thread(self.nsqd.stop, end)

    # ---- the end of the series

    async def end(self) -> None:
        """Everything that is owed comes; and after a crash, nothing that was finished comes again."""
        life = await self._start()
        await self._live(life, [self._drain(life)], 600.0, signal.SIGKILL)
        if self.findings:
            return
        life = await self._start()
        await self._live(life, [self._drain(life, last=True)], 600.0, signal.SIGKILL)

    async def _drain(self, life: Life, last: bool = False) -> None:
        checker = self.record.checker
        channels = [(topic, channel) for topic, names in CHANNELS.items() for channel in names]
        channels.append((BACKLOG, LATE))
        _, answer = await self.nsqd.http("GET", "/stats?format=json")
        there = [topic["topic_name"] for topic in json.loads(answer)["topics"]]
        for topic, names in CHANNELS.items():
            if topic in there:
                for channel in ("", *names):
                    await life.order("unpause", topic, channel)
        dead = [f"{topic}.{channel}.dead" for topic, channel in channels]
        drainers = [
            asyncio.create_task(Drainer(life, topic, channel).run())
            for topic, channel in [*channels, *((topic, "redeliver") for topic in dead)]
        ]
        if last:
            # One more message each: what comes before it has come back.
            await asyncio.gather(*(self._subscribed(life, topic, channel) for topic, channel in channels))
            rng = life.rng("last")
            for topic in CHANNELS:
                publish = life.new_publish(rng, "PUB", topic)
                operation = life.sending(publish)
                async with await self.nsqd.connect() as client:
                    await client.ask(publish.command())
                life.answered(operation, publish)
        events, since = len(self.record.events), time.monotonic()
        while checker.owing() and time.monotonic() - since < self._settings.patience:
            await asyncio.sleep(0.005)
            if len(self.record.events) != events:
                events, since = len(self.record.events), time.monotonic()
        for drainer in drainers:
            drainer.cancel()
        for result in await asyncio.gather(*drainers, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        self.record.add(h.Drained(time.time()))

    async def _subscribed(self, life: Life, topic: str, channel: str) -> None:
        while True:
            _, answer = await self.nsqd.http("GET", f"/stats?format=json&topic={topic}&channel={channel}")
            found = json.loads(answer)["topics"]
            if found and found[0]["channels"] and found[0]["channels"][0]["client_count"]:
                return
            await asyncio.sleep(0.002)


class Drainer:
    """Finishes whatever comes, until it is cancelled; then sees to it that this is kept."""

    def __init__(self, life: Life, topic: str, channel: str) -> None:
        self._life = life
        self._topic, self._channel = topic, channel

    async def run(self) -> None:
        client = await connect(self._life.nsqd, msg_timeout=asked_timeout(LONG_TIMEOUT))
        rng = self._life.rng("drain")
        consumer = Consumer(
            self._life.record, client, rng, (self._topic, self._channel), LONG_TIMEOUT, self._life.unexpected
        )
        try:
            await consumer.subscribe(500)
            try:
                while True:
                    message = await consumer.receive()
                    if message is not None:
                        consumer.finish(message)
            except asyncio.CancelledError:
                pass
            with contextlib.suppress(Closed):
                answers = consumer.answers
                while consumer.answers < answers + 2:
                    consumer.ask()
                    message = await consumer.receive()
                    if message is not None:
                        consumer.finish(message)
        finally:
            consumer.leave()
