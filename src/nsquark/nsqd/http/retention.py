"""How long a log is kept: `/topic/retention` for what is finished, `/channel/hold_timeout` for what is not.

Both are kept in `nsqd.dat`. A retention holds once it is in that file, so that nothing is deleted for a
request that was refused.
"""

from __future__ import annotations

from nsquark.gotext import parse_duration
from nsquark.http import HttpError, Request, Response, v1_json
from nsquark.log import UNLIMITED, Retention
from nsquark.nsqd.broker import Broker
from nsquark.nsqd.core.topic import Topic
from nsquark.nsqd.stats.held import archive_retention, retention_bytes, retention_time

from .arguments import MAX_POSITION, bounds, find_channel, find_topic, parse_number, storing

DEFAULT, WITHOUT_LIMIT = "default", "unlimited"


class RetentionApi:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def tell(self, request: Request) -> Response:
        """What a topic keeps of what all its channels have finished."""
        return v1_json(describe_retention(find_topic(self._broker, request)))

    async def change(self, request: Request) -> Response:
        """Keep more or less of a topic than the flags say."""
        topic = find_topic(self._broker, request)
        if topic.ephemeral:
            raise HttpError(400, "TOPIC_IS_EPHEMERAL")
        wanted = parse_retention(request, topic.retention)
        before, topic.retention = topic.retention, wanted
        try:
            with storing():
                await self._broker.save_metadata()
        except HttpError:
            if topic.retention is wanted and not topic.exiting:
                topic.retain(before)
            raise
        if topic.exiting:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        topic.retain(topic.retention)  # which another request may have changed since
        return v1_json(describe_retention(topic))

    async def hold_timeout(self, request: Request) -> Response:
        """How long the log is kept for a channel that is not read, whatever --channel-hold-timeout says."""
        channel = find_channel(self._broker, request)
        channel.readership.hold_timeout = _parse_time(request.parameter("to"), "to")
        with storing():
            await self._broker.save_metadata()
        return v1_json({"channel_name": channel.name, "hold_timeout": channel.hold_timeout})


def parse_retention(request: Request, present: Retention) -> Retention:
    """The retention that `bytes` and `time` ask for; what is not said stays as it is."""
    if not any(name in request.query for name in ("bytes", "time", "archive_bytes", "archive_time")):
        raise HttpError(400, "MISSING_ARG_BYTES")
    kept, time, archive_bytes, archive_time = present
    if "bytes" in request.query:
        text = request.query["bytes"]
        words = {DEFAULT: None, WITHOUT_LIMIT: UNLIMITED}
        kept = words[text] if text in words else parse_number(text, "bytes")
    if "time" in request.query:
        text = request.query["time"]
        time = UNLIMITED if text == WITHOUT_LIMIT else _parse_time(text, "time")
    if "archive_bytes" in request.query:
        archive_bytes = _parse_archived(request.query["archive_bytes"], "archive_bytes")
    if "archive_time" in request.query:
        archive_time = _parse_archived(request.query["archive_time"], "archive_time")
    return Retention(kept, time, archive_bytes, archive_time)


def _parse_archived(text: str, name: str) -> int | None:
    """0 is refused: of the flags it means without limit, and of a topic it would mean nothing at all."""
    if text == WITHOUT_LIMIT:
        return UNLIMITED
    if text == DEFAULT:
        return None
    found = _parse_time(text, name) if name == "archive_time" else parse_number(text, name)
    if not found:
        raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    return found


def _parse_time(text: str, name: str) -> int | None:
    """ns, or None for the default: a duration as flags have it, such as 168h."""
    if text == DEFAULT:
        return None
    try:
        time = parse_duration(text)
    except ValueError:
        raise HttpError(400, f"INVALID_ARG_{name.upper()}") from None
    if not 0 <= time <= MAX_POSITION:
        raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    return time


def describe_retention(topic: Topic) -> dict[str, object]:
    """What holds, what of it is the topic's own, and what the log has. -1 is without limit."""
    archive_bytes, archive_time = archive_retention(topic)
    return {
        "topic_name": topic.name,
        "retention_bytes": retention_bytes(topic),
        "retention_time": retention_time(topic),
        "own_bytes": topic.retention.bytes,
        "own_time": topic.retention.time,
        "archive_bytes": archive_bytes,
        "archive_time": archive_time,
        "own_archive_bytes": topic.retention.archive_bytes,
        "own_archive_time": topic.retention.archive_time,
        **bounds(topic),
        "origin": topic.origin,
        "bytes": topic.log.size,
        "archived_bytes": topic.log.archived_size,
    }
