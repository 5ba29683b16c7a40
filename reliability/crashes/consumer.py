"""A consumer: subscribes, and finishes, requeues, defers, touches and forgets what it gets."""

from __future__ import annotations

import asyncio
import json
import random
import struct
import time
from collections.abc import Callable

from tests.daemon import ERROR, MESSAGE, PATIENCE, RESPONSE, Client, Closed, Message

from . import history as h
from .record import BRIEF, LONGEST_DELAY_MS, MARK, SHORT_TIMEOUT, Record, key_of


class Consumer:
    """A subscribed connection, and what it does with what it gets."""

    def __init__(
        self,
        record: Record,
        client: Client,
        rng: random.Random,
        channel: tuple[str, str],
        timeout: float,
        unexpected: Callable[[str], None],
    ) -> None:
        """`channel` is a topic and its channel. `unexpected` hears of what is right only when nsqd stops."""
        self._record = record
        self._client = client
        self._rng = rng
        self._topic, self._channel = channel
        self._unexpected = unexpected
        self._timeout = timeout
        self._number = record.operation()
        self._held: list[Message] = []
        self._asked = False
        self._there = False
        self.answers = 0  # to questions

    def __str__(self) -> str:
        return f"#{self._number} on {self._topic}/{self._channel}"

    async def subscribe(self, rdy: int) -> None:
        add, client = self._record.add, self._client
        add(h.Subscribing(time.time(), self._number, self._topic, self._channel, self._timeout))
        self._there = True
        client.send(b"SUB %b %b\n" % (self._topic.encode(), self._channel.encode()))
        frame = await client.answer()
        if frame != (RESPONSE, b"OK"):
            if self._topic != BRIEF:
                self._unexpected(f"{self}: {frame}")
            raise Closed
        add(h.Subscribed(time.time(), self._number))
        self._record.counts["subscriptions"] += 1
        client.rdy(rdy)

    def leave(self) -> None:
        if self._there:
            self._record.add(h.Disconnected(time.time(), self._number))
        self._client.abort()

    async def run(self) -> None:
        """Finish, requeue, defer, touch, hold and forget, until it is time to leave."""
        rng = self._rng
        while rng.random() > 0.004:
            try:
                async with asyncio.timeout(0.02 if self._held else PATIENCE):
                    message = await self.receive()
            except TimeoutError:
                message = None
            if message is not None:
                # One that has timed out here and comes again is answered once.
                self._held = [each for each in self._held if each.id != message.id]
                self._held.append(message)
                if rng.random() < 0.1:
                    continue
            if self._held and not (self._timeout == SHORT_TIMEOUT and rng.random() < 0.2):
                self.answer(self._held.pop(rng.randrange(len(self._held))))
            if rng.random() < 0.2:
                self.ask()

    def _strange(self, text: str) -> None:
        self._record.add(h.Strange(time.time(), text))

    async def receive(self) -> Message | None:
        """Take the next frame; returns the message if it is one."""
        frame = await self._client.frame()
        at = time.time()
        if frame.kind == MESSAGE:
            timestamp, attempts, message_id = struct.unpack_from(">qH16s", frame.data)
            message = Message(timestamp, attempts, message_id, frame.data[26:])
            self._delivered(message, at)
            return message
        if frame.kind == ERROR:
            self._error(frame.data, at)
        else:
            self._strange(f"{self}: {frame}")
        return None

    def _delivered(self, message: Message, at: float) -> None:
        body, died_in = message.body, None
        if self._topic.endswith(".dead"):
            line, _, body = body.partition(b"\n")
            letter = json.loads(line)
            died_in = (letter["topic"], letter["channel"])
            self._record.counts["dead letters delivered"] += 1
        key = key_of(body)
        if key is None:
            self._strange(f"{self}: a message that was not published: {body[:60]!r}")
            return
        self._record.counts["deliveries"] += 1
        self._record.counts["deliveries again"] += message.attempts > 1
        message_id = message.id.decode("ascii", "replace")
        self._record.add(
            h.Delivered(at, self._number, message_id, message.timestamp, message.attempts, key, died_in)
        )

    def _error(self, data: bytes, at: float) -> None:
        words = data.split(b" ")
        if words[0] == b"E_TOUCH_FAILED" and words[2] == MARK:
            self._asked = False
            self.answers += 1
            self._record.add(h.Answered(at, self._number))
        elif words[0] in (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED"):
            self._record.counts["answers too late"] += 1
            self._record.add(h.AnswerFailed(at, self._number, words[2].decode(), words[1].decode()))
        else:
            self._strange(f"{self}: {data!r}")

    def ask(self) -> None:
        """Send something that is answered, unless an answer is awaited already."""
        if not self._asked:
            self._asked = True
            self._record.add(h.Asking(time.time(), self._number))
            self._client.send(b"TOUCH %b\n" % MARK)

    def answer(self, message: Message) -> None:
        rng = self._rng
        action = rng.choice(("fin", "fin", "fin", "fin", "fin", "touch", "hold on", "req", "defer"))
        message_id = message.id.decode("ascii", "replace")
        if action in ("touch", "hold on"):
            self._record.counts["TOUCH"] += 1
            self._record.add(h.Touching(time.time(), self._number, message_id))
            self._client.touch(message)
        if action == "hold on":
            self._held.append(message)
        elif action in ("req", "defer"):
            delay_ms = rng.randrange(1, LONGEST_DELAY_MS) if action == "defer" else 0
            self._record.counts["REQ with delay" if delay_ms else "REQ 0"] += 1
            self._record.add(h.Requeuing(time.time(), self._number, message_id, delay_ms / 1000))
            self._client.req(message, delay_ms)
        else:
            self.finish(message)

    def finish(self, message: Message) -> None:
        self._record.counts["FIN"] += 1
        self._record.add(h.Finishing(time.time(), self._number, message.id.decode("ascii", "replace")))
        self._client.fin(message)
