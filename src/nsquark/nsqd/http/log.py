"""`/log/range` and `/log/read`: a topic's log in the open, by position.

The answer to a read is a head (`wire.log_answer`), batches as they lie on disk, and the index of where each
message begins. Where the client does without the index, files go straight into the socket. A client that runs
on nsqd's own machine may ask for the names of the files in their place (`local_files.py`), and a client that
reads the archive itself for the object there (`archived_objects.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial

from nsquark.errors import ConnectionLost, LogCorrupt, LogDamaged
from nsquark.http import HttpError, Request, Response, v1_json, v1_stream
from nsquark.kernel import Buffer
from nsquark.log import LogReader, NotIndexed
from nsquark.nsqd.broker import Broker
from nsquark.nsqd.core.channel import Channel
from nsquark.nsqd.core.topic import Topic
from nsquark.wire import log_answer
from nsquark.wire.log_answer import LogAnswerHead

from . import archived_objects, local_files
from .arguments import (
    MAX_POSITION,
    bounds,
    cannot_read,
    check_position,
    fetch,
    find_channel,
    find_topic,
    is_ours,
    journaling,
    number,
    parse_moves,
    position_at,
)

logger = logging.getLogger(__name__)

LONGEST_WAIT_MS = 60_000
DEFAULT_READ = 16 << 20
LARGEST_READ = 256 << 20
MAX_READERS = 256  # each may hold half a megabyte, and some files
CONTENT_TYPE = "application/vnd.nsquark.log"


class LogApi:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._readers = 0

    # ---- where a log begins and ends

    async def range(self, request: Request) -> Response:
        topic = find_topic(self._broker, request)
        is_ours(topic, request)
        channel = find_channel(self._broker, request) if "channel" in request.query else None
        if "commit" in request.query:
            if channel is None:
                raise HttpError(400, "MISSING_ARG_CHANNEL")
            commit(channel, number(request, "commit", 0), parse_moves(request))
        wait_ms = number(request, "wait_ms", 0, LONGEST_WAIT_MS)
        time_ms = number(request, "timestamp_ms", -1, MAX_POSITION // 1_000_000)
        topic.commit()
        beyond = number(request, "from", topic.visible_end)
        if wait_ms:
            await _news(request, topic, beyond, wait_ms / 1000)
            is_ours(topic, request)
        told: dict[str, object] = {
            "node": self._broker.node.uuid,
            "topic": topic.name,
            **bounds(topic),
            "origin": topic.origin,
            "synced": topic.synced,
            "bytes": topic.log.size,
        }
        if self._broker.archive is not None:
            told["bytes"] = topic.log.size + topic.log.archived_size
            told["local_first"] = topic.log.local_first
        if time_ms >= 0:
            told["position"] = await position_at(self._broker, request, topic, time_ms * 1_000_000)
        if channel is not None:
            if channel.exiting:
                raise HttpError(404, "CHANNEL_NOT_FOUND")
            known = beyond if "from" in request.query else number(request, "commit", topic.visible_end)
            told["channel"] = describe(channel, known)
        return v1_json(told)

    # ---- what is in it

    async def read(self, request: Request) -> Response:
        topic = find_topic(self._broker, request)
        is_ours(topic, request)
        topic.commit()
        start = number(request, "from", topic.log.first)
        check_position(topic, start)
        end = min(number(request, "to", topic.visible_end), topic.visible_end)
        max_bytes = number(request, "max_bytes", DEFAULT_READ, LARGEST_READ)
        indexed = bool(number(request, "index", 1, 1))
        local = not indexed and local_files.may_be_named(request, topic.log, max_bytes)
        if local:
            max_bytes = LARGEST_READ  # since no more than names will be sent
        if end < start:
            raise HttpError(400, "INVALID_ARG_TO")
        if number(request, "archive", 0, 1) and not indexed:
            named = archived_objects.answer(self._broker, topic, start, end)
            if named is not None:
                return named
        if self._readers >= MAX_READERS:
            raise HttpError(503, "TOO_MANY_READERS")
        self._readers += 1
        try:
            return await self._read(request, topic, start, end, max_bytes, indexed, local)
        finally:
            self._readers -= 1

    async def _read(
        self,
        request: Request,
        topic: Topic,
        start: int,
        end: int,
        max_bytes: int,
        indexed: bool,
        local: bool,
    ) -> Response:
        reads = self._broker.reads
        reader = None
        try:
            while reader is None:
                try:
                    reader = LogReader(topic.log, start, end, max_bytes, indexed)
                except NotIndexed as error:
                    await fetch(self._broker, request, topic, error.segment)
                    check_position(topic, start)
                    continue
                try:
                    await reads.run(reader.locate)
                except LogDamaged as error:
                    reader.close()
                    reader = None
                    topic.health.leave_out(error)
            if start < end and not reader.count:  # damaged, or forgotten by a log that is in memory only
                following = topic.log.lost.next_gap(start)
                more = {"following": following} if following > start else {}
                raise HttpError(410, "POSITION_GONE", {"position": start, **bounds(topic), **more})
            if local and reader.length >= local_files.WORTH_OPENING:
                named = await reads.run(partial(local_files.answer, reader, topic.epoch))
                if named is not None:
                    return named
            length = log_answer.SIZE + reader.length + (4 * reader.count if indexed else 0)
            response = v1_stream(length, CONTENT_TYPE)
            head = LogAnswerHead(reader.count, reader.start, topic.epoch, reader.length)
            body = await request.open_body(response, log_answer.pack_head(head))
            try:
                if body.direct and not indexed and reader.files:
                    for source, offset, stop in reader.files:
                        await body.send_file(reads.run, source.descriptor, offset, stop)
                else:
                    parts = _parts(reader)
                    while await body.send(reads.run, parts.__next__):
                        pass
            finally:
                body.close()
            return response
        except (LogCorrupt, OSError) as error:
            if isinstance(error, ConnectionLost):
                raise
            logger.error("topic %s cannot be read from %d: %s", topic.name, start, error)
            raise cannot_read(topic, error) from None
        finally:
            if reader is not None:
                reader.close()


def _parts(reader: LogReader) -> Iterator[Buffer]:
    """The batches and the index, a piece at a time, with nothing as the last one. For a thread."""
    first = reader.read()
    if reader.length <= len(first):  # small: in one piece
        yield b"".join((first, reader.index))
    else:
        yield first
        yield from iter(reader.read, b"")
        yield reader.index
    yield b""


def commit(channel: Channel, position: int, moves: int | None) -> bool:
    """Finish everything before a position, and write that to the journal before the client is answered.

    Does nothing and returns False if an operator has moved the channel more often than the client knows.
    """
    topic = channel.topic
    topic.commit()
    channel.read_for(0)
    if moves is not None and moves < channel.moves:
        return False
    if position > topic.visible_end:
        raise HttpError(416, "POSITION_NOT_REACHED", {"position": position, **bounds(topic)})
    with journaling(topic):
        return channel.commit(position, moves)


def describe(channel: Channel, known: int | None = None) -> dict[str, object]:
    """The position of a channel, as JSON. `emptied` is behind the position that a reader knows."""
    position = channel.low()
    emptied = channel.emptied.first_behind(position if known is None else known)
    return {
        "channel_name": channel.name,
        "position": position,
        "next": channel.cursor.position,
        "moves": channel.moves,
        "emptied": emptied,
        "depth": channel.depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
    }


async def _news(request: Request, topic: Topic, position: int, seconds: float) -> None:
    """Wait, at most so long, for what lies behind this position. Raises HttpError if the topic goes.

    When the client closes its side, the wait is over: most clients that do so are gone for good.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while topic.visible_end <= position and not topic.exiting:
        news: asyncio.Future[None] = loop.create_future()

        def wake(news: asyncio.Future[None] = news) -> None:
            if not news.done():
                news.set_result(None)

        topic.watch(wake)
        try:
            gone = await request.wait_until_gone(until - loop.time(), news)
        finally:
            topic.unwatch(wake)
        if gone or loop.time() >= until:
            break
    if topic.exiting:
        raise HttpError(404, "TOPIC_NOT_FOUND")
