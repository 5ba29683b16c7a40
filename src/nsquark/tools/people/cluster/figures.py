"""What `/stats` of one or many nsqds tells of topics and channels, added up by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from nsquark.errors import NsquarkError

from .daemons import Daemon


@dataclass(slots=True)
class ChannelFigures:
    name: str
    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    messages: int = 0
    requeued: int = 0
    timed_out: int = 0
    clients: int = 0
    dead_letters: int = 0
    paused: bool = False
    held_bytes: int = 0  # of the log, kept for the channel
    is_read: bool = False  # at any nsqd, or it is not known
    idle_since: int | None = None  # when it was last read, in seconds since the epoch, if it is not read
    # Seconds since the oldest unfinished message was published; None if there is none or nsqd cannot tell.
    oldest: float | None = None

    @property
    def unfinished(self) -> int:
        return self.depth + self.in_flight + self.deferred

    @property
    def finished(self) -> int:
        """How many messages have left the channel since it is there."""
        return self.messages - self.unfinished


@dataclass(slots=True)
class TopicFigures:
    name: str
    depth: int = 0
    messages: int = 0
    bytes: int = 0
    paused: bool = False
    nsqds: list[Daemon] = field(default_factory=list)
    channels: dict[str, ChannelFigures] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.name,
            "depth": self.depth,
            "messages": self.messages,
            "bytes": self.bytes,
            "paused": self.paused,
            "nsqds": [nsqd.address for nsqd in self.nsqds],
            "channels": [
                {"channel": channel.name} | {k: v for k, v in asdict(channel).items() if k != "name"}
                for channel in self.channels.values()
            ],
        }


def add_up(stats: Iterable[tuple[Daemon, dict[str, Any]]]) -> dict[str, TopicFigures]:
    """Topics by name, each with its channels by name. A sum is paused if one of its parts is."""
    topics: dict[str, TopicFigures] = {}
    for nsqd, answer in stats:
        for told in answer.get("topics") or ():
            topic = topics.setdefault(told["topic_name"], TopicFigures(told["topic_name"]))
            topic.depth += told["depth"]
            topic.messages += told["message_count"]
            topic.bytes += told.get("message_bytes", 0)
            topic.paused |= told["paused"]
            topic.nsqds.append(nsqd)
            for each in told["channels"] or ():
                _add(
                    topic.channels.setdefault(each["channel_name"], ChannelFigures(each["channel_name"])),
                    each,
                )
    for topic in topics.values():
        topic.channels = dict(sorted(topic.channels.items()))
    return dict(sorted(topics.items()))


def _add(channel: ChannelFigures, told: dict[str, Any]) -> None:
    channel.depth += told["depth"]
    channel.in_flight += told["in_flight_count"]
    channel.deferred += told["deferred_count"]
    channel.messages += told["message_count"]
    channel.requeued += told["requeue_count"]
    channel.timed_out += told["timeout_count"]
    channel.clients += told.get("client_count", len(told.get("clients") or ()))
    channel.dead_letters += told.get("dead_letter_count", 0)
    channel.paused |= told["paused"]
    channel.held_bytes += told.get("held_bytes", 0)
    idle_since = told.get("idle_since")  # Go's nsqd does not tell
    channel.is_read |= idle_since is None
    channel.idle_since = None if channel.is_read else max(idle_since or 0, channel.idle_since or 0)


async def published(nsqds: Iterable[Daemon], topic: str, channel: str) -> int | None:
    """When the oldest unfinished message of a channel was published, ns since the epoch.

    None if there is none, or if an nsqd cannot tell: Go's has no positions.
    """
    oldest: int | None = None
    for nsqd in nsqds:
        try:
            bounds = await nsqd.get("/log/range", topic=topic, channel=channel)
            position = max(bounds["channel"]["position"], bounds["first"])
            if position >= bounds["next"]:
                continue
            answer = await nsqd.get("/topic/peek", topic=topic, limit=1, max_bytes=1, **{"from": position})
        except NsquarkError:
            continue  # it is gone meanwhile, or was never there
        for message in answer["messages"]:
            oldest = message["timestamp"] if oldest is None else min(oldest, message["timestamp"])
    return oldest
