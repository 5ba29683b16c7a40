"""`/metrics`: what Prometheus scrapes.

The node's own metrics, and those of the process and of Python, are collectors of prometheus-client. Topics
and channels may be many: their samples are written here, a piece at a time, so that no client waits for them
(the client takes 10 µs for a sample, and that without a pause; this takes less than one).

Nothing of it costs anything before the first scrape: only then is prometheus-client imported (a tenth of a
second, in a thread) and the event loop's lag measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from nsquark.debug.prometheus import CONTENT_TYPE, daemon_registry
from nsquark.http import Request, Response, joined
from nsquark.kernel import KERNEL
from nsquark.nsqd.broker import Broker
from nsquark.nsqd.core.channel import Channel
from nsquark.nsqd.core.topic import Topic
from nsquark.version import NSQ_VERSION, VERSION

from .held import held_back
from .histogram import Histogram
from .report import channel_latency

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from nsquark.nsqd.archive.archive import Archive

LAG_INTERVAL = 0.1

COUNTER, GAUGE = "counter", "gauge"
# What the last report of a channel's pipeline says: the metric, its field, what it is multiplied by.
PIPELINE_FAMILIES = (
    ("lag_messages", "Messages that the pipeline has not processed.", "lag_messages", 1),
    ("lag_seconds", "Age of the oldest message that the pipeline has not processed.", "lag_seconds", 1),
    ("log_rate", "Messages of this log that the pipeline processed a second.", "log_rate", 1),
    ("log_lag_messages", "Messages of this log that the pipeline has not processed.", "log_lag_messages", 1),
    ("log_lag_seconds", "Age of the oldest of them.", "log_lag_seconds", 1),
    ("batch_seconds", "Time that the pipeline took for its last batch.", "batch_ms", 0.001),
    ("report_timestamp_seconds", "When the pipeline last reported.", "received_ms", 0.001),
)
# What of the log is kept because the channel has not finished it.
HELD_FAMILIES = (
    ("held_messages", "Messages in the log from the first that the channel has not finished to the last."),
    ("held_bytes", "Bytes of the log's files that hold these messages."),
    ("held_segments", "How many files those are."),
)
_T = TypeVar("_T")

TOPIC_FAMILIES: tuple[tuple[str, str, str, Callable[[Topic], int]], ...] = (
    ("messages_total", COUNTER, "Messages published.", lambda topic: topic.message_count),
    ("message_bytes_total", COUNTER, "Bytes of message bodies published.", lambda topic: topic.message_bytes),
    ("depth", GAUGE, "Messages not passed on to channels yet.", lambda topic: topic.depth),
    (
        "backend_depth",
        GAUGE,
        "Of the depth, what is beyond --mem-queue-size.",
        lambda topic: topic.backend_depth,
    ),
    ("paused", GAUGE, "1 while the topic is paused.", lambda topic: topic.paused),
    ("log_bytes", GAUGE, "Size of the log's segments on disk.", lambda topic: topic.log.size),
    ("log_messages", GAUGE, "Messages in the log.", lambda topic: topic.log.end - topic.log.first),
)

ARCHIVE_FAMILIES: tuple[tuple[str, str, str, Callable[[Topic], int]], ...] = (
    ("log_archived_bytes", GAUGE, "Bytes that only the archive has.", lambda topic: topic.log.archived_size),
    (
        "log_unarchived_bytes",
        GAUGE,
        "Bytes of complete segments that are not in the archive yet.",
        lambda topic: topic.log.files.unarchived_size if topic.log.files is not None else 0,
    ),
)

TOPIC_HISTOGRAMS: tuple[tuple[str, str, Callable[[Topic], Histogram]], ...] = (
    (
        "publish_seconds",
        "Time from the arrival of a message until it is in the log, the oldest of each write for all of it.",
        lambda topic: topic.publish_times,
    ),
    (
        "delivery_seconds",
        "Time from a publish until a channel first sends the message, the oldest of each run for all of it.",
        lambda topic: topic.delivery_times,
    ),
)

CHANNEL_FAMILIES: tuple[tuple[str, str, str, Callable[[Channel], int]], ...] = (
    ("messages_total", COUNTER, "Messages received from the topic.", lambda channel: channel.message_count),
    ("requeued_total", COUNTER, "Messages requeued by consumers.", lambda channel: channel.requeue_count),
    ("timed_out_total", COUNTER, "Messages not answered in time.", lambda channel: channel.timeout_count),
    ("dead_letters_total", COUNTER, "Messages delivered too often.", lambda channel: channel.dead_count),
    ("depth", GAUGE, "Messages to be delivered.", lambda channel: channel.depth),
    (
        "backend_depth",
        GAUGE,
        "Of the depth, what is beyond --mem-queue-size.",
        lambda channel: channel.backend_depth,
    ),
    ("in_flight", GAUGE, "Messages delivered and not answered.", lambda channel: channel.in_flight_count),
    ("deferred", GAUGE, "Messages that wait for their time.", lambda channel: channel.deferred_count),
    ("clients", GAUGE, "Consumers.", lambda channel: len(channel.consumers)),
    ("paused", GAUGE, "1 while the channel is paused.", lambda channel: channel.paused),
    ("holds_log", GAUGE, "1 while the log is kept for the channel.", lambda channel: channel.holds_log),
)


class Metrics:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lag = LoopLag(broker)
        self._registry: CollectorRegistry | None = None

    async def get(self, _request: Request) -> Response:
        self._lag.watch()
        node = await asyncio.get_running_loop().run_in_executor(None, self._node)
        group = self._broker.group_metrics
        body = await joined(chain((node, group() if group is not None else ""), family_pieces(self._broker)))
        return Response(200, body, (("Content-Type", CONTENT_TYPE),))

    def _node(self) -> str:
        """In a thread: the import takes a while, and so does counting the open files of a large node."""
        from prometheus_client import generate_latest

        if self._registry is None:
            self._registry = node_registry(self._broker, self._lag.times)
        return generate_latest(self._registry).decode()


class LoopLag:
    """How much later than asked for the event loop calls back."""

    def __init__(self, broker: Broker) -> None:
        self.times = Histogram()
        self._broker = broker
        self._due = 0.0

    def watch(self) -> None:
        """From now on, until the broker stops."""
        if not self._due:
            self._ask(asyncio.get_running_loop())

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + LAG_INTERVAL
        loop.call_at(self._due, self._called, loop)

    def _called(self, loop: asyncio.AbstractEventLoop) -> None:
        self.times.observe(round((loop.time() - self._due) * 1e9))
        if not self._broker.stopping:
            self._ask(loop)


def node_registry(broker: Broker, lag: Histogram) -> CollectorRegistry:
    """prometheus-client's collectors of the process and of Python, and ours of the node."""
    return daemon_registry(lambda: _node_metrics(broker, lag))


