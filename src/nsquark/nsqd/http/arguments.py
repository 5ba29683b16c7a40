"""The arguments in a URL: topics, channels, numbers, places in a log. Wrong ones raise HttpError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NamedTuple

from nsquark.errors import ArchiveAway, ConnectionLost, LogCorrupt, LogDamaged, UnknownVersion
from nsquark.http import HttpError, Request
from nsquark.log import NotIndexed, Segment, TimeSearch
from nsquark.names import is_valid_name
from nsquark.nsqd.broker import Broker
from nsquark.nsqd.core.channel import Channel
from nsquark.nsqd.core.topic import Topic

MAX_POSITION = (1 << 63) - 1
MAX_MOVES = (1 << 31) - 1  # the journal has room for as many again


def find_topic(broker: Broker, request: Request) -> Topic:
    """The topic named in the query, which must be there."""
    topic = broker.topics.get(request.parameter("topic"))
    if topic is None:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    return topic


def topic_and_channel_name(broker: Broker, request: Request) -> tuple[Topic, str]:
    """The topic, which must be there, and a channel's name, which must be possible."""
    if not is_valid_name(request.parameter("topic")):
        raise HttpError(400, "INVALID_ARG_TOPIC")
    channel = request.parameter("channel")
    if not is_valid_name(channel):
        raise HttpError(400, "INVALID_ARG_CHANNEL")
    return find_topic(broker, request), channel


def find_channel(broker: Broker, request: Request) -> Channel:
    topic, name = topic_and_channel_name(broker, request)
    channel = topic.channels.get(name)
    if channel is None:
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    return channel


def number(request: Request, name: str, default: int, most: int = MAX_POSITION) -> int:
    """A number that may be left out: decimal digits, at most `most`."""
    text = request.query.get(name)
    return default if text is None else parse_number(text, name, most)


def parse_number(text: str, name: str, most: int = MAX_POSITION) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= most):
        raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    return int(text)


def parse_moves(request: Request) -> int | None:
    """How many moves of a channel the client knows, if it says so."""
    text = request.query.get("moves")
    return None if text is None else parse_number(text, "moves", MAX_MOVES)


def is_ours(topic: Topic, request: Request) -> None:
    """Refuse a request that means an earlier log of this name: its positions mean nothing in this one.

    The epoch of a log that no other member of the replica group knows is not told: a failover may take it
    back.
    """
    if topic in topic.unconfirmed:
        raise HttpError(503, "NOT_CONFIRMED")
    epoch = request.query.get("epoch")
    if epoch is not None and epoch != f"{topic.epoch:016x}":
        raise HttpError(409, "EPOCH_CHANGED", bounds(topic))


def bounds(topic: Topic) -> dict[str, object]:
    """The epoch of the log, and where it begins and ends."""
    return {"epoch": f"{topic.epoch:016x}", "first": topic.log.first, "next": topic.visible_end}


def check_position(topic: Topic, position: int) -> None:
    """Refuse a position that the log has no longer, or does not have yet."""
    if position < topic.log.first:
        raise HttpError(410, "POSITION_GONE", {"position": position, **bounds(topic)})
    if position > topic.visible_end:
        raise HttpError(416, "POSITION_NOT_REACHED", {"position": position, **bounds(topic)})


class Place(NamedTuple):
    """A place in a log as a client names it: `position`, or else the first message at or after `time`."""

    position: int | None = None
    time: int = 0  # ns since the epoch
    word: str = ""  # earliest or latest


def parse_place(request: Request, name: str) -> Place | None:
    """`earliest`, `latest`, a position, or a time (RFC 3339; UTC, if it does not say), or `timestamp_ms`."""
    timestamp = request.query.get("timestamp_ms")
    text = request.query.get(name)
    if timestamp is not None and text is not None:
        raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    if timestamp is not None:
        return Place(time=parse_number(timestamp, "timestamp_ms", MAX_POSITION // 1_000_000) * 1_000_000)
    if text is None:
        return None
    if text in ("earliest", "latest"):
        return Place(word=text)
    if text.isascii() and text.isdigit():
        return Place(parse_number(text, name))
    try:
        # a client that does not escape the plus of an offset sends a space
        time = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
        return Place(time=_nanoseconds(time if time.tzinfo is not None else time.replace(tzinfo=UTC)))
    except (ValueError, OverflowError):
        raise HttpError(400, f"INVALID_ARG_{name.upper()}") from None


def _nanoseconds(time: datetime) -> int:
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return max(0, (since.days * 86400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000)


async def resolve(broker: Broker, request: Request, topic: Topic, place: Place) -> int:
    """The position of a place, which is there in the log."""
    topic.commit()
    if place.word:
        return topic.log.first if place.word == "earliest" else topic.visible_end
    if place.position is not None:
        check_position(topic, place.position)
        return place.position
    position = await position_at(broker, request, topic, place.time)
    return max(position, topic.log.first)


async def position_at(broker: Broker, request: Request, topic: Topic, time: int) -> int:
    """The position of the first message at or after a time (ns since the epoch). Reads files in a thread."""
    while True:
        search = TimeSearch(topic.log)
        try:
            position = await broker.reads.run(lambda search=search: search.position_at(time))  # type: ignore[misc]
        except NotIndexed as error:
            await fetch(broker, request, topic, error.segment)
        except LogDamaged as error:
            topic.health.leave_out(error)
        except (LogCorrupt, OSError) as error:
            raise cannot_read(topic, error) from None
        else:
            break
    if topic.exiting:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    return topic.log.lost.next_gap(position)


async def fetch(broker: Broker, request: Request, topic: Topic, segment: Segment) -> None:
    """Have a segment here that only the archive has. Raises HttpError, and ConnectionLost if nobody waits."""
    wait = request.wait_until_gone if request.http_connection is not None else None
    try:
        await broker.reads.fetch(segment, wait)
    except ConnectionLost:
        raise
    except LogDamaged as error:
        topic.health.leave_out(error)
    except OSError as error:
        check_position(topic, int(segment.base))  # it may have been deleted meanwhile
        raise cannot_read(topic, error) from None
    if topic.exiting:
        raise HttpError(404, "TOPIC_NOT_FOUND")


def cannot_read(topic: Topic, error: Exception) -> HttpError:
    """The answer when the log of a topic cannot be read. The health of the process tells it too.

    An archive that is away is not a fault of this node: the answer says so, and nothing else.
    """
    if isinstance(error, ArchiveAway):
        return HttpError(503, "ARCHIVE_UNAVAILABLE", {"reason": str(error)})
    if isinstance(error, LogCorrupt):
        topic.health.suspect(error)
    elif isinstance(error, UnknownVersion):
        topic.health.broken(str(error), "segment", error.path)
    else:
        topic.health.broken(str(error))
    return HttpError(500, "LOG_UNREADABLE")


def not_stored(reason: str) -> HttpError:
    """The answer when the disk has refused. NSQ says EXITING for any reason; nsquark gives the reason."""
    return HttpError(503, "NOT_STORED", {"reason": reason})


@contextmanager
def storing() -> Iterator[None]:
    """Answer 503 if the disk refuses what is done in here."""
    try:
        yield
    except OSError as error:
        raise not_stored(error.strerror or str(error)) from None


@contextmanager
def journaling(topic: Topic) -> Iterator[None]:
    """Do nothing in here if the journal cannot be written, and have it in the journal before it is answered.

    If the disk becomes full meanwhile, the request is done but answered 503. The client may repeat it.
    """
    with storing():
        topic.journaling.check(topic.pumped)
        yield
        topic.journaling.store()
