"""Dead letters: the messages whose last allowed attempt has failed.

The dead letters of a channel go to a topic of their own, `<topic>.<channel>.dead`. They wait there on the
channel `redeliver` until an operator sends them back, a consumer takes them or the channel is emptied. A dead
letter is a line of JSON that tells its history, a line feed, and the body as it was.

Nothing is lost on the way. The letter is on the disk before its channel finishes the message. When a letter
is sent back, the message is on the disk before the letter is finished. A crash in between leaves both.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from nsquark import kernel
from nsquark.errors import LogDamaged
from nsquark.log import LogReader, NotIndexed, Ranges, Run, Stored, read_messages
from nsquark.names import DEAD_LETTER_CHANNEL as CHANNEL
from nsquark.names import dead_topic

from .services import Services

if TYPE_CHECKING:
    from .channel import Channel
    from .topic import Topic

logger = logging.getLogger(__name__)

STEP = 500  # letters that are sent back together
STEP_BYTES = 4 << 20


@dataclass(slots=True, frozen=True)
class Letter:
    topic: str
    channel: str
    id: str
    position: int
    attempts: int
    timestamp: int  # when it was first published, ns since the epoch
    died: int
    body: kernel.Buffer

    def pack(self) -> bytes:
        history = {
            "topic": self.topic,
            "channel": self.channel,
            "id": self.id,
            "position": self.position,
            "attempts": self.attempts,
            "timestamp": self.timestamp,
            "died": self.died,
        }
        return json.dumps(history, separators=(",", ":")).encode() + b"\n" + self.body


def parse_letter(message: kernel.Buffer) -> Letter | None:
    """The dead letter in a message, or None: any client may publish to any topic."""
    line, found, body = bytes(message).partition(b"\n")
    try:
        history: dict[str, Any] = json.loads(line) if found else {}
        return Letter(
            str(history["topic"]),
            str(history["channel"]),
            str(history["id"]),
            int(history["position"]),
            int(history["attempts"]),
            int(history["timestamp"]),
            int(history["died"]),
            body,
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


class OnDisk:
    """A receipt that also waits for the fsync, whatever --sync-every says."""

    def __init__(self, services: Services, topic: Topic, done: Callable[[str | None], None]) -> None:
        self._services = services
        self._topic = topic
        self._done = done
        self._stored = services.options.sync_every == 1 or topic.ephemeral

    def settle(self, reason: str | None) -> None:
        if reason is None and not self._stored:
            self._stored = True
            self._topic.unsynced_receipts.append(self)
            self._services.syncer.request(self._topic)
        else:
            self._done(reason)


@dataclass(slots=True)
class Redelivered:
    redelivered: int = 0
    skipped: int = 0  # no dead letters of this channel
    failed: str | None = None


class DeadLetters:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._under_way: set[str] = set()

    def bury(self, channel: Channel, run: Run, attempts: int) -> None:
        """Store these messages as dead letters, and tell the channel whether that worked."""
        services = self._services
        clock = services.turn.clock

        def done(reason: str | None) -> None:
            if reason is None:
                channel.dead_lettering.arrived(run.position, run.count)
            else:
                channel.dead_lettering.failed(run.position, run.count, attempts, clock())

        letters = self._letters(channel, run, attempts, clock())
        try:
            topic = services.topic(dead_topic(channel.topic.name, channel.name))
            topic.channel(CHANNEL)
        except OSError as error:
            logger.error(
                "no topic for the dead letters of %s:%s: %s", channel.topic.name, channel.name, error
            )
            services.unhealthy(str(error))
            done(str(error))
            return
        logger.warning(
            "channel %s:%s: %d messages, delivered %d times, go to %s",
            channel.topic.name,
            channel.name,
            run.count,
            attempts,
            topic.name,
        )
        topic.publish([letter.pack() for letter in letters], 0.0, OnDisk(services, topic, done))

    @staticmethod
    def _letters(channel: Channel, run: Run, attempts: int, now: int) -> list[Letter]:
        letters = []
        begin = 0
        for number, end in enumerate(kernel.frame_ends(run.frames)):
            stored = Stored(run.position + number, 0, memoryview(run.frames)[begin:end])
            letters.append(
                Letter(
                    channel.topic.name,
                    channel.name,
                    stored.id,
                    stored.position,
                    attempts,
                    stored.time,
                    now,
                    stored.body,
                )
            )
            begin = end
        return letters

    # ---- the way back

    async def redeliver(
        self, channel: Channel, limit: int, chosen: str | int | None = None
    ) -> Redelivered | None:
        """Publish the present dead letters of a channel again, for this channel alone, `limit` at most.

        `chosen` is the id or the position of the only letter to send back, as the letter's history has them.
        None if letters are being sent back already. Raises LogCorrupt or OSError when they cannot be read.
        """
        name = dead_topic(channel.topic.name, channel.name)
        dead = self._services.topics.get(name)
        source = dead.channels.get(CHANNEL) if dead is not None else None
        if source is None:
            return Redelivered()
        if name in self._under_way:
            return None
        self._under_way.add(name)
        try:
            return await self._redeliver(source, channel, limit, chosen)
        finally:
            self._under_way.discard(name)

    async def _redeliver(
        self, source: Channel, channel: Channel, limit: int, chosen: str | int | None
    ) -> Redelivered:
        result = Redelivered()
        source.topic.commit()
        end = source.topic.visible_end
        seen = Ranges()
        if chosen is not None:
            limit = min(limit, 1)
        while result.redelivered < limit and result.failed is None:
            most = STEP if chosen is not None else min(STEP, limit - result.redelivered)
            wanted = _next_range(source, end, seen, most)
            if wanted is None:
                break
            letters = await self._read(source.topic, *wanted)
            if source.exiting or channel.exiting:
                result.failed = "exiting"
                break
            seen.add(wanted[0], wanted[0] + max(1, len(letters)))
            mine = [
                (position, letter)
                for position, letter in letters
                if letter is not None and (letter.topic, letter.channel) == (channel.topic.name, channel.name)
            ]
            if chosen is None:
                result.skipped += len(letters) - len(mine)
            else:  # only the first: a crash may have left the letter twice
                mine = [each for each in mine if chosen in (each[1].id, each[1].position)][:1]
            if mine:
                result.failed = await self._send_back(channel, [letter.body for _, letter in mine])
            if mine and result.failed is None:
                result.redelivered += len(mine)
                gone = Ranges()
                for position, _ in mine:
                    gone.add(position, position + 1)
                for start, end_of_run in gone:
                    source.discard(start, end_of_run)
        return result

    async def _read(self, topic: Topic, start: int, stop: int) -> list[tuple[int, Letter | None]]:
        """The messages of this range, or the first few of them if they are large."""
        while True:
            try:
                reader = LogReader(topic.log, start, stop, STEP_BYTES)
            except NotIndexed as error:
                await self._services.reads.fetch(error.segment)
                continue

            def work(reader: LogReader = reader) -> list[tuple[int, Letter | None]]:
                return [(stored.position, parse_letter(stored.body)) for stored in read_messages(reader)]

            try:
                return await self._services.reads.run(work)
            except LogDamaged as error:
                topic.health.leave_out(error)

    async def _send_back(self, channel: Channel, bodies: Sequence[kernel.Buffer]) -> str | None:
        """Publish for the channel alone and wait for the disk. Returns the reason of a failure."""
        topic = channel.topic
        stored = self._services.loop.create_future()

        def done(reason: str | None) -> None:
            if not stored.done():
                stored.set_result(reason)

        topic.publish_for(channel, bodies, OnDisk(self._services, topic, done))
        reason: str | None = await stored
        return reason


def _next_range(source: Channel, end: int, seen: Ranges, most: int) -> tuple[int, int] | None:
    """The next run of positions that wait on this channel before `end` and are not in `seen`."""
    waiting = ((entry.position, entry.position + entry.number) for entry in source.requeued)
    for start, stop in chain(waiting, source.fresh()):
        start = seen.next_gap(start)
        stop = min(stop, end, start + most, seen.next_start(start) or end)
        if start < stop:
            return start, stop
    return None
