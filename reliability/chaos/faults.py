"""What happens to a group: faults that take the primary away, and troubles that make it harder to replace.

Each is a method that begins it and returns when it has done its harm; `Group.mend` ends whatever is left.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from . import history as h
from .group import LEASE, Group, Member
from .record import Record

Fault = Callable[[Member], Awaitable[None]]
EXIT = 30.0  # seconds that a process may take to end after SIGTERM


class Faults:
    def __init__(self, group: Group, record: Record, rng: random.Random) -> None:
        self._group = group
        self._record = record
        self._rng = rng
        # How often each is chosen. The loss of the primary alone is what the time without service is for.
        self.of_primary: dict[str, tuple[int, Fault]] = {
            "SIGKILL": (5, self._kill),
            "SIGKILL, and back at once": (2, self._kill_and_back),
            "SIGSTOP": (3, self._stop),
            "cut off": (3, self._cut_off),
            "cut off one way": (3, self._cut_off_one_way),
            "deaf to etcd": (1, self._deafen),
            "handover": (3, self._hand_over),
            "SIGTERM": (3, self._terminate),
            "SIGKILL of all": (1, self._kill_all),
            "SIGKILL while etcd is stopped": (1, self._kill_without_etcd),
            "SIGKILL after the stream was cut": (1, self._kill_after_cut),
        }
        self.troubles: dict[str, tuple[int, Fault]] = {
            "SIGKILL of a standby": (2, self._kill_standby),
            "SIGSTOP of a standby": (2, self._stop_standby),
            "etcd restarted": (2, self._restart_etcd),
            "etcd stopped": (2, self._stop_etcd),
            "links delayed": (2, self._delay),
            "bytes held": (2, self._hold),
            "stream cut": (2, self._cut_stream),
            "primary without etcd": (1, self._primary_without_etcd),
            "standby without etcd": (1, self._standby_without_etcd),
            "short SIGSTOP of the primary": (1, self._stop_shortly),
        }

    # These lose the primary without any other loss.
    ALONE = frozenset(("SIGKILL", "SIGSTOP", "cut off", "cut off one way", "handover", "SIGTERM"))

    def choose(self, faults: dict[str, tuple[int, Fault]]) -> str:
        names = list(faults)
        return self._rng.choices(names, [faults[name][0] for name in names])[0]

    async def strike(self, name: str, alone: bool) -> None:
        """Take the primary away."""
        primary = await self._group.serving()
        self._record.counts[f"primary: {name}"] += 1
        self._record.add(h.PrimaryLost(time.time(), name, alone and name in self.ALONE))
        await self.of_primary[name][1](primary)

    async def trouble(self, name: str) -> None:
        primary = await self._group.serving()
        self._record.counts[f"trouble: {name}"] += 1
        await self.troubles[name][1](primary)

    async def _sleep(self, least: float, most: float) -> None:
        await asyncio.sleep(self._rng.uniform(least, most))

    def _standby(self, primary: Member) -> Member:
        return self._rng.choice([member for member in self._group.members if member is not primary])

    # ---- the primary

    async def _kill(self, primary: Member) -> None:
        await primary.kill()

    async def _kill_and_back(self, primary: Member) -> None:
        await primary.kill()
        await self._sleep(0.0, 0.5)
        await self._start(primary)

    async def _start(self, member: Member) -> None:
        if not member.running:
            await member.gone()
            await member.begin()

    async def _stop(self, primary: Member) -> None:
        """Until its lease has ended and another one leads: it wakes up as a primary that is none."""
        primary.signal(signal.SIGSTOP)
        await self._replaced()
        await self._sleep(0.0, 1.0)

    async def _replaced(self) -> None:
        """Wait until another member leads, or long enough for that."""
        term = self._group.term
        with suppress(TimeoutError):
            await self._group.serving(term, LEASE + 6.0)

    async def _cut_off(self, primary: Member) -> None:
        for link in primary.links:
            link.hold()
        await self._replaced()
        await self._sleep(0.0, 1.0)

    async def _cut_off_one_way(self, primary: Member) -> None:
        """No request of the primary reaches etcd, and the stream has one way left."""
        there = self._rng.random() < 0.5
        primary.link.hold(there, not there)
        primary.etcd_link.hold(True, False)
        await self._replaced()
        await self._sleep(0.0, 1.0)

    async def _deafen(self, primary: Member) -> None:
        """Etcd does what the primary asks, and its answers do not arrive.

        The primary may so have the standbys removed from isr before it fences. Then no member leads until the
        link is mended.
        """
        there = self._rng.random() < 0.5
        primary.link.hold(there, not there)
        primary.etcd_link.hold(False, True)
        await self._replaced()
        await self._sleep(0.0, 1.0)

    async def _hand_over(self, primary: Member) -> None:
        try:
            status, answer = await primary.ask("POST", "/replica/handover", within=5.0)
        except OSError:
            status, answer = 0, b""
        if status not in (0, 200, 409):
            self._record.strange(f"/replica/handover was answered {status} {answer[:200]!r}")
        if status != 200:  # no member is there to take over
            await primary.kill()

    async def _terminate(self, primary: Member) -> None:
        primary.signal(signal.SIGTERM)
        if not await primary.ended(EXIT):
            self._record.add(
                h.Stuck(time.time(), f"{primary.name} did not end within {EXIT:.0f} s of SIGTERM")
            )
            await primary.kill()
        await primary.gone()

    async def _kill_all(self, primary: Member) -> None:
        await asyncio.gather(*(member.kill() for member in self._group.members))
        for member in self._rng.sample(self._group.members, len(self._group.members)):
            await self._start(member)
            await self._sleep(0.0, 1.0)

    async def _kill_without_etcd(self, primary: Member) -> None:
        self._group.etcd.signal(signal.SIGSTOP)
        await self._sleep(0.0, 2.0)
        await primary.kill()
        await self._sleep(0.0, 3.0)
        self._group.etcd.signal(signal.SIGCONT)

    async def _kill_after_cut(self, primary: Member) -> None:
        """The primary goes on alone and dies: no other member may lead before it is back."""
        primary.link.hold()
        await self._sleep(1.0, 5.0)
        await primary.kill()
        await primary.link.mend()
        await self._sleep(0.0, 2.0)
        await self._start(primary)

    # ---- troubles

    async def _kill_standby(self, primary: Member) -> None:
        standby = self._standby(primary)
        await standby.kill()
        await self._sleep(0.0, 3.0)
        await self._start(standby)

    async def _stop_standby(self, primary: Member) -> None:
        standby = self._standby(primary)
        standby.signal(signal.SIGSTOP)
        await self._sleep(0.1, 4.0)
        standby.signal(signal.SIGCONT)

    async def _restart_etcd(self, primary: Member) -> None:
        etcd = self._group.etcd
        await etcd.kill()
        await self._sleep(0.0, 2.0)
        if not etcd.running:
            etcd.start()

    async def _stop_etcd(self, primary: Member) -> None:
        self._group.etcd.signal(signal.SIGSTOP)
        await self._sleep(0.2, 5.0)
        self._group.etcd.signal(signal.SIGCONT)

    async def _delay(self, primary: Member) -> None:
        links = [link for member in self._group.members for link in member.links if self._rng.random() < 0.6]
        for link in links:
            link.delay(self._rng.uniform(0.01, 0.3))
        await self._sleep(0.5, 3.0)
        for link in links:
            link.delay(0.0)

    async def _hold(self, primary: Member) -> None:
        """Bytes wait on their way, and arrive all at once."""
        for member in self._group.members:
            for link in member.links:
                link.hold(self._rng.random() < 0.5, self._rng.random() < 0.5)
        await self._sleep(0.1, 1.5)
        for member in self._group.members:
            for link in member.links:
                await link.mend()

    async def _cut_stream(self, primary: Member) -> None:
        there = self._rng.random() < 0.7
        primary.link.hold(there, not there or self._rng.random() < 0.5)
        await self._sleep(0.2, 4.0)
        await primary.link.mend(reset=self._rng.random() < 0.5)

    async def _primary_without_etcd(self, primary: Member) -> None:
        primary.etcd_link.hold()
        await self._sleep(1.0, 5.0)
        await primary.etcd_link.mend(reset=self._rng.random() < 0.5)

    async def _standby_without_etcd(self, primary: Member) -> None:
        link = self._standby(primary).etcd_link
        link.hold()
        await self._sleep(1.0, 5.0)
        await link.mend(reset=self._rng.random() < 0.5)

    async def _stop_shortly(self, primary: Member) -> None:
        primary.signal(signal.SIGSTOP)
        await self._sleep(0.1, 2.0)
        primary.signal(signal.SIGCONT)
