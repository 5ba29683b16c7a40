"""What a log keeps, and for which channel."""

from __future__ import annotations

from typing import NamedTuple

from nsquark.gotext import nanoseconds
from nsquark.nsqd.core.channel import Channel
from nsquark.nsqd.core.topic import Topic


class HeldBack(NamedTuple):
    """What of a log must stay because a channel has not finished it: files go as a whole."""

    held_messages: int
    held_bytes: int
    held_segments: int


def held_back(channel: Channel) -> HeldBack:
    """From the first message that the channel has not finished to the log's end.

    A channel that is let go holds nothing, and an ephemeral one holds the two newest segments at most.
    """
    log = channel.topic.log
    if not channel.holds_log:
        return HeldBack(0, 0, 0)
    low = max(channel.low(), log.first)
    if channel.ephemeral:
        low = max(low, log.recent)
    return HeldBack(max(0, log.end - low), *log.held_from(low))


def retention_bytes(topic: Topic) -> int:
    """What holds for the topic, in bytes; 0 for none, -1 for no limit."""
    own = topic.retention.bytes
    return topic.options.retention_bytes if own is None else own


def archive_retention(topic: Topic) -> tuple[int, int]:
    """What the archive keeps of the topic: bytes and ns, -1 for no limit."""
    own = topic.retention
    size = topic.options.archive_retention_bytes if own.archive_bytes is None else own.archive_bytes
    time = own.archive_time
    if time is None:
        time = nanoseconds(topic.options.archive_retention_time)
    return size if size > 0 else -1, time if time > 0 else -1


def retention_time(topic: Topic) -> int:
    """What holds for the topic, in ns; 0 for none, -1 for no limit."""
    own = topic.retention.time
    return nanoseconds(topic.options.retention_time) if own is None else own
