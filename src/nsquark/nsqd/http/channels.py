"""Routes that move a channel over its topic's log, and what has to do with dead letters."""

from __future__ import annotations

import re

from nsquark.errors import LogCorrupt
from nsquark.http import HttpError, Request, Response, v1_empty, v1_json
from nsquark.names import dead_topic
from nsquark.nsqd.broker import Broker

from .arguments import (
    MAX_POSITION,
    cannot_read,
    find_channel,
    is_ours,
    journaling,
    number,
    parse_moves,
    parse_number,
    parse_place,
    resolve,
    storing,
    topic_and_channel_name,
)
from .leases import LeaseApi
from .log import commit, describe

EMPTY = v1_empty()
MOST_ATTEMPTS = 65535  # what the wire can say
MOST_DIGITS = 15  # of a position that is no id
_ID = re.compile(r"[0-9a-f]{16}")


class ChannelApi:
    def __init__(self, broker: Broker, leases: LeaseApi) -> None:
        self._broker = broker
        self._leases = leases

    async def create(self, request: Request) -> Response:
        """NSQ's route; with `from`, a channel that is new begins there, and the answer says where it is."""
        topic, name = topic_and_channel_name(self._broker, request)
        place = parse_place(request, "from")
        if place is None:
            with journaling(topic):
                topic.channel(name)
            return EMPTY
        is_ours(topic, request)
        position = await resolve(self._broker, request, topic, place) if name not in topic.channels else 0
        created = name not in topic.channels
        with journaling(topic):
            channel = topic.channel(name)
            if created:
                channel.begin_at(position)
        self._leases.tell(channel)
        return v1_json({**describe(channel), "created": created})

    async def seek(self, request: Request) -> Response:
        channel = find_channel(self._broker, request)
        is_ours(channel.topic, request)
        place = parse_place(request, "to")
        if place is None:
            raise HttpError(400, "MISSING_ARG_TO")
        position = await resolve(self._broker, request, channel.topic, place)
        if channel.exiting:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        with journaling(channel.topic):
            channel.seek(position)
            channel.read_for(0)
        return v1_json(describe(channel))

    def commit(self, request: Request) -> Response:
        channel = find_channel(self._broker, request)
        is_ours(channel.topic, request)
        moves = parse_moves(request)
        if not commit(channel, parse_number(request.parameter("to"), "to"), moves):
            raise HttpError(409, "CHANNEL_MOVED", describe(channel))
        return v1_json(describe(channel))

    async def max_attempts(self, request: Request) -> Response:
        """How often a message of this channel is delivered, whatever --max-attempts says."""
        channel = find_channel(self._broker, request)
        text = request.parameter("to")
        channel.max_attempts = None if text == "default" else parse_number(text, "to", MOST_ATTEMPTS)
        with storing():
            await self._broker.save_metadata()
        return v1_json({"channel_name": channel.name, "max_attempts": channel.attempts_limit})

    async def redeliver(self, request: Request) -> Response:
        """Send the channel's dead letters back to it: all, so many, or one."""
        channel = find_channel(self._broker, request)
        limit = number(request, "limit", MAX_POSITION)
        chosen = _letter(request)
        try:
            result = await self._broker.dead_letters.redeliver(channel, limit, chosen)
        except (LogCorrupt, OSError) as error:
            raise cannot_read(channel.topic, error) from None
        if result is None:
            raise HttpError(409, "REDELIVERY_UNDER_WAY")
        told = {
            "dead_topic": dead_topic(channel.topic.name, channel.name),
            "redelivered": result.redelivered,
            "skipped": result.skipped,
        }
        if result.failed is not None:
            raise HttpError(500, "REDELIVERY_FAILED", {**told, "reason": result.failed})
        if chosen is not None and limit and not result.redelivered:
            raise HttpError(404, "DEAD_LETTER_NOT_FOUND")
        return v1_json(told)


def _letter(request: Request) -> str | int | None:
    """Which dead letter is meant: its id, of 16 hexadecimal digits, or its position, of fewer digits."""
    text = request.query.get("id")
    if text is None or _ID.fullmatch(text):
        return text
    if len(text) > MOST_DIGITS:
        raise HttpError(400, "INVALID_ARG_ID")
    return parse_number(text, "id")
