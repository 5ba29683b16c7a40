"""The share of retries among the deliveries of a topic.

The log has every message once, as it was published, so it cannot tell how often a message was delivered. nsqd
counts for each channel how many messages it has received, requeued and timed out; each of the last two is
delivered again. A thread reads these counters every few seconds. Between two readings the share of retries is

    (requeued + timed out) / (received + requeued + timed out)

over all channels of the topic but the query's own, which has no consumers. A window has no share if the
counters at its beginning or at its end are not known, because nsqd was away or the query did not run.
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


CounterSnapshot = dict[tuple[str, str], Counters]  # by topic and nsqd


class CounterHistory:
    """The snapshots of the last `kept` seconds, and when each was taken."""

    def __init__(self, kept: float) -> None:
        self._kept = kept
        self._snapshots: deque[tuple[float, CounterSnapshot]] = deque()

    def add(self, now: float, snapshot: CounterSnapshot) -> None:
        self._snapshots.append((now, snapshot))
        while self._snapshots[0][0] < now - self._kept:
            self._snapshots.popleft()

    def share(self, topic: str, begin: float, end: float, tolerance: float) -> float | None:
        """The share of retries between `begin` and `end`.

        None if no snapshot was taken within `tolerance` seconds of either.
        """
        first = self._nearest(begin, tolerance)
        last = self._nearest(end, tolerance)
        if first is None or last is None or first is last:
            return None
        received = retried = 0
        for key, after in last.items():
            if key[0] == topic:
                before = first.get(key, Counters(0, 0))
                if after.received < before.received or after.retried < before.retried:
                    return None  # nsqd was restarted, and counts from 0 again
                received += after.received - before.received
                retried += after.retried - before.retried
        return retried / (received + retried) if received + retried else 0.0

    def _nearest(self, moment: float, tolerance: float) -> CounterSnapshot | None:
        best = min(self._snapshots, key=lambda each: abs(each[0] - moment), default=None)
        return best[1] if best is not None and abs(best[0] - moment) <= tolerance else None


def counters_of(stats: dict[str, Any], channel: str) -> dict[str, Counters]:
    """The counters of each topic in a response to /stats, without the channel of that name."""
    found = {}
    for topic in stats.get("topics") or ():
        channels = [each for each in topic.get("channels") or () if each["channel_name"] != channel]
        found[str(topic["topic_name"])] = Counters(
            sum(int(each["message_count"]) for each in channels),
            sum(int(each["requeue_count"]) + int(each["timeout_count"]) for each in channels),
        )
    return found


class CounterWatcher:
    """Reads the counters of all nsqds in a thread. Use it as `with CounterWatcher(...)`."""

    def __init__(
        self, options: StreamOptions, interval: float, kept: float, clock: Callable[[], float]
    ) -> None:
        self.history = CounterHistory(kept)
        self.tolerance = 2 * interval
        self._options = options
        self._interval = interval
        self._clock = clock
        self._directory = Directory(options.addresses, options.subscription)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="counters", daemon=True)

    def __enter__(self) -> CounterWatcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.is_set():
            snapshot = self._take_snapshot()
            if snapshot is not None:
                self.history.add(self._clock(), snapshot)
            self._ended.wait(self._interval)

    def _take_snapshot(self) -> CounterSnapshot | None:
        """None if one of the nsqds does not answer."""
        snapshot: CounterSnapshot = {}
        try:
            for node in self._nodes():
                query = {"format": "json", "include_clients": "false"}
                stats = fetch_json(node.url, self._options.addresses.access, "/stats", query)
                for topic, counters in counters_of(stats, self._options.channel).items():
                    snapshot[topic, node.name] = counters
        except (NsquarkError, KeyError, TypeError, ValueError) as error:
            logger.debug("counters: %s", error)
            return None
        return snapshot

    def _nodes(self) -> list[Node]:
        found = self._directory.find()
        matching = [nodes for topic, nodes in found.items() if self._options.subscription.matches(topic)]
        return list({node: None for nodes in matching for node in nodes if node.url})