def _node_metrics(broker: Broker, lag: Histogram) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily

    versions = {"version": NSQ_VERSION, "nsquark_version": VERSION, "kernel": KERNEL}
    yield InfoMetricFamily("nsqd", "What runs here.", value=versions)
    for name, told, value in (
        ("healthy", "1 unless something that failed does not work yet: see /ping.", broker.health == "OK"),
        ("ready", "1 unless clients should rather go to another nsqd: see /ready.", not broker.not_ready),
        ("start_time_seconds", "When nsqd was started, since the epoch.", broker.start_time),
        ("connections", "TCP clients.", len(broker.connections)),
        ("topics", "Topics.", len(broker.topics)),
        ("replica_file_term", "The term of the files that are begun.", broker.node.term),
        ("replica_followers", "Followers that are connected.", len(broker.recorder.followers)),
        ("replica_lag_frames", "Frames that the slowest follower has not written.", broker.recorder.lag),
        ("channels", "Channels.", sum(len(topic.channels) for topic in list(broker.topics.values()))),
    ):
        yield GaugeMetricFamily(f"nsqd_{name}", told, value=value)
    if broker.archive is not None:
        yield from _archive_metrics(broker.archive)
    with contextlib.suppress(OSError):
        disk = os.statvfs(broker.options.data_path or ".")
        for name, told, blocks in (
            ("free", "What nsqd may still write to the disk of its data path.", disk.f_bavail),
            ("size", "Size of the disk of the data path.", disk.f_blocks),
        ):
            yield GaugeMetricFamily(f"nsqd_data_path_{name}_bytes", told, value=blocks * disk.f_frsize)
    for name, told, times in (
        ("fsync_seconds", "Time that the fsyncs of a topic took.", broker.syncer.times),
        ("event_loop_lag_seconds", "How much later than asked for the event loop calls back.", lag),
    ):
        bounds = [(repr(bound), float(count)) for bound, count in times.buckets()]
        bounds.append(("+Inf", float(times.count)))
        yield HistogramMetricFamily(f"nsqd_{name}", told, bounds, sum_value=times.total_ns / 1e9)


