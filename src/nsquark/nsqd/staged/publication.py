"""A staged batch on its way into the logs of its topics, exactly once whatever happens meanwhile.

Before the first message is stored, the intent is on the disk: which stages are meant, in which order, and for
each topic where its log ended and which message ids were set aside for the batch. Then the stages are stored
piece by piece, a piece a turn of the event loop, with other publishes in between. Ids are never given twice,
so after a crash the ids that lie in the log from that position on say exactly what of the batch is stored.
After a power cut that may be any part of it: the disk may have kept a later piece and lost an earlier one.
The log is kept from there on until the batch is complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nsquark import kernel
from nsquark.errors import LogDamaged
from nsquark.log import Ranges
from nsquark.nsqd.core.channel import LAST_DUE
from nsquark.nsqd.core.topic import Topic
from nsquark.wire import Mpub

from . import stage_file

if TYPE_CHECKING:
    from nsquark.nsqd.broker import Broker

logger = logging.getLogger(__name__)

PIECE = 1 << 20  # of a stage, to be stored in one turn; a single put may be larger, up to --max-body-size
SYNC_STEP = 32 << 20  # how much is stored before the disk gets it, beside the storing of more


class Part(NamedTuple):
    """A stage of the batch."""

    partition: int
    attempt: str
    size: int


@dataclass(slots=True)
class Share:
    """A topic's part of the batch: `count` messages, ids from `first_id` on, none before `position`.

    `stored` are those of its messages that are in the log, counted from 0.
    """

    position: int
    first_id: int
    count: int
    stored: Ranges = field(default_factory=Ranges, compare=False)


@dataclass(slots=True)
class Intent:
    """Everything that is needed to publish the batch, or to go on after a crash."""

    batch: int
    time_ns: int
    parts: list[Part]
    shares: dict[str, Share] = field(default_factory=dict)
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "time_ns": self.time_ns,
            "parts": [list(part) for part in self.parts],
            "shares": {
                topic: [share.position, share.first_id, share.count] for topic, share in self.shares.items()
            },
            "note": self.note,
        }

    @classmethod
    def from_json(cls, known: dict[str, Any]) -> Intent:
        """Raises KeyError, TypeError or ValueError."""
        return cls(
            int(known["batch"]),
            int(known["time_ns"]),
            [Part(int(partition), str(attempt), int(size)) for partition, attempt, size in known["parts"]],
            {
                topic: Share(int(position), int(first_id), int(count))
                for topic, (position, first_id, count) in known["shares"].items()
            },
            str(known.get("note", "")),
        )


class NotStored(OSError):
    """A topic refused a piece of the batch. What came before it is stored; the rest can be tried again."""


class _Receipt:
    """Remembers whether anything it stands for could not be stored."""

    __slots__ = ("reason",)

    def __init__(self) -> None:
        self.reason: str | None = None

    def settle(self, reason: str | None) -> None:
        self.reason = self.reason or reason


class Publication:
    """Run it until it returns: then all of the batch is in the logs and on the disk."""

    def __init__(self, broker: Broker, directory: Path, intent: Intent) -> None:
        """`directory` is where the stages lie. The topics are there, those of a new intent at least."""
        self.intent = intent
        self._broker = broker
        self._directory = directory
        self._topics: dict[str, Topic] = {}
        for name, share in intent.shares.items():
            topic = broker.topics.get(name)
            # A topic that was deleted since has taken its share of the batch with it.
            if topic is not None and topic.log.local_first <= share.position:
                self._topics[name] = topic
                topic.holds[self] = share.position

    @property
    def counts(self) -> dict[str, int]:
        return {topic: share.count for topic, share in self.intent.shares.items()}

    async def find_stored(self) -> None:
        """Find out what of the batch an earlier process has stored. Raises OSError."""
        for name, topic in self._topics.items():
            if topic.exiting:
                continue
            share = self.intent.shares[name]
            files = await self._files(topic, share.position)
            share.stored = await asyncio.to_thread(_stored, files, share.first_id, share.count)
            logger.info(
                "TOPIC(%s): %d of %d messages of a staged batch are stored",
                name,
                share.stored.count,
                share.count,
            )

    async def _files(self, topic: Topic, position: int) -> list[tuple[Path, int, int]]:
        """The files with the batches from a position on, each with a start and an end. They are verified."""
        while True:
            segments = [segment for segment in topic.log.segments if segment.end > position]
            try:
                for segment in segments:
                    if not segment.verified:
                        await self._broker.reads.run(segment.verify)
            except LogDamaged as error:
                topic.health.leave_out(error)
            else:
                return [(segment.path, segment.start, segment.size) for segment in segments]

    async def run(self) -> None:
        """Store what is not stored yet. Raises NotStored, BadStage or OSError, and may be run again."""
        passed = dict.fromkeys(self.intent.shares, 0)
        stored = 0
        syncing: asyncio.Task[None] | None = None
        try:
            for part in self.intent.parts:
                async with aclosing(self._pieces(part)) as pieces:
                    async for records in pieces:
                        self._store(records, passed)
                        stored += len(records[0].data)
                        if stored >= SYNC_STEP and (syncing is None or syncing.done()):
                            if syncing is not None:
                                syncing.result()
                            stored, syncing = 0, asyncio.create_task(self._sync())
        finally:
            if syncing is not None:
                await asyncio.wait([syncing])
        if syncing is not None:
            syncing.result()
        await self._sync()

    async def _sync(self) -> None:
        """Return when the disk has everything that is stored. Raises OSError."""
        for topic in self._topics.values():
            if not topic.exiting:
                await self._broker.syncer.sync_now(topic)

    async def _pieces(self, part: Part) -> AsyncGenerator[list[stage_file.Record], None]:
        """The records of a stage. The next piece is read while the caller stores one."""
        path = self._directory / stage_name(part.partition, part.attempt)

        def read_from(offset: int) -> asyncio.Task[tuple[list[stage_file.Record], int]]:
            return asyncio.create_task(asyncio.to_thread(stage_file.read, path, offset, part.size, PIECE))

        reading = read_from(0) if part.size else None
        try:
            while reading is not None:
                records, offset = await reading
                reading = read_from(offset) if offset < part.size else None
                await asyncio.sleep(0)  # the task begins to read, and others have a turn
                yield records
        finally:
            if reading is not None:
                reading.cancel()

    def _store(self, records: Sequence[stage_file.Record], passed: dict[str, int]) -> None:
        """Store a piece in one step; `passed` counts what of each topic has been read so far."""
        for record in records:
            share = self.intent.shares[record.topic]
            before = passed[record.topic]
            passed[record.topic] = before + record.messages
            topic = self._topics.get(record.topic)
            # A record is a batch of the log, which is there as a whole or not at all.
            if before in share.stored or topic is None or topic.exiting:
                continue
            due = min(self.intent.time_ns + record.defer_ms * 1_000_000, LAST_DUE) if record.defer_ms else 0
            receipt = _Receipt()
            mpub = Mpub(record.data, record.start, record.messages)
            topic.publish_reserved(mpub, share.first_id + before, due, receipt)
            # One by one: behind one that was refused, none of its topic may be stored.
            topic.commit()
            if receipt.reason is not None:
                raise NotStored(receipt.reason)
            share.stored.add(before, before + record.messages)

    def release(self) -> None:
        """Stop holding the logs: the publication is complete, or will not be run."""
        for topic in self._topics.values():
            topic.holds.pop(self, None)


def stage_name(partition: int, attempt: str) -> str:
    return f"{partition}.{attempt}"


def _stored(files: Sequence[tuple[Path, int, int]], first_id: int, count: int) -> Ranges:
    """Which of these ids are in the batches of these segments, counted from the first."""
    stored = Ranges()
    for path, offset, size in files:
        with open(path, "rb", buffering=0) as file:
            window = PIECE
            file.seek(offset)
            while offset < size:
                data = file.read(min(window, size - offset))
                stop, needed, batches, _ = kernel.scan_batches(data, 0, len(data), False, 1)
                for batch in batches:
                    if first_id <= batch[4] < first_id + count:
                        stored.add(batch[4] - first_id, batch[4] + batch[2] - first_id)
                offset += stop
                if needed == 0 or offset + needed > size:
                    break
                window = max(PIECE, needed)
                file.seek(offset)
    return stored
