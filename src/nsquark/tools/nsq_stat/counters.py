"""The counters of a channel at one nsqd, or at several together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any

from nsquark.errors import ConnectionLost

# Our names, in the order of NSQ's columns, and the keys of /stats.
_KEYS = {
    "depth": "depth",
    "backend_depth": "backend_depth",
    "in_flight": "in_flight_count",
    "deferred": "deferred_count",
    "requeued": "requeue_count",
    "timed_out": "timeout_count",
    "messages": "message_count",
    "clients": "client_count",
}


@dataclass(frozen=True, slots=True)
class Counters:
    depth: int = 0
    backend_depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    requeued: int = 0
    timed_out: int = 0
    messages: int = 0
    clients: int = 0

    @property
    def memory_depth(self) -> int:
        return self.depth - self.backend_depth


def parse_counters(document: Any, topic: str, channel: str) -> Counters | None:
    """A channel's counters in an answer of /stats; None if it has no such channel. Raises ConnectionLost."""
    try:
        document = document.get("data") or document  # NSQ before 1.0 wraps its answers
        for each in document.get("topics") or ():
            if each["topic_name"] == topic:
                for found in each.get("channels") or ():
                    if found["channel_name"] == channel:
                        return Counters(**{name: int(found.get(key, 0)) for name, key in _KEYS.items()})
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ConnectionLost("not an answer of nsqd") from None
    return None


def total(counters: Iterable[Counters]) -> Counters:
    columns = zip(*map(astuple, counters), strict=True)
    return Counters(*map(sum, columns))


def rates(old: Counters, new: Counters, seconds: float) -> tuple[int, int]:
    """Messages in and out a second, cut to integers as NSQ cuts them."""
    came = new.messages - old.messages
    return int(came / seconds), int((came - (new.depth - old.depth)) / seconds)
