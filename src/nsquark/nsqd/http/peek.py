"""`/topic/peek` and `/channel/peek`: looking at messages without consuming them.

Which messages are meant is found out at once; their bodies are read, and the answer is made, in a thread.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple

from nsquark.errors import ConnectionLost, LogCorrupt, LogDamaged
from nsquark.http import JSON_TYPE, HttpError, Request, Response, pack_json, v1_body
from nsquark.log import LogReader, NotIndexed, Stored, TopicLog, read_messages
from nsquark.nsqd.broker import Broker
from nsquark.nsqd.core.channel import Channel
from nsquark.nsqd.core.topic import Topic

from .arguments import bounds, cannot_read, check_position, fetch, find_channel, find_topic, is_ours, number

DEFAULT_LIMIT, MOST_MESSAGES = 10, 1000
DEFAULT_BYTES, MOST_BYTES = 1 << 20, 16 << 20
AT_ONCE = 16  # ranges whose files are open together
STATES = ("ready", "requeued", "in_flight", "deferred")


@dataclass(slots=True)
class Shown:
    """Messages that follow each other, and what to say of each besides what the log knows."""

    position: int
    count: int
    attempts: int  # deliveries so far
    more: dict[str, object] = field(default_factory=dict)


class _Range(NamedTuple):
    """Those of the positions [start, end)."""

    shown: Shown
    start: int
    end: int


class PeekApi:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def topic(self, request: Request) -> Response:
        """The messages of a topic's log from a position on; without a position, the newest."""
        topic = find_topic(self._broker, request)
        is_ours(topic, request)
        topic.commit()
        limit, max_bytes = _limits(request)
        log = topic.log
        start = number(request, "from", max(log.first, topic.visible_end - limit))
        check_position(topic, start)
        there = (Shown(first, end - first, 0) for first, end in log.lost.gaps(start, topic.visible_end))
        shown = list(_first(there, limit))
        head = {"topic_name": topic.name, **bounds(topic)}
        return await self._answer(request, topic, head, shown, max_bytes)

    async def channel(self, request: Request) -> Response:
        channel = find_channel(self._broker, request)
        state = request.query.get("state", STATES[0])
        if state not in STATES:
            raise HttpError(400, "INVALID_ARG_STATE")
        limit, max_bytes = _limits(request)
        channel.topic.commit()
        head = {
            "topic_name": channel.topic.name,
            "channel_name": channel.name,
            "state": state,
            "depth": channel.depth,
            "in_flight_count": channel.in_flight_count,
            "deferred_count": channel.deferred_count,
        }
        shown = list(_first(_waiting(channel, state), limit))
        return await self._answer(request, channel.topic, head, shown, max_bytes)

    async def _answer(
        self, request: Request, topic: Topic, head: dict[str, object], shown: list[Shown], max_bytes: int
    ) -> Response:
        while True:
            answer = _Answer(head, max_bytes)
            try:
                await self._add_all(request, topic, answer, shown)
            except LogDamaged as error:  # once more, without what is lost
                topic.health.leave_out(error)
            except ConnectionLost:
                raise
            except (LogCorrupt, OSError) as error:
                raise cannot_read(topic, error) from None
            else:
                break
        return v1_body(answer.pack(), JSON_TYPE)

    async def _add_all(self, request: Request, topic: Topic, answer: _Answer, shown: list[Shown]) -> None:
        """Add what there is of these messages. Each segment of the archive is read when it has come: many of
        them need not be here together.
        """
        left = [
            _Range(each, start, end)
            for each in shown
            for start, end in topic.log.lost.gaps(each.position, each.position + each.count)
        ]
        while left and not answer.full:
            try:
                ranges = _open(topic.log, left[:AT_ONCE])
            except NotIndexed as error:
                await fetch(self._broker, request, topic, error.segment)
            else:
                done, position = await self._broker.reads.run(partial(answer.add, ranges))
                del left[:done]
                if position is not None:
                    left[0] = left[0]._replace(start=position)


class _Answer:
    def __init__(self, head: dict[str, object], max_bytes: int) -> None:
        self.room = max_bytes  # for bodies
        self._head = pack_json(head)[:-1]
        self._messages: list[str] = []

    @property
    def full(self) -> bool:
        return self.room <= 0 and bool(self._messages)

    def add(self, ranges: list[tuple[Shown, LogReader]]) -> tuple[int, int | None]:
        """Read these messages and tell of them, as far as there is room; of one in any case. In a thread.

        Returns how many ranges are done, and where the next one goes on: it may end in the archive.
        """
        try:
            for number, (shown, reader) in enumerate(ranges):
                end = reader.end
                for stored in read_messages(reader):
                    self.room -= len(stored.body)
                    if self.room < 0 and self._messages:
                        return number, None
                    self._messages.append(pack_json(_message(stored, shown)))
                if reader.start < reader.end < end:
                    return number, reader.end
            return len(ranges), None
        finally:
            for _, reader in ranges:
                reader.close()

    def pack(self) -> bytes:
        text = f'{self._head},"messages":[{",".join(self._messages)}]}}'
        return text.encode("utf-8", "backslashreplace")


def _open(log: TopicLog, ranges: list[_Range]) -> list[tuple[Shown, LogReader]]:
    """Take hold of the files of these messages, up to a segment that must be fetched.

    Raises OSError, and NotIndexed where that is the first one.
    """
    opened: list[tuple[Shown, LogReader]] = []
    try:
        for each in ranges:
            opened.append((each.shown, LogReader(log, each.start, each.end, MOST_BYTES)))
    except (OSError, NotIndexed) as error:
        if opened and isinstance(error, NotIndexed):
            return opened
        for _, reader in opened:
            reader.close()
        raise
    return opened


def _limits(request: Request) -> tuple[int, int]:
    """How many messages, and how many bytes of bodies."""
    return (
        number(request, "limit", DEFAULT_LIMIT, MOST_MESSAGES),
        number(request, "max_bytes", DEFAULT_BYTES, MOST_BYTES),
    )


def _waiting(channel: Channel, state: str) -> Iterator[Shown]:
    """The messages of a channel in this state, in the order in which they come."""
    if state == "in_flight":
        since_epoch = time.time_ns() - time.monotonic_ns()
        for consumer, flight in channel.in_flight():
            more = {
                "client": consumer.connection.session.remote_address,
                "client_id": consumer.connection.session.client_id,
                "delivered": flight.delivered + since_epoch,
                "deadline": flight.deadline + since_epoch,
            }
            yield Shown(flight.position, flight.count, flight.attempts, more)
    elif state == "deferred":
        for deferred in channel.deferred:
            yield Shown(deferred.position, deferred.number, deferred.attempts, {"due": deferred.due})
    else:
        for requeued in channel.requeued:
            yield Shown(requeued.position, requeued.number, requeued.attempts)
        if state == "ready":
            for start, end in channel.fresh():
                yield Shown(start, end - start, 0)


def _first(shown: Iterable[Shown], limit: int) -> Iterator[Shown]:
    for each in islice(shown, limit):
        each.count = min(each.count, limit)
        limit -= each.count
        if each.count:
            yield each


def _message(stored: Stored, shown: Shown) -> dict[str, object]:
    body = bytes(stored.body)
    told: dict[str, object] = {
        "id": stored.id,
        "position": stored.position,
        "timestamp": stored.time,
        "attempts": shown.attempts,
        "due": stored.due or None,
        "size": len(body),
    }
    told.update(shown.more)
    try:
        told["body"] = body.decode("utf-8")
    except UnicodeDecodeError:
        told["body_base64"] = b64encode(body).decode("ascii")
    return told
