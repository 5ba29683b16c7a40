"""Operators that change channels and look at them, and readers of logs."""

from __future__ import annotations

import asyncio
import json
import time

from nsquark.errors import NsquarkError
from nsquark.tools.log_reader import LogRange, LogReader, TopicNotFound
from reliability.crashes.record import key_of

from . import history as h
from .group import Member
from .record import BORN, BRIEF, CHANNELS, GONE, HELD, MOVES, Clients, is_standby

MOST_BORN = 12


class Operators(Clients):
    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.born = list(CHANNELS[BORN])
        self._ends: dict[str, int] = {}  # topic: the end of its log

    async def order(self, action: str, topic: str, channel: str = "", to: str = "") -> bool:
        """Whether it was answered with success."""
        member = await self.primary()
        operation = self.record.operation()
        kind = "channel" if channel else "topic"
        self.record.counts[f"{kind} {action}"] += 1
        self.record.add(h.Ordering(time.time(), operation, action, topic, channel))
        path = f"/{kind}/{action}?topic={topic}" + (f"&channel={channel}" if channel else "")
        path += f"&to={to}" if to else ""
        try:
            status, answer = await self.answer(member, member.ask("POST", path))
        except GONE:
            status, answer = 0, b""
        if status == 200:
            position = json.loads(answer)["position"] if action == "seek" else -1
            self.record.add(h.Ordered(time.time(), operation, position))
            return True
        self.record.add(h.OrderUnanswered(time.time(), operation))
        if status not in (0, 503) and topic != BRIEF and not is_standby(status, answer):
            self.record.strange(f"{path} was answered {status} {answer[:200]!r}")
        await asyncio.sleep(0.05)
        return False

    async def insist(self, action: str, topic: str, channel: str = "", to: str = "") -> None:
        while not await self.order(action, topic, channel, to):
            pass

    # ---- what operators do

    async def create_all(self) -> None:
        for topic, channels in CHANNELS.items():
            await self.insist("create", topic)
            for channel in channels:
                await self.insist("create", topic, channel)

    async def bear(self) -> None:
        """New channels, which must get everything from then on."""
        rng = self.rng("births")
        while not self.quiet and len(self.born) < MOST_BORN:
            await asyncio.sleep(rng.uniform(0.5, 6.0))
            name = f"born{len(self.born)}"
            self.born.append(name)
            await self.order("create", BORN, name)

    async def pause(self) -> None:
        rng = self.rng("pauses")
        while not self.quiet:
            await self.order(rng.choice(("pause", "unpause")), HELD, "paused")
            await asyncio.sleep(rng.uniform(0.1, 4.0))

    async def seek(self) -> None:
        rng = self.rng("seeks")
        while not self.quiet:
            await asyncio.sleep(rng.uniform(0.1, 4.0))
            near = str(max(0, self._ends.get(MOVES, 0) - rng.randrange(60)))
            await self.order("seek", MOVES, "seeker", rng.choice(("latest", near, near)))

    async def delete(self) -> None:
        rng = self.rng("deletions")
        while not self.quiet:
            await asyncio.sleep(rng.uniform(0.05, 1.0))
            channel = rng.choice(("", "left", "left", "right"))
            await self.order(rng.choice(("create", "create", "delete")), BRIEF, channel)

    async def look(self) -> None:
        """See whether channels are as they were ordered."""
        while not self.over:
            await asyncio.sleep(0.4)
            await self.look_once()

    async def look_once(self) -> bool:
        member = await self.primary()
        operation = self.record.operation()
        self.record.add(h.Looking(time.time(), operation))
        path = "/stats?format=json&include_clients=false"
        try:
            status, answer = await self.answer(member, member.ask("GET", path))
            if status != 200:
                return False
            topics = json.loads(answer)["topics"]
        except GONE:
            return False
        channels = {
            topic["topic_name"]: {each["channel_name"]: each["paused"] for each in topic["channels"]}
            for topic in topics
        }
        self.record.counts["looks at channels"] += 1
        self.record.add(h.Looked(time.time(), operation, channels))
        return True

    # ---- readers of logs

    async def read(self, topic: str) -> None:
        """Follow a log, and read parts of it again."""
        rng = self.rng(f"reader of {topic}")
        epoch, position = "", 0
        while not self.over:
            await asyncio.sleep(rng.uniform(0.05, 0.3))
            member = await self.primary()
            reader = LogReader(member.http_address, topic, connect_timeout=1.0)
            bounds = await self.range(member, reader)
            if bounds is None:
                continue
            if bounds.epoch != epoch:
                epoch, position = bounds.epoch, bounds.first
            again = rng.choice((0, 0, 50, 500))
            start = max(bounds.first, min(position, bounds.next) - again)
            if await self.read_part(member, reader, start, bounds.next):
                position = bounds.next

    async def range(self, member: Member, reader: LogReader) -> LogRange | None:
        """What the log's end is said to be; None without an answer."""
        operation = self.record.operation()
        self.record.add(h.RangeAsked(time.time(), operation, reader.topic))
        try:
            bounds = await self.answer(member, reader.range())
        except TopicNotFound:
            if reader.topic != BRIEF:
                self.record.strange(f"{member.name} does not know the topic {reader.topic}")
            return None
        except (NsquarkError, *GONE):
            return None
        self.record.counts["ranges of logs"] += 1
        self._ends[reader.topic] = bounds.next
        self.record.add(h.RangeTold(time.time(), operation, bounds.epoch, bounds.next))
        return bounds

    async def read_part(
        self, member: Member, reader: LogReader, start: int, end: int, whole: bool = False
    ) -> bool:
        """Whether [start, end) could be read."""
        entries: list[tuple[int, str, str]] = []

        async def take() -> None:
            async for run in reader.runs(start, end):
                for message in run:
                    key = key_of(message.body) or repr(message.body[:60])
                    entries.append((message.position, message.id.decode("ascii"), key))

        if start < end:
            try:
                await self.answer(member, take())
            except (NsquarkError, *GONE):
                if not entries or whole:
                    return False
        assert reader.epoch is not None
        self.record.counts["messages read from logs"] += len(entries)
        self.record.add(h.LogRead(time.time(), reader.topic, reader.epoch, entries, whole))
        return len(entries) == end - start

    async def read_all(self, topic: str) -> bool:
        """Read a log as a whole, when nothing is published any more."""
        member = await self.primary()
        reader = LogReader(member.http_address, topic, connect_timeout=5.0)
        bounds = await self.range(member, reader)
        return bounds is not None and await self.read_part(member, reader, bounds.first, bounds.next, True)
