"""A load that makes nsqd write everything it can write, and notes what nsqd has promised, and when.

"When" is a point of the trace: an answer is out once so many bytes were sent on the connection of its client.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

from tests.daemon import PATIENCE, Client, Closed, Frame, Message, Nsqd, dpub, mpub, pub, sized

HOUR_MS = 3_600_000
ENOUGH = 150  # messages that a load publishes at least
READ, UNREAD = "read", "unread"  # the channels of topic `orders`
ORDERS, DONE, STAGED = "orders", "done", "staged"
APP = "nightly"
CHANNELS = {ORDERS: (READ, UNREAD), DONE: ("all",), STAGED: ("all",)}


class Answer(NamedTuple):
    """An answer is out once so many bytes were sent between these ports, since they were connected."""

    ports: int  # as in `trace.Call`
    received: int
    connected: int  # monotonic ns


@dataclass(slots=True, eq=False)
class Publish:
    """A command, and the answer if it was OK."""

    topic: str
    bodies: list[bytes]
    sent: int  # monotonic ns
    deferred: bool = False
    life: int = 0  # of a topic that is deleted and created again
    answer: Answer | None = None


@dataclass(slots=True, eq=False)
class Step:
    """A FIN, or a REQ with a delay of an hour, and the answer behind which it is in the journal."""

    topic: str
    channel: str
    body: bytes
    finishes: bool
    sent: int
    answer: Answer | None = None


@dataclass(slots=True, eq=False)
class Deletion:
    topic: str
    life: int
    sent: int
    answer: Answer | None = None


@dataclass(slots=True, eq=False)
class Pause:
    paused: bool
    sent: int
    answer: Answer | None = None


@dataclass(slots=True, eq=False)
class Batch:
    """A staged batch: all of it is published, or nothing."""

    number: int
    bodies: dict[str, list[bytes]]
    sent: int
    answer: Answer | None = None


@dataclass(slots=True)
class Promises:
    """Everything that clients know."""

    publishes: list[Publish] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    deletions: list[Deletion] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    ids: dict[bytes, bytes] = field(default_factory=dict)  # of messages that were delivered: their bodies
    refused: int = 0


def _ports(writer: asyncio.StreamWriter) -> int:
    theirs: int = writer.get_extra_info("peername")[1]
    own: int = writer.get_extra_info("sockname")[1]
    return theirs << 16 | own


class _Counting(Client):
    """A connection that counts what it has received."""

    async def __aenter__(self) -> _Counting:
        return self

    received = 0
    connected = 0

    async def _read_frame(self) -> Frame:
        frame = await super()._read_frame()
        self.received += 8 + len(frame.data)
        return frame

    @property
    def answered(self) -> Answer:
        return Answer(_ports(self.writer), self.received, self.connected)


class Load:
    def __init__(self, nsqd: Nsqd, seed: int, seconds: float, pace: float = 0.0) -> None:
        """`pace` is the pause of each publisher, in seconds."""
        self.promises = Promises()
        self._nsqd = nsqd
        self._random = random.Random(seed)
        self._seconds = seconds
        self._pace = pace
        self._end = 0.0
        self._number = 0

    async def run(self) -> Promises:
        for topic, channels in CHANNELS.items():
            await self._post(f"/topic/create?topic={topic}")
            for channel in channels:
                await self._post(f"/channel/create?topic={topic}&channel={channel}")
        self._end = time.monotonic() + self._seconds
        work: list[Callable[[], Awaitable[None]]] = [
            lambda: self._publish(ORDERS),
            lambda: self._publish(ORDERS),
            lambda: self._publish(DONE),
            lambda: self._consume(ORDERS, READ, picky=True),
            lambda: self._consume(DONE, "all", picky=False),
            self._delete,
            self._pause,
            self._stage,
        ]
        tasks = [asyncio.create_task(self._guard(each)) for each in work]
        await asyncio.gather(*tasks)
        return self.promises

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Closed:
            if self._nsqd.running:
                raise

    @property
    def _goes_on(self) -> bool:
        """For the given time, and until there is enough to look at, however slow the machine is."""
        return time.monotonic() < self._end or self._number < ENOUGH

    # ---- talking

    async def _connect(self) -> _Counting:
        now = time.monotonic_ns()
        client = await _Counting.connect(self._nsqd.tcp_address)
        assert isinstance(client, _Counting)
        client.connected = now
        return client

    async def _http(self, path: str, body: bytes = b"") -> tuple[int, bytes, Answer]:
        host, _, port = self._nsqd.http_address.rpartition(":")
        now = time.monotonic_ns()
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                head = f"POST {path} HTTP/1.1\r\nHost: nsqd\r\nConnection: close\r\n"
                head += f"Content-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                data = await reader.read()
                answer = Answer(_ports(writer), len(data), now)
            finally:
                writer.close()
        return int(data.split(b" ", 2)[1]), data.partition(b"\r\n\r\n")[2], answer

    async def _post(self, path: str, body: bytes = b"") -> Answer | None:
        """The answer if it was 200."""
        status, _, answer = await self._http(path, body)
        self.promises.refused += status != 200
        return answer if status == 200 else None

    def _body(self, what: str) -> bytes:
        self._number += 1
        filler = self._random.choice((0, 20, 300, 300, 900, 5000))
        return b"%s-%d|" % (what.encode(), self._number) + self._random.randbytes(filler)

    # ---- publishing

    async def _publish(self, topic: str) -> None:
        choice = self._random
        async with await self._connect() as client:
            while self._goes_on:
                bodies = [self._body(topic) for _ in range(choice.choice((1, 1, 1, 2, 5)))]
                publish = Publish(topic, bodies, time.monotonic_ns())
                self.promises.publishes.append(publish)
                if len(bodies) > 1:
                    client.send(mpub(topic, bodies))
                elif topic == ORDERS and choice.random() < 0.2:
                    publish.deferred = True
                    client.send(dpub(topic, HOUR_MS, bodies[0]))
                else:
                    client.send(pub(topic, bodies[0]))
                frame = await client.answer()
                if frame.data == b"OK":
                    publish.answer = client.answered
                else:
                    self.promises.refused += 1
                await asyncio.sleep(self._pace)

    async def _delete(self) -> None:
        """Topics that come and go."""
        life = 0
        while self._goes_on:
            life += 1
            topic = f"short{life % 2}"
            for _ in range(self._random.randint(1, 4)):
                bodies = [self._body(topic)]
                publish = Publish(topic, bodies, time.monotonic_ns(), life=life)
                self.promises.publishes.append(publish)
                publish.answer = await self._post(f"/pub?topic={topic}", bodies[0])
            deletion = Deletion(topic, life, time.monotonic_ns())
            self.promises.deletions.append(deletion)
            deletion.answer = await self._post(f"/topic/delete?topic={topic}")
            if deletion.answer is None:
                await self._post(f"/topic/delete?topic={topic}")
            await asyncio.sleep(self._random.random() * 0.05)

    async def _pause(self) -> None:
        paused = False
        while self._goes_on:
            paused = not paused
            pause = Pause(paused, time.monotonic_ns())
            self.promises.pauses.append(pause)
            verb = "pause" if paused else "unpause"
            pause.answer = await self._post(f"/channel/{verb}?topic={ORDERS}&channel={UNREAD}")
            await asyncio.sleep(self._random.random() * 0.1)

    async def _stage(self) -> None:
        number = 0
        while self._goes_on:
            number += 1
            batch = Batch(number, {}, time.monotonic_ns())
            self.promises.batches.append(batch)
            partitions = []
            for partition in range(2):
                messages = 0
                for seq, topic in enumerate((STAGED, ORDERS)):
                    bodies = [self._body(f"batch{number}") for _ in range(self._random.randint(1, 3))]
                    batch.bodies.setdefault(topic, []).extend(bodies)
                    messages += len(bodies)
                    place = f"app={APP}&batch={number}&partition={partition}&attempt=a{number}"
                    body = len(bodies).to_bytes(4, "big") + b"".join(map(sized, bodies))
                    await self._post(f"/staged/put?{place}&seq={seq}&topic={topic}", body)
                partitions.append({"partition": partition, "attempt": f"a{number}", "messages": messages})
            body = json.dumps({"partitions": partitions}).encode()
            batch.answer = await self._post(f"/staged/publish?app={quote(APP)}&batch={number}", body)
            await asyncio.sleep(self._random.random() * 0.1)

    # ---- consuming

    async def _consume(self, topic: str, channel: str, picky: bool) -> None:
        """Finish what comes; if `picky`, requeue some of it, and leave some in flight."""
        choice = self._random
        async with await self._connect() as client:
            await client.sub(topic, channel, 20)
            unsure: list[Step] = []
            while self._goes_on:
                try:
                    message = await client.message(0.05)
                except TimeoutError:
                    message = None
                if message is not None:
                    self._seen(message)
                    fate = choice.random() if picky else 0.0
                    if fate < 0.7 or fate > 0.99:
                        if fate < 0.99:  # else it stays in flight
                            unsure.append(self._step(topic, channel, message, True))
                            client.fin(message)
                    elif fate < 0.85:
                        unsure.append(self._step(topic, channel, message, False))
                        client.req(message, HOUR_MS)
                    else:
                        client.req(message, 0)
                if unsure and (message is None or len(unsure) >= 10):
                    await client.caught_up()
                    for step in unsure:
                        step.answer = client.answered
                    unsure = []

    def _seen(self, message: Message) -> None:
        known = self.promises.ids.setdefault(message.id, message.body)
        assert known == message.body, f"{message.id!r} is the id of two messages"

    def _step(self, topic: str, channel: str, message: Message, finishes: bool) -> Step:
        step = Step(topic, channel, message.body, finishes, time.monotonic_ns())
        self.promises.steps.append(step)
        return step
