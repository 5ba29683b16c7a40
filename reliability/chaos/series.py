"""A series: one group, its clients, rounds with a failover each, and then every message accounted for."""

from __future__ import annotations

import asyncio
import random
import time
import traceback
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import archive
from . import history as h
from .consumers import Consumers
from .directories import differences
from .faults import Faults
from .findings import Finding
from .group import LEASE, Group, Settings
from .operators import Operators
from .producers import Producers
from .record import BORN, BRIEF, CHANNELS, HELD, MOVES, ORDERS, Record

TROUBLES = 0.4  # share of rounds with one
QUIET_WITHIN = 90.0  # seconds in which every client has an answer, or gives up


class Series:
    def __init__(self, folder: Path, seed: str, settings: Settings) -> None:
        self.folder = folder
        self.settings = settings
        # With as many copies demanded as there are members, there is no service while one is down.
        promised = settings.min_copies < settings.members
        self.record = Record(LEASE + 2.0 + settings.slack if promised else float("inf"))
        self.failovers = self.changes = 0
        self.log: list[str] = []
        self._seed = seed
        self._rng = random.Random(f"{seed} series")
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def findings(self) -> list[Finding]:
        return self.record.checker.findings

    async def run(self) -> None:
        record = self.record
        async with Group(self.folder, self.settings) as group:
            clients = (group, record, self._seed)
            self._producers, self._consumers = Producers(*clients), Consumers(*clients)
            self._operators = Operators(*clients)
            try:
                if not await self._whole(group):
                    return
                await self._operators.create_all()
                busy = self._start_clients()
                faults = Faults(group, record, self._rng)
                number = 0
                while self.failovers < self.settings.failovers:
                    number += 1
                    record.add(h.Round(time.time(), number))
                    await self._round(group, faults)
                    self._look_for_tracebacks(group)
                    if self.findings:
                        return
                await self._drain(group, busy)
            finally:
                self._producers.quiet = self._operators.quiet = True
                self._producers.over = self._operators.over = self._consumers.over = True
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                if self.findings:
                    self.log = await self._last_words(group)
                else:
                    await self._compare(group)

    # ---- the clients

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await work
            except Exception:
                self.record.strange("a client failed: " + traceback.format_exc())

        task = asyncio.ensure_future(run())
        self._tasks.append(task)
        return task

    def _start_clients(self) -> list[asyncio.Task[None]]:
        """The clients that end when they are told to be quiet, as tasks. Others run on."""
        producers, consumers, operators = self._producers, self._consumers, self._operators
        for work in (
            consumers.nsquark("our consumer", ORDERS, "nsquark"),
            consumers.pynsq("pynsq reader", ORDERS, "pynsq"),
            consumers.raw("consumer 1", ORDERS, "raw"),
            consumers.raw("consumer 2", ORDERS, "raw"),
            consumers.raw("consumer 3", HELD, "paused"),
            consumers.nsquark("our second consumer", HELD, "free"),
            consumers.raw("consumer 4", MOVES, "seeker"),
            consumers.pynsq("second pynsq reader", BORN, "first"),
            operators.look(),
            *(operators.read(topic) for topic in CHANNELS),
        ):
            self._start(work)
        return [
            self._start(work)
            for work in (
                producers.raw("producer 1"),
                producers.raw("producer 2"),
                producers.nsquark("our producer"),
                producers.pynsq("pynsq writer"),
                producers.http("http"),
                producers.staging("staging"),
                operators.bear(),
                operators.pause(),
                operators.seek(),
                operators.delete(),
            )
        ]

    # ---- rounds

    async def _whole(self, group: Group) -> bool:
        """Whether all members are in sync. If not, that is a finding."""
        within = self.settings.whole_within
        if await group.whole(within):
            return True
        told = {member.name: await member.replica() for member in group.members}
        text = f"the group is not whole {within:.0f} s after everything was mended: {told}"
        self.record.add(h.Stuck(time.time(), text))
        return False

    async def _round(self, group: Group, faults: Faults) -> None:
        rng = self._rng
        await asyncio.sleep(rng.uniform(0.2, 1.2))
        before, leader = group.term, group.primary
        trouble: asyncio.Task[None] | None = None
        if rng.random() < TROUBLES:
            trouble = asyncio.ensure_future(faults.trouble(faults.choose(faults.troubles)))
            if rng.random() < 0.5:
                await trouble
            else:
                await asyncio.sleep(rng.uniform(0.0, 2.0))
        fault = faults.choose(faults.of_primary)
        try:
            await faults.strike(fault, alone=trouble is None)
            if rng.random() < 0.5:
                # The lost member is back before or after another one leads.
                await asyncio.sleep(rng.uniform(0.0, 2.0))
            else:
                await self._replaced(group, before)
            if trouble is not None:
                await trouble
            await group.mend(reset=rng.random() < 0.3)
            await self._replaced(group, before)
        finally:
            if trouble is not None and not trouble.done():
                trouble.cancel()
                await asyncio.gather(trouble, return_exceptions=True)
        if not await self._whole(group):
            return
        if group.term == before:
            # No other member could lead, or a trouble woke the primary up too early.
            self.record.counts["primary went on in its term"] += 1
            return
        self.failovers += 1
        self.changes += group.primary is not leader
        self.record.counts["terms"] += group.term - before

    def _look_for_tracebacks(self, group: Group) -> None:
        for member in group.members:
            found = member.tracebacks()
            if found:
                self.record.strange(f"{member.name} logged {len(found)} tracebacks: {found[0]}")

    async def _replaced(self, group: Group, before: int) -> None:
        with suppress(TimeoutError):  # another member may lead only when the lost one is back
            await group.serving(before, LEASE + 5.0)

    # ---- the end

    async def _drain(self, group: Group, busy: list[asyncio.Task[None]]) -> None:
        """Everything is mended: nothing is published any more, and every message must come."""
        operators, record = self._operators, self.record
        self._producers.quiet = operators.quiet = True
        _, late = await asyncio.wait(busy, timeout=QUIET_WITHIN)
        if late:
            record.add(h.Stuck(time.time(), f"{len(late)} clients have had no answer"))
            return
        self._consumers.quiet = True
        await operators.insist("unpause", HELD, "paused")
        await operators.insist("seek", MOVES, "seeker", "earliest")
        for channel in operators.born[1:]:
            await operators.insist("create", BORN, channel)
        await operators.insist("create", BRIEF)
        for channel in ("left", "right"):
            await operators.insist("create", BRIEF, channel)
        for topic in CHANNELS:
            if not await operators.read_all(topic):
                record.strange(f"the log of {topic} could not be read")
        for topic, channels in ((BORN, operators.born[1:]), (BRIEF, ["left", "right"])):
            for channel in channels:
                self._start(self._consumers.raw(f"last of {topic} {channel}", topic, channel))
        await self._wait_for_messages()
        await operators.look_once()
        record.add(h.Drained(time.time()))

    async def _wait_for_messages(self) -> None:
        """Until nothing is owed, or nothing was finished for long enough."""
        checker, counts = self.record.checker, self.record.counts
        finished, moved = -1, time.monotonic()
        while checker.owing() and time.monotonic() - moved < self.settings.patience:
            if counts["FIN"] != finished:
                finished, moved = counts["FIN"], time.monotonic()
            await asyncio.sleep(0.2)

    async def _compare(self, group: Group) -> None:
        """The directories as they are when no client is left and the members have answered everything."""
        if self.settings.archive and not await group.archived():
            self.record.add(h.Stuck(time.time(), "the archive lacks segments, or the disk keeps them"))
            return
        if not await group.level():
            told = await group.primary.replica() if group.primary is not None else {}
            self.record.add(h.Stuck(time.time(), f"the members do not get level: {told}"))
            return
        await asyncio.gather(*(member.kill() for member in group.members))
        first, *others = group.members
        for other in others:
            for text in differences(first.data_path, other.data_path):
                self.record.add(h.Diverged(time.time(), text))
        self.record.counts["directories compared"] += len(others)
        if self.settings.archive:
            store = group.folder / archive.FOLDER
            for text in archive.faults(store, first.data_path):
                self.record.add(h.Diverged(time.time(), text))
            self.record.counts["objects in the archive"] += len(list(store.rglob("*.log")))
            self.record.counts["segments fetched from the archive"] += sum(
                archive.fetched(each.data_path) for each in group.members
            )

    async def _last_words(self, group: Group) -> list[str]:
        lines = []
        for member in group.members:
            lines.append(f"{member.name}: {await member.replica()}")
            lines += [f"{member.name}: {line}" for line in member.last_lines()]
        return lines
