"""Consumers: our client and pynsq, which ask nsqlookupd, and a raw socket, which asks the group."""

from __future__ import annotations

import asyncio
import random
import struct
import time
from typing import Any

from nsquark.client import Config, Consumer, Reconnect
from nsquark.client.events import Connected, Event
from reliability.crashes.record import key_of
from tests.daemon import ERROR, MESSAGE, RESPONSE, Client, Closed

from . import history as h
from .group import Member
from .record import MOVES, Clients

RDY = 10
REQUEUED = 0.06  # share of deliveries
LONGEST_DELAY_MS = 1500
CONFIG = Config(
    dial_timeout=1.0,
    heartbeat_interval=1.0,
    read_timeout=4.0,
    reconnect=Reconnect(first=0.1, cap=0.5),
    max_in_flight=RDY,
    max_attempts=0,
    backoff=None,
    lookupd_poll_interval=0.3,
    lookupd_poll_jitter=0.0,
    lookupd_poll_timeout=2.0,
)


class Consumers(Clients):
    def _member(self, address: str) -> Member:
        return next(each for each in self.group.members if each.tcp_address == address)

    def _delivered(self, connection: int, message_id: bytes, body: bytes) -> bool:
        key = key_of(body)
        if key is None:
            self.record.strange(f"a message that was not published: {body[:60]!r}")
            return False
        self.record.counts["deliveries"] += 1
        self.record.add(h.Delivered(time.time(), connection, message_id.decode("ascii"), key))
        return True

    def _finishing(self, connection: int, message_id: bytes) -> None:
        self.record.counts["FIN"] += 1
        self.record.add(h.Finishing(time.time(), connection, message_id.decode("ascii")))

    def _requeuing(self, connection: int, message_id: bytes, delay: float) -> None:
        self.record.counts["REQ"] += 1
        self.record.add(h.Requeuing(time.time(), connection, message_id.decode("ascii"), delay))

    def _delay_ms(self, rng: random.Random) -> int | None:
        """The delay of a REQ in place of a FIN."""
        if rng.random() > REQUEUED or self.quiet:
            return None
        return rng.choice((0, rng.randrange(1, LONGEST_DELAY_MS)))

    # ---- our client

    async def nsquark(self, task: str, topic: str, channel: str) -> None:
        rng = self.rng(task)
        latest: dict[str, int] = {}  # address: its connection
        numbers: dict[Any, int] = {}  # subscription: its connection

        def on_event(event: Event) -> None:
            if isinstance(event, Connected):
                member = self._member(event.address)
                latest[event.address] = self.connected(member, topic, channel, RDY)

        consumer = Consumer(
            topic, channel, lookupd=self.group.lookupd.http_address, config=CONFIG, on_event=on_event
        )
        async with consumer:
            try:
                async for message in consumer:
                    source = message.source
                    if source not in numbers:
                        if source.lost:
                            continue  # which of two connections it came by is not known
                        numbers[source] = latest[source.address]
                    number = numbers[source]
                    if not self._delivered(number, message.id, message.body):
                        continue
                    delay_ms = self._delay_ms(rng)
                    if delay_ms is None:
                        self._finishing(number, message.id)
                        message.finish()
                    else:
                        self._requeuing(number, message.id, delay_ms / 1000)
                        message.requeue(delay_ms / 1000, backoff=False)
            finally:
                await consumer.close(0)

    # ---- pynsq

    async def pynsq(self, task: str, topic: str, channel: str) -> None:
        import nsq  # type: ignore[import-untyped]

        rng = self.rng(task)
        clients = self

        class Reader(nsq.Reader):  # type: ignore[misc]
            def _on_connection_ready(self, conn: Any, **named: Any) -> None:
                super()._on_connection_ready(conn, **named)
                member = clients._member(conn.id)
                conn.number = clients.connected(member, topic, channel, RDY)

            def _on_message(self, conn: Any, message: Any, **named: Any) -> None:
                message.number = conn.number
                super()._on_message(conn, message, **named)

        def handle(message: Any) -> None:
            message.enable_async()
            if not clients._delivered(message.number, message.id, message.body):
                return
            delay_ms = clients._delay_ms(rng)
            if delay_ms is None:
                clients._finishing(message.number, message.id)
                message.finish()
            else:
                clients._requeuing(message.number, message.id, delay_ms / 1000)
                message.requeue(backoff=False, time_ms=delay_ms)

        reader = Reader(
            topic=topic,
            channel=channel,
            message_handler=handle,
            lookupd_http_addresses=[f"http://{self.group.lookupd.http_address}"],
            max_in_flight=RDY,
            max_tries=0,
            lookupd_poll_interval=1,
            heartbeat_interval=1,
        )
        try:
            while True:
                await asyncio.sleep(0.5)
                reader.connection_attempts.clear()  # it would wait for 10 s
        finally:
            reader.close()

    # ---- a raw socket

    async def raw(self, task: str, topic: str, channel: str) -> None:
        """Come, consume, leave, and come again."""
        rng = self.rng(task)
        while not self.over:
            member = await self.primary()
            try:
                client = await self.connect(member)
            except Closed:
                await asyncio.sleep(0.05)
                continue
            try:
                await self._consume(client, member, rng, topic, channel)
            except (Closed, TimeoutError):
                await asyncio.sleep(0.05)
            finally:
                client.abort()

    async def _consume(
        self, client: Client, member: Member, rng: random.Random, topic: str, channel: str
    ) -> None:
        client.send(b"SUB %b %b\n" % (topic.encode(), channel.encode()))
        frame = await self.answer(member, client.answer())
        if frame.kind == ERROR:
            raise Closed  # the primary is leaving
        if frame != (RESPONSE, b"OK"):
            self.record.strange(f"SUB {topic} {channel}: {frame}")
            raise Closed
        rdy = rng.choice((1, RDY))
        number = self.connected(member, topic, channel, rdy)
        client.rdy(rdy)
        while rng.random() > 0.005 or self.quiet:
            frame = await self.answer(member, client.frame(), float("inf"))
            if frame.kind != MESSAGE:
                # A seek ends the flight of what it does not deliver again.
                if topic != MOVES or not frame.data.startswith((b"E_FIN_FAILED", b"E_REQ_FAILED")):
                    self.record.strange(f"{topic}/{channel}: {frame}")
                continue
            _, _, message_id = struct.unpack_from(">qH16s", frame.data)
            if not self._delivered(number, message_id, frame.data[26:]):
                continue
            delay_ms = self._delay_ms(rng)
            if delay_ms is None:
                self._finishing(number, message_id)
                client.send(b"FIN %b\n" % message_id)
            else:
                self._requeuing(number, message_id, delay_ms / 1000)
                client.send(b"REQ %b %d\n" % (message_id, delay_ms))
