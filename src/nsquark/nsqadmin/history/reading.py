"""What the cluster is at one moment, reduced to what is charted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

Key = tuple[str, ...]  # ("topic", T), ("channel", T, C), ("node", N) or CLUSTER
CLUSTER: Key = ("cluster",)


class Reading(NamedTuple):
    """Counts of one topic, channel or node."""

    messages: int  # it only grows, until a node is restarted or the topic is made again
    depth: int
    in_flight: int = 0
    latency_ns: float | None = None  # the highest percentile that is measured, if any is


@dataclass(frozen=True, slots=True)
class Observation:
    """`nodes` are those that answered, with the time each was started; `readings` are sums over them."""

    nodes: Mapping[str, int]
    readings: Mapping[Key, Reading]
