"""Producers: our client, pynsq, a raw socket, HTTP, and an application that stages batches."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from nsquark.client import Config, Producer, Reconnect
from nsquark.errors import (
    ConnectFailed,
    ConnectionLost,
    DpubFailed,
    MpubFailed,
    NsquarkError,
    PendingFull,
    PubFailed,
    PublishTimeout,
)
from reliability.crashes.record import Publish, body_of, mpub_body
from tests.daemon import ERROR, RESPONSE, Client, Closed

from . import history as h
from .group import Member
from .record import BORN, BRIEF, GONE, HELD, MOVES, ORDERS, SIZES, Clients, is_standby

TOPICS = (ORDERS, ORDERS, ORDERS, HELD, MOVES, BORN, BRIEF)
FAILED = (b"E_PUB_FAILED", b"E_MPUB_FAILED", b"E_DPUB_FAILED")
LONGEST_DELAY_MS = 3000  # so that many are due behind a failover
CONFIG = Config(
    dial_timeout=1.0, heartbeat_interval=1.0, read_timeout=4.0, reconnect=Reconnect(first=0.1, cap=0.4)
)


class Producers(Clients):
    def _new(self, rng: random.Random) -> Publish:
        kind = rng.choice(("PUB", "PUB", "MPUB", "DPUB"))
        count = rng.choice((1, 4, 12)) if kind == "MPUB" else 1
        keys = tuple(self.new_key() for _ in range(count))
        bodies = [body_of(key, rng.choice(SIZES)) for key in keys]
        delay_ms = rng.randrange(1, LONGEST_DELAY_MS) if kind == "DPUB" else 0
        return Publish(kind, rng.choice(TOPICS), keys, bodies, delay_ms)

    def _sending(self, publish: Publish, way: str, connection: int = 0, batch: str = "") -> int:
        number = self.record.operation()
        self.record.counts[f"{publish.kind}, {way}"] += 1
        delay = publish.delay_ms / 1000
        self.record.add(
            h.Publishing(time.time(), number, publish.topic, publish.keys, delay, connection, batch)
        )
        return number

    def _ok(self, operation: int, publish: Publish) -> None:
        self.record.counts["messages answered OK"] += len(publish.keys)
        self.record.add(h.Published(time.time(), operation))

    def _refused(self, operation: int) -> None:
        self.record.counts["publishes refused"] += 1
        self.record.add(h.Refused(time.time(), operation))

    def _unknown(self, operation: int) -> None:
        self.record.counts["publishes without an answer"] += 1
        self.record.add(h.Unanswered(time.time(), operation))

    # ---- a raw socket

    async def raw(self, task: str) -> None:
        """Pipeline publishes on a socket. It goes to a new primary as soon as one is known."""
        rng = self.rng(task)
        while not self.quiet:
            member = await self.primary()
            try:
                client = await self.connect(member)
            except Closed:
                await asyncio.sleep(0.05)
                continue
            connection = self.connected(member)
            try:
                while not self.quiet:
                    await self._pipeline(client, member, connection, rng)
                    await asyncio.sleep(rng.uniform(0.0, 0.05))
            except Closed:
                await asyncio.sleep(0.05)
            finally:
                client.abort()

    async def _pipeline(self, client: Client, member: Member, connection: int, rng: random.Random) -> None:
        publishes = [self._new(rng) for _ in range(rng.choice((1, 1, 3, 8)))]
        waiting = [(self._sending(each, "raw socket", connection), each) for each in publishes]
        client.send(b"".join(each.command() for each in publishes))
        try:
            while waiting:
                frame = await self.answer(member, client.answer())
                operation, publish = waiting[0]
                if frame == (RESPONSE, b"OK"):
                    self._ok(operation, publish)
                elif frame.kind == ERROR and frame.data.startswith(FAILED):
                    self._refused(operation)
                    waiting.pop(0)
                    raise Closed
                else:
                    self.record.strange(f"{publish.kind} to {publish.topic}: {frame}")
                    raise Closed
                waiting.pop(0)
        except TimeoutError:
            raise Closed from None
        finally:
            for operation, _ in waiting:
                self._unknown(operation)

    # ---- our client

    async def nsquark(self, task: str) -> None:
        rng = self.rng(task)
        while not self.quiet:
            member = await self.primary()
            producer = Producer(member.tcp_address, config=CONFIG)
            try:
                while not self.quiet and self.group.primary in (None, member):
                    batch = [self._new(rng) for _ in range(rng.choice((1, 1, 4)))]
                    await asyncio.gather(*(self._with_client(producer, member, each) for each in batch))
                    await asyncio.sleep(rng.uniform(0.0, 0.05))
            finally:
                await producer.close(0)

    async def _with_client(self, producer: Producer, member: Member, publish: Publish) -> None:
        operation = self._sending(publish, "our client")
        if publish.kind == "MPUB":
            sent = producer.publish_many(publish.topic, publish.bodies, timeout=5.0)
        else:
            delay = publish.delay_ms / 1000 if publish.delay_ms else None
            sent = producer.publish(publish.topic, publish.bodies[0], delay=delay, timeout=5.0)
        try:
            await self.answer(member, sent)
        except (ConnectFailed, PendingFull, PubFailed, MpubFailed, DpubFailed):
            self._refused(operation)
        except PublishTimeout as error:
            if error.sent:
                self._unknown(operation)
            else:
                self._refused(operation)
        except (ConnectionLost, Closed):
            self._unknown(operation)
        except NsquarkError as error:
            self._unknown(operation)
            self.record.strange(f"{publish.kind} to {publish.topic}: {error!r}")
        else:
            self._ok(operation, publish)

    # ---- pynsq

    async def pynsq(self, task: str) -> None:
        """One publish at a time: an error of pynsq does not tell which of several it is about."""
        import nsq  # type: ignore[import-untyped]

        rng = self.rng(task)
        while not self.quiet:
            member = await self.primary()
            writer = nsq.Writer([member.tcp_address], reconnect_interval=0.3, heartbeat_interval=1)
            try:
                while not self.quiet and self.group.primary in (None, member):
                    if not any(each.connected() for each in writer.conns.values()):
                        await asyncio.sleep(0.05)
                        continue
                    await self._with_pynsq(writer, member, self._new(rng))
                    await asyncio.sleep(rng.uniform(0.0, 0.05))
            finally:
                writer.connect_to_nsqd = lambda host, port: None  # a Writer has no end of its own
                for each in list(writer.conns.values()):
                    each.close()

    async def _with_pynsq(self, writer: Any, member: Member, publish: Publish) -> None:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def callback(_conn: Any, data: Any) -> None:
            if not answered.done():
                answered.set_result(data)

        async def wait() -> Any:
            return await answered

        operation = self._sending(publish, "pynsq")
        if publish.kind == "MPUB":
            writer.mpub(publish.topic, publish.bodies, callback=callback)
        elif publish.kind == "DPUB":
            writer.dpub(publish.topic, publish.delay_ms, publish.bodies[0], callback=callback)
        else:
            writer.pub(publish.topic, publish.bodies[0], callback=callback)
        try:
            data = await self.answer(member, wait(), 10.0)
        except Closed:
            self._unknown(operation)
            return
        if data == b"OK":
            self._ok(operation, publish)
        elif any(each.decode() in str(data) for each in FAILED):
            self._refused(operation)
        else:
            self._unknown(operation)

    # ---- HTTP

    async def http(self, task: str) -> None:
        rng = self.rng(task)
        while not self.quiet:
            member = await self.primary()
            publish = self._new(rng)
            operation = self._sending(publish, "HTTP")
            if publish.kind == "MPUB":
                path, body = f"/mpub?topic={publish.topic}&binary=true", mpub_body(publish.bodies)
            else:
                defer = f"&defer={publish.delay_ms}" if publish.delay_ms else ""
                path, body = f"/pub?topic={publish.topic}{defer}", publish.bodies[0]
            try:
                status, answer = await self.answer(member, member.ask("POST", path, body))
            except ConnectionRefusedError:
                self._refused(operation)
                await asyncio.sleep(0.05)
            except GONE:
                self._unknown(operation)
                await asyncio.sleep(0.05)
            else:
                if (status, answer) == (200, b"OK"):
                    self._ok(operation, publish)
                elif (status == 503 and b"NOT_STORED" in answer) or is_standby(status, answer):
                    self._refused(operation)
                else:
                    self._unknown(operation)
                    if status != 503:
                        self.record.strange(f"{path} was answered {status} {answer[:200]!r}")
            await asyncio.sleep(rng.uniform(0.02, 0.1))

    # ---- staged batches

    async def staging(self, task: str) -> None:
        """Stage and publish one batch after the other, each until it is answered, as a Spark driver does."""
        rng = self.rng(task)
        batch = 0
        while not self.quiet:
            publishes = []
            for _ in range(rng.choice((1, 2))):
                keys = tuple(self.new_key() for _ in range(rng.choice((1, 10, 30))))
                bodies = [body_of(key, rng.choice(SIZES)) for key in keys]
                publishes.append(Publish("staged", ORDERS, keys, bodies))
            while not await self._stage(rng, batch, publishes):
                if self.quiet:
                    return
                await asyncio.sleep(0.1)
            batch += 1
            await asyncio.sleep(rng.uniform(0.1, 0.4))

    async def _stage(self, rng: random.Random, batch: int, publishes: list[Publish]) -> bool:
        """Whether the batch is published, as far as an answer says."""
        member = await self.primary()

        def post(path: str, body: bytes) -> Awaitable[tuple[int, bytes]]:
            return self.answer(member, member.ask("POST", path, body))

        wanted = []
        with suppress(*GONE):
            for partition, publish in enumerate(publishes):
                attempt = f"a{rng.randrange(1 << 60):x}"
                path = (
                    f"/staged/put?app=chaos&batch={batch}&partition={partition}"
                    f"&attempt={attempt}&seq=0&topic={publish.topic}"
                )
                status, _ = await post(path, mpub_body(publish.bodies))
                if status != 200:
                    return False
                wanted.append({"partition": partition, "attempt": attempt, "messages": len(publish.keys)})
            return await self._publish_staged(batch, publishes, wanted, post)
        return False

    async def _publish_staged(
        self,
        batch: int,
        publishes: list[Publish],
        wanted: list[dict[str, object]],
        post: Callable[[str, bytes], Awaitable[tuple[int, bytes]]],
    ) -> bool:
        operations = [self._sending(each, "HTTP", batch=f"batch {batch}") for each in publishes]
        status = 0
        try:
            body = json.dumps({"partitions": wanted}).encode()
            status, _ = await post(f"/staged/publish?app=chaos&batch={batch}", body)
        finally:
            for operation, publish in zip(operations, publishes, strict=True):
                if status == 200:
                    self._ok(operation, publish)
                else:
                    self._unknown(operation)
        return status == 200
