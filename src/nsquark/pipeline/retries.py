"""How much of what consumers got was a retry. The log does not know: a message lies in it once, as published.

nsqd counts, per channel, the messages it received and those that were requeued or timed out, each of which is
delivered again. A thread looks at these counters every few seconds; between two looks the share of retries is

    (requeued + timed out) / (received + requeued + timed out)

over all channels of the topic but the query's own, which has no consumers. A window that was not watched from
its beginning to its end, because nsqd or we were not there, has no share.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from nsquark.errors import NsquarkError
from nsquark.spark.http import fetch_json
from nsquark.spark.source.directory import Directory, Node
from nsquark.spark.source.options import StreamOptions

logger = logging.getLogger(__name__)


class Counters(NamedTuple):
    received: int
    retried: int


Look = dict[tuple[str, str], Counters]  # topic, nsqd


class Watched:
    """What was seen when, for as long as it may be asked for."""

    def __init__(self, kept: float) -> None:
        self._kept = kept
        self._looks: deque[tuple[float, Look]] = deque()

    def add(self, now: float, look: Look) -> None:
        self._looks.append((now, look))
        while self._looks[0][0] < now - self._kept:
            self._looks.popleft()

    def share(self, topic: str, begin: float, end: float, slack: float) -> float | None:
        """Of the time between two looks that are near `begin` and `end`, within `slack` seconds."""
        first = self._near(begin, slack)
        last = self._near(end, slack)
        if first is None or last is None or first is last:
            return None
        received = retried = 0
        for key, after in last.items():
            if key[0] == topic:
                before = first.get(key, Counters(0, 0))
                if after.received < before.received or after.retried < before.retried:
                    return None  # nsqd was restarted, and counts anew
                received += after.received - before.received
                retried += after.retried - before.retried
        return retried / (received + retried) if received + retried else 0.0

    def _near(self, moment: float, slack: float) -> Look | None:
        best = min(self._looks, key=lambda each: abs(each[0] - moment), default=None)
        return best[1] if best is not None and abs(best[0] - moment) <= slack else None


def counters_of(stats: dict[str, Any], channel: str) -> dict[str, Counters]:
    """By topic, from what /stats tells; without the channel of that name."""
    found = {}
    for topic in stats.get("topics") or ():
        channels = [each for each in topic.get("channels") or () if each["channel_name"] != channel]
        found[str(topic["topic_name"])] = Counters(
            sum(int(each["message_count"]) for each in channels),
            sum(int(each["requeue_count"]) + int(each["timeout_count"]) for each in channels),
        )
    return found


class Watcher:
    """Looks at the counters of all nsqds, in a thread, until it is stopped."""

    def __init__(
        self, options: StreamOptions, interval: float, kept: float, clock: Callable[[], float]
    ) -> None:
        self.watched = Watched(kept)
        self.slack = 2 * interval
        self._options = options
        self._interval = interval
        self._clock = clock
        self._directory = Directory(options.addresses, options.subscription)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="counters", daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.is_set():
            look = self._look()
            if look is not None:
                self.watched.add(self._clock(), look)
            self._ended.wait(self._interval)

    def _look(self) -> Look | None:
        """None if one of them could not be asked: then nobody can tell for all."""
        look: Look = {}
        try:
            for node in self._nodes():
                query = {"format": "json", "include_clients": "false"}
                stats = fetch_json(node.url, self._options.addresses.access, "/stats", query)
                for topic, counters in counters_of(stats, self._options.channel).items():
                    look[topic, node.name] = counters
        except (NsquarkError, KeyError, TypeError, ValueError) as error:
            logger.debug("counters: %s", error)
            return None
        return look

    def _nodes(self) -> list[Node]:
        found = self._directory.find()
        matching = [nodes for topic, nodes in found.items() if self._options.subscription.matches(topic)]
        return list({node: None for nodes in matching for node in nodes if node.url})