def _archive_metrics(archive: Archive) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, says, value in (
        ("failing", "1 while segments cannot be brought to the archive.", bool(archive.failure)),
        ("busy_seconds", "For how long the segment that is being copied has been.", archive.busy_seconds),
        ("fetched_bytes", "Bytes on the disk that were fetched to be read.", archive.fetched.size),
    ):
        yield GaugeMetricFamily(f"nsqd_archive_{name}", says, value=value)
    for name, says, value in (
        ("segments", "Segments that were brought to the archive.", archive.uploaded),
        ("bytes", "Bytes that were brought to the archive.", archive.uploaded_bytes),
        ("deleted_segments", "Segments that were deleted in the archive.", archive.deletions.deleted),
        ("deleted_bytes", "Bytes that were deleted in the archive.", archive.deletions.deleted_bytes),
    ):
        yield CounterMetricFamily(f"nsqd_archive_{name}", says, value=value)


# ---- topics and channels


def family_pieces(broker: Broker) -> Iterator[str]:
    """The text of every family, a topic or a channel at most in each piece."""
    topics = [(f'topic="{topic.name}"', topic) for topic in broker.topics.values()]
    for name, kind, told, value in TOPIC_FAMILIES + (ARCHIVE_FAMILIES if broker.archive is not None else ()):
        yield from _family(f"nsqd_topic_{name}", kind, told, value, topics)
    for name, told, times in TOPIC_HISTOGRAMS:
        yield from _histograms(f"nsqd_topic_{name}", told, times, topics)
    channels: list[tuple[str, Channel]] = []
    for label, topic in topics:
        channels += [(f'{label},channel="{name}"', channel) for name, channel in topic.channels.items()]
        yield ""
    for name, kind, told, channel_value in CHANNEL_FAMILIES:
        yield from _family(f"nsqd_channel_{name}", kind, told, channel_value, channels)
    yield from _held_back(channels)
    if broker.options.e2e_processing_latency_percentile:
        yield from _latencies(channels)
    if broker.reports:
        yield from _pipelines(broker)


def _head(name: str, kind: str, told: str) -> str:
    return f"# HELP {name} {told}\n# TYPE {name} {kind}\n"


def _family(
    name: str, kind: str, told: str, value: Callable[[_T], int], things: Iterable[tuple[str, _T]]
) -> Iterator[str]:
    yield _head(name, kind, told)
    for labels, thing in things:
        yield f"{name}{{{labels}}} {+value(thing)}\n"  # the plus makes a number of a bool


def _histograms(
    name: str, told: str, times: Callable[[Topic], Histogram], topics: Iterable[tuple[str, Topic]]
) -> Iterator[str]:
    """The samples of topics that have counted anything."""
    yield _head(name, "histogram", told)
    for labels, topic in topics:
        each = times(topic)
        if each.count:
            lines = [
                f'{name}_bucket{{{labels},le="{bound}"}} {count}\n'
                for bound, count in (*each.buckets(), ("+Inf", each.count))
            ]
            yield (
                "".join(lines)
                + f"{name}_sum{{{labels}}} {each.total_ns / 1e9}\n"
                + f"{name}_count{{{labels}}} {each.count}\n"
            )


def _held_back(channels: Iterable[tuple[str, Channel]]) -> Iterator[str]:
    found = []
    for labels, channel in channels:
        found.append((labels, held_back(channel), channel.idle / 1e9))
        yield ""
    for field, told in HELD_FAMILIES:
        name = f"nsqd_channel_{field}"
        yield _head(name, GAUGE, told)
        for labels, held, _ in found:
            yield f"{name}{{{labels}}} {getattr(held, field)}\n"
    name = "nsqd_channel_idle_seconds"
    yield _head(name, GAUGE, "For how long the channel has not been read; 0 while it is read.")
    for labels, _, idle in found:
        yield f"{name}{{{labels}}} {idle}\n"


def _latencies(channels: Iterable[tuple[str, Channel]]) -> Iterator[str]:
    name = "nsqd_channel_e2e_processing_latency_seconds"
    yield _head(
        name, GAUGE, "Time from publish to FIN, by quantile, over --e2e-processing-latency-window-time."
    )
    for labels, channel in channels:
        for each in channel_latency(channel)["percentiles"] or ():
            yield f'{name}{{{labels},quantile="{each["quantile"]}"}} {each["value"] / 1e9}\n'


def _pipelines(broker: Broker) -> Iterator[str]:
    """What pipelines have reported, of those channels that have a report with the field."""
    reports = list(broker.reports.last())
    for metric, told, field, factor in PIPELINE_FAMILIES:
        name = f"nsqd_channel_pipeline_{metric}"
        yield _head(name, GAUGE, told)
        for (topic, channel), report in reports:
            if report[field] is not None:
                yield f'{name}{{topic="{topic}",channel="{channel}"}} {report[field] * factor}\n'
