"""The graphs of `--graphite-url`: which series nsqd has sent through statsd, and the pictures that show them.

nsqadmin's own charts reach back half an hour. Where statsd and Graphite are set up, pages show up to a week.
The browser loads the pictures from Graphite, or from nsqadmin's `/render` with `--proxy-graphite`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from ...cluster import Latency

TIMEFRAMES = ("1h", "2h", "12h", "24h", "48h", "168h")
DEFAULT_TIMEFRAME = "2h"
OFF = "off"
ALL_NODES = "*"
# Legible on a light and on a dark page.
RED, BLUE, GREEN = "e5484d", "4c7dff", "1f9d6b"
FOUR = f"{RED},{GREEN},{BLUE},a06bd6"
_COUNTERS = frozenset({"message_count", "requeue_count", "timeout_count", "gc_runs"})
_DROPPED = re.compile(r"[^A-Za-z0-9\-_.]")
_SMALL = {"width": 560, "height": 180}
_LARGE = {"width": 800, "height": 450}
# A grey that is legible on a light and on a dark page, on no background at all.
_LOOK = {"bgcolor": "00000000", "fgcolor": "808080", "lineMode": "connected", "yMin": 0}


@dataclass(frozen=True, slots=True)
class Graph:
    """A picture, and the address of the same in a larger size."""

    title: str
    small: str
    large: str


@dataclass(frozen=True, slots=True)
class Graphite:
    """`render` is the address of Graphite's `/render` for the browser. The other fields are options."""

    render: str
    statsd_prefix: str
    counter_format: str
    gauge_format: str
    interval: float

    @property
    def origin(self) -> str:
        """Where the pictures come from, for the content security policy; empty if it is nsqadmin itself."""
        parts = urlsplit(self.render)
        return f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""

    # ---- what a page shows

    def of_topic(self, topic: str, latency: Latency, timeframe: str) -> list[Graph]:
        key = f"topic.{clean(topic)}"
        return [
            self._sum("Depth", key, "depth", timeframe, RED),
            self._sum("Messages a second", key, "message_count", timeframe),
            *self._latency(key, latency, timeframe),
        ]

    def of_channel(self, topic: str, channel: str, latency: Latency, timeframe: str) -> list[Graph]:
        key = f"topic.{clean(topic)}.channel.{clean(channel)}"
        return [
            self._sum("Depth", key, "depth", timeframe, RED),
            self._sum("In flight", key, "in_flight_count", timeframe),
            self._sum("Deferred", key, "deferred_count", timeframe, RED),
            self._sum("Messages a second", key, "message_count", timeframe),
            self._sum("Requeued a second", key, "requeue_count", timeframe),
            self._sum("Timed out a second", key, "timeout_count", timeframe),
            self._sum("Clients", key, "clients", timeframe),
            *self._latency(key, latency, timeframe),
        ]

    def of_node(self, node: str, timeframe: str) -> list[Graph]:
        pauses = ("gc_pause_usec_100", "gc_pause_usec_99", "gc_pause_usec_95")
        heap = ("next_gc_bytes", "heap_in_use_bytes", "heap_idle_bytes", "heap_released_bytes")
        return [
            self._memory("Heap, bytes", node, heap, timeframe, FOUR),
            self._memory("Pauses of garbage collection, µs", node, pauses, timeframe, FOUR),
            self._memory("Garbage collections a second", node, ("gc_runs",), timeframe),
            self._memory("Objects in the heap", node, ("heap_objects",), timeframe),
        ]

    def of_cluster(self, timeframe: str) -> list[Graph]:
        return [
            self._sum(
                "Messages a second, all channels", "topic.*.channel.*", "message_count", timeframe, GREEN
            )
        ]

    # ---- series

    def series(self, key: str, metric: str, node: str = ALL_NODES) -> str:
        """The name of a series in Graphite; `key` lies below the node's prefix."""
        prefix = self.statsd_prefix.replace("%s", node_key(node))
        if prefix and not prefix.endswith("."):
            prefix += "."
        layout = self.counter_format if metric in _COUNTERS else self.gauge_format
        return (layout or "%s").replace("%s", f"{prefix}{key}.{metric}")

    def _sum(self, title: str, key: str, metric: str, timeframe: str, colour: str = BLUE) -> Graph:
        target = f"sumSeries({self.series(key, metric)})"
        return self._graph(title, [self._per_second(target, metric)], timeframe, colour)

    def _memory(
        self, title: str, node: str, metrics: Iterable[str], timeframe: str, colours: str = BLUE
    ) -> Graph:
        targets = [self._per_second(self.series("mem", metric, node), metric) for metric in metrics]
        return self._graph(title, targets, timeframe, colours)

    def _latency(self, key: str, latency: Latency, timeframe: str) -> list[Graph]:
        """In ms. Graphite has the values of nodes and no counts, so this is their plain average."""
        metrics = [f"e2e_processing_latency_{each.quantile * 100:.0f}" for each in latency.percentiles or ()]
        targets = [f"scale(averageSeries({self.series(key, metric)}),0.000001)" for metric in metrics]
        return [self._graph("Latency, ms", targets, timeframe, FOUR)] if targets else []

    def _per_second(self, target: str, metric: str) -> str:
        """A counter has what one interval of statsd has added."""
        return f"scale({target},{1 / self.interval:.9g})" if metric in _COUNTERS else target

    # ---- pictures

    def _graph(self, title: str, targets: list[str], timeframe: str, colours: str) -> Graph:
        step = f'"{max(1, int(self.interval))}sec","avg"'
        summed = [f"summarize({target},{step})" for target in targets]
        query = {
            "colorList": colours,
            "from": f"-{timeframe}",
            "until": "-1min",
            "target": summed,
            **_LOOK,
        }
        return Graph(
            title,
            self._address({**query, **_SMALL, "hideLegend": "true"}),
            self._address({**query, **_LARGE}),
        )

    def _address(self, query: dict[str, object]) -> str:
        return f"{self.render}?{urlencode(query, doseq=True)}"


def graphite_of(
    url: str, proxied: str, *, statsd_prefix: str, counter_format: str, gauge_format: str, interval: float
) -> Graphite | None:
    """Graphite as the options say; None without one. `proxied` is nsqadmin's own `/render`, if it has one."""
    if not url:
        return None
    if not proxied:
        try:
            parts = urlsplit(url)
        except ValueError:
            return None
        if parts.scheme not in ("http", "https") or not parts.netloc:
            return None
        # A login in the address is nsqadmin's and not the reader's.
        parts = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
        proxied = parts._replace(path=parts.path.rstrip("/") + "/render").geturl()
    return Graphite(proxied, statsd_prefix, counter_format, gauge_format, interval)


def timeframe_of(asked: str) -> str:
    """The timeframe that `?t=` names, `off` too; the default for anything else."""
    return asked if asked in TIMEFRAMES or asked == OFF else DEFAULT_TIMEFRAME


def clean(name: str) -> str:
    """A topic's or channel's name within a key, as statsd leaves it: `e#ephemeral` is `eephemeral`."""
    return _DROPPED.sub("", name.replace(" ", "_").replace("/", "-"))


def node_key(node: str) -> str:
    """`nsqd1.example:4151` is `nsqd1_example_4151`."""
    return node.replace(".", "_").replace(":", "_")
