"""What one nsqd tells of itself: its topics with channels and clients, and how many messages each has had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .nodes import Node
from .replica import Replica
from .stats import TopicStats


@dataclass(slots=True)
class NodeStats:
    """One nsqd: its topics with channels and clients."""

    node: Node
    topics: list[TopicStats]
    health: str
    start_time: int
    nsquark_version: str  # empty of Go's nsqd
    replica: Replica | None = None  # of a node that is in a replica group

    @property
    def total_messages(self) -> int:
        return sum(topic.message_count for topic in self.topics)

    @property
    def total_clients(self) -> int:
        return sum(len(channel.clients or ()) for topic in self.topics for channel in topic.channels)

    def to_json(self) -> dict[str, Any]:
        return {
            "node": self.node.address,
            "topics": [topic.to_json() for topic in self.topics],
            "total_messages": self.total_messages,
            "total_clients": self.total_clients,
        }


@dataclass(slots=True)
class CounterEntry:
    """How many messages a channel of a node has had."""

    node: str
    topic_name: str
    channel_name: str
    message_count: int

    @property
    def key(self) -> str:
        return f"{self.topic_name}:{self.channel_name}:{self.node}"

    def to_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "topic_name": self.topic_name,
            "channel_name": self.channel_name,
            "message_count": self.message_count,
        }
