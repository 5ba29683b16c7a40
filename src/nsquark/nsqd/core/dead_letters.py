"""Dead letters: messages that were delivered as often as they may be, and where they go.

Those of a channel go to a topic of their own, `<topic>.<channel>.dead`, and wait there on the channel
`redeliver` until they are sent back, consumed or emptied away. A dead letter is a line of JSON that tells its
history, a line feed, and the body as it was.

Nothing is lost on the way: the letter is on the disk before the message is finished where it came from, and
the other way round when it is sent back. A crash in between leaves it in both places.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any

from nsquark import kernel
from nsquark.errors import LogDamaged
from nsquark.log import LogReader, Ranges, Run, Stored, read_messages
from nsquark.names import EPHEMERAL, is_ephemeral

if TYPE_CHECKING:
    from .channel import Channel
    from .services import Services
    from .topic import Topic

logger = logging.getLogger(__name__)

SUFFIX = ".dead"
CHANNEL = "redeliver"
MAX_NAME = 64
HASH_LENGTH = 10
STEP = 500  # letters that are sent back together
STEP_BYTES = 4 << 20


def dead_topic(topic: str, channel: str) -> str:
    """Where the dead letters of a channel go.

    What comes of something ephemeral is ephemeral. A name that would be too long is cut, and told apart from
    others by a hash of the whole.
    """
    suffix = SUFFIX + (EPHEMERAL if is_ephemeral(topic) or is_ephemeral(channel) else "")
    whole = f"{topic.removesuffix(EPHEMERAL)}.{channel.removesuffix(EPHEMERAL)}"
    if len(whole) + len(suffix) <= MAX_NAME:
        return whole + suffix
    digest = sha256(f"{topic}\n{channel}".encode()).hexdigest()[:HASH_LENGTH]
    return f"{whole[: MAX_NAME - len(suffix) - HASH_LENGTH - 1]}.{digest}{suffix}"


def is_dead_topic(topic: str) -> bool:
    """Whether this is where dead letters go. What dies there stays there."""
    return topic.removesuffix(EPHEMERAL).endswith(SUFFIX)


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
    """The dead letter that is in a message, or None if there is none: anybody may publish anywhere."""
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
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


class OnDisk:
    """A receipt that waits for the fsync too, whatever --sync-every says."""

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
        """Store these messages among the dead letters; the channel is told when they are there, or not."""
        services = self._services
        clock = services.turn.clock

        def done(reason: str | None) -> None:
            if reason is None:
                channel.buried(run.position, run.count)
            else:
                channel.not_buried(run.position, run.count, attempts, clock())

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

    async def redeliver(self, channel: Channel, limit: int) -> Redelivered | None:
        """Publish the dead letters of a channel again, for it alone: those there are now, `limit` at most.

        None if that is being done already. Raises LogCorrupt or OSError when they cannot be read.
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
            return await self._redeliver(source, channel, limit)
        finally:
            self._under_way.discard(name)

    async def _redeliver(self, source: Channel, channel: Channel, limit: int) -> Redelivered:
        result = Redelivered()
        source.topic.commit()
        end = source.topic.log.end
        seen = Ranges()
        while result.redelivered < limit and result.failed is None:
            wanted = _next_range(source, end, seen, min(STEP, limit - result.redelivered))
            if wanted is None:
                break
            letters = await self._read(source.topic, *wanted)
            if source.exiting or channel.exiting:
                result.failed = "exiting"
                break
            seen.add(wanted[0], wanted[0] + max(1, len(letters)))
            mine = [
                (position, letter.body)
                for position, letter in letters
                if letter is not None and (letter.topic, letter.channel) == (channel.topic.name, channel.name)
            ]
            result.skipped += len(letters) - len(mine)
            if mine:
                result.failed = await self._send_back(channel, [body for _, body in mine])
            if mine and result.failed is None:
                result.redelivered += len(mine)
                gone = Ranges()
                for position, _ in mine:
                    gone.add(position, position + 1)
                for start, end_of_run in gone:
                    source.discard(start, end_of_run)
        return result

    async def _read(self, topic: Topic, start: int, stop: int) -> list[tuple[int, Letter | None]]:
        """The messages of this range, or the first few of them."""
        while True:
            reader = LogReader(topic.log, start, stop, STEP_BYTES)

            def work(reader: LogReader = reader) -> list[tuple[int, Letter | None]]:
                return [(stored.position, parse_letter(stored.body)) for stored in read_messages(reader)]

            try:
                return await self._services.reads.run(work)
            except LogDamaged as error:
                topic.leave_out(error)

    async def _send_back(self, channel: Channel, bodies: Sequence[kernel.Buffer]) -> str | None:
        """Publish for the channel alone; returns, once that is on the disk, what went wrong."""
        topic = channel.topic
        stored = self._services.loop.create_future()

        def done(reason: str | None) -> None:
            if not stored.done():
                stored.set_result(reason)

        topic.publish_for(channel, bodies, OnDisk(self._services, topic, done))
        reason: str | None = await stored
        return reason


def _next_range(source: Channel, end: int, seen: Ranges, most: int) -> tuple[int, int] | None:
    """Positions that wait on this channel, lie before `end` and have not been seen, and follow each other."""
    waiting = ((position, position + number) for position, number, _ in source.requeued())
    for start, stop in chain(waiting, source.fresh()):
        start = seen.next_gap(start)
        stop = min(stop, end, start + most, seen.next_start(start) or end)
        if start < stop:
            return start, stop
    return None
