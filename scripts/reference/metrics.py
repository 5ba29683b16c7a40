"""The page of all metrics: daemons are started, given something to count, and asked for `/metrics`."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from typing import NamedTuple

from nsquark.testing import Nsqd

HEAD = """\
# Metrics

What `GET /metrics` of nsqd and nsqlookupd has, asked when this site was built. Prometheus scrapes it so.
Topics and channels are labels. [nsqd's HTTP API](../http-api.md#metrics) says what to look at first.

"""
# So that every family has a reason to be there.
FLAGS = ("--e2e-processing-latency-percentile=0.99",)
REPORT = {"query_id": "q", "state": "running", "batch": 1, "lag_messages": 0, "lag_seconds": 0, "batch_ms": 1}

_FAMILY = re.compile(r"^# HELP (\S+) (.*)\n# TYPE \S+ (\S+)\n(.*)", re.M)
_LABELS = re.compile(r"(\w+)=\"")


class Metric(NamedTuple):
    name: str
    kind: str
    told: str
    labels: tuple[str, ...]


def page() -> str:
    groups = (("Of the node", "nsqd_"), ("Of topics", "nsqd_topic_"), ("Of channels", "nsqd_channel_"))
    parts = [HEAD]
    metrics = list(nsqd_metrics())
    listed: set[str] = set()
    for title, prefix in reversed(groups):
        rows = [each for each in metrics if each.name.startswith(prefix) and each.name not in listed]
        listed |= {each.name for each in rows}
        parts.insert(1, f"## {title}\n\n{_table(rows)}\n")
    parts.append(f"## Of the process\n\n{_table([each for each in metrics if each.name not in listed])}\n")
    directory = [each for each in nsqlookupd_metrics() if each.name.startswith("nsqlookupd_")]
    parts.append(f"## Of nsqlookupd\n\nBeside those of the process:\n\n{_table(directory)}")
    return "".join(parts)


def _table(metrics: list[Metric]) -> str:
    rows = []
    for each in metrics:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        rows.append(f"| `{each.name}` | {each.kind} | {labels} | {each.told} |\n")
    return "| metric | kind | labels | |\n|---|---|---|---|\n" + "".join(rows)


def nsqd_metrics() -> Iterator[Metric]:
    """Every family of an nsqd that has a topic, a channel and a pipeline that reports."""
    with Nsqd(*FLAGS) as nsqd:
        _post(f"http://{nsqd.http_address}/pub?topic=t", b"x")
        _post(f"http://{nsqd.http_address}/channel/create?topic=t&channel=c", b"")
        _post(f"http://{nsqd.http_address}/channel/report?topic=t&channel=c", json.dumps(REPORT).encode())
        with urllib.request.urlopen(f"http://{nsqd.http_address}/metrics", timeout=60) as answer:
            yield from families(answer.read().decode())


def nsqlookupd_metrics() -> Iterator[Metric]:
    """Every family of an nsqlookupd."""
    from nsquark.nsqlookupd.directory import Directory
    from nsquark.nsqlookupd.metrics import Metrics
    from nsquark.nsqlookupd.options import parse

    answering = Metrics(Directory(parse([]), 0, 0)).get(None)  # type: ignore[arg-type]  # not looked at
    yield from families(asyncio.run(answering).body.decode())


def families(text: str) -> Iterator[Metric]:
    """The families of an exposition, with the labels that their first sample has."""
    for name, told, kind, sample in _FAMILY.findall(text):
        labels = () if sample.startswith("#") else _LABELS.findall(sample)
        yield Metric(name, kind, told, tuple(label for label in labels if label != "le"))


def _post(url: str, body: bytes) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, body, method="POST"), timeout=60):
        pass
