"""What the clients share: the group, the history as it grows, names of messages, and how long to wait."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.daemon import Client, Closed, identify

from . import history as h
from .checker import Checker
from .group import Group, Member

# What is done where. Topics on which less is done to the channels are those of which more is certain.
ORDERS, HELD, MOVES, BORN, BRIEF = "orders", "held", "moves", "born", "brief"
CHANNELS = {
    ORDERS: ("nsquark", "pynsq", "raw"),
    HELD: ("paused", "free"),  # pauses
    MOVES: ("seeker",),  # seeks
    BORN: ("first",),  # gets more channels
    BRIEF: (),  # topic and channels are deleted and created again
}
SIZES = (0, 0, 0, 0, 100, 100, 1000, 8000)
HANDSHAKE = 3.0  # seconds: a stopped process takes connections, and says nothing
ANSWER = 60.0
GONE = (OSError, ValueError, asyncio.IncompleteReadError)  # no answer, or half of one

T = TypeVar("T")


def is_standby(status: int, answer: bytes) -> bool:
    """Whether the member has only the routes of one that does not lead."""
    return (status == 404 and b'"NOT_FOUND"' in answer) or (status == 503 and b"NOT_PRIMARY" in answer)


class Record:
    """The history of a series, fed to the checker as it grows, and what was tried."""

    def __init__(self, longest_gap: float) -> None:
        self.checker = Checker(longest_gap)
        self.events: list[h.Event] = []
        self.counts: Counter[str] = Counter()
        self._operations = 0

    def add(self, event: h.Event) -> None:
        self.events.append(event)
        self.checker.feed(event)

    def operation(self) -> int:
        self._operations += 1
        return self._operations

    def strange(self, text: str) -> None:
        self.add(h.Strange(time.time(), text))


class Clients:
    """The base of all clients of a series. `over` ends them; `quiet` ends publishes and orders."""

    def __init__(self, group: Group, record: Record, seed: str) -> None:
        self.group = group
        self.record = record
        self.over = self.quiet = False
        self._seed = seed
        self._names = 0

    def rng(self, task: str) -> random.Random:
        return random.Random(f"{self._seed} {task}")

    def new_key(self) -> str:
        self._names += 1
        return f"m{self._names}"

    async def answer(self, member: Member, question: Coroutine[Any, Any, T], within: float = ANSWER) -> T:
        """The answer of a member. Raises Closed when another one leads, or after so many seconds.

        A member that was stopped and is not replaced answers in the end, so no request is given up that could
        still be carried out.
        """
        task = asyncio.ensure_future(question)
        end = asyncio.get_running_loop().time() + within
        try:
            while True:
                await asyncio.wait((task,), timeout=0.1)
                if task.done():
                    return task.result()
                if self.group.primary not in (None, member):
                    raise Closed("another member leads")
                if asyncio.get_running_loop().time() > end:
                    raise Closed("no answer")
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def primary(self) -> Member:
        """The primary, once one serves: the series says when that takes too long, and ends its clients."""
        while True:
            try:
                return await self.group.serving()
            except TimeoutError:
                continue

    async def connect(self, member: Member) -> Client:
        """A connection whose handshake is answered. Raises Closed."""
        client = await Client.connect(member.tcp_address)
        try:
            client.send(identify(feature_negotiation=True, heartbeat_interval=30_000, client_id="raw"))
            await self.answer(member, client.answer(), HANDSHAKE)
        except (Closed, TimeoutError):
            client.abort()
            raise Closed from None
        return client

    def connected(self, member: Member, topic: str = "", channel: str = "", rdy: int = 0) -> int:
        """The number of a new connection."""
        number = self.record.operation()
        self.record.add(h.Connected(time.time(), number, member.name, topic, channel, rdy))
        return number
