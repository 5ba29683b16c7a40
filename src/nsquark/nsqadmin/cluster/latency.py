"""Percentiles of the time from publish to FIN, of one node and merged over nodes.

The mean of percentiles is no percentile: `average` is what nsqadmin has always shown, and `max` is the value
that no node exceeds. In ns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .document import Document, as_document, documents, integer, number

Number = int | float


@dataclass(slots=True)
class Percentile:
    quantile: Number
    min: Number
    max: Number
    average: Number
    count: int
    # What the node has reported; None once nodes are merged.
    value: Number | None

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "average": self.average,
            "count": self.count,
            "max": self.max,
            "min": self.min,
            "quantile": self.quantile,
        }
        if self.value is not None:
            told["value"] = self.value
        return told


@dataclass(slots=True)
class Latency:
    """`percentiles` is None where nsqd does not measure. `host` is `*` once nodes are merged."""

    count: int = 0
    percentiles: list[Percentile] | None = None
    topic: str = ""
    channel: str = ""
    host: str = ""

    def add(self, other: Latency) -> None:
        """Merge the latency of one more node into this one."""
        self.count += other.count
        if other.percentiles is None:
            return
        if self.percentiles is None:
            self.percentiles = []
        for theirs in other.percentiles:
            for ours in self.percentiles:
                if ours.quantile == theirs.quantile:
                    _add(ours, theirs)
                    break
            else:
                self.percentiles.append(
                    Percentile(
                        theirs.quantile, theirs.min, theirs.max, theirs.average, theirs.count, value=None
                    )
                )

    def to_json(self) -> dict[str, Any]:
        percentiles = self.percentiles
        return {
            "count": self.count,
            "percentiles": None if percentiles is None else [each.to_json() for each in percentiles],
            "topic": self.topic,
            "channel": self.channel,
            "host": self.host,
        }


def _add(ours: Percentile, theirs: Percentile) -> None:
    ours.max = max(ours.max, theirs.max)
    ours.min = min(ours.min, theirs.min)
    ours.count += theirs.count
    if ours.count:
        ours.average += (theirs.average - ours.average) * theirs.count / ours.count
    else:
        ours.average = 0


# What nearly every record has. Records of nodes are never changed, so they can share it.
NOT_MEASURED = Latency()
_NOTHING = {"count": 0, "percentiles": None}


def parse_latency(value: object) -> Latency:
    """The `e2e_processing_latency` of nsqd's `/stats`."""
    if value == _NOTHING:
        return NOT_MEASURED
    document: Document = as_document(value)
    count = integer(document, "count")
    if not isinstance(document.get("percentiles"), list):
        return Latency(count) if count else NOT_MEASURED
    percentiles = []
    for each in documents(document, "percentiles"):
        reported = number(each, "value")
        percentiles.append(
            Percentile(number(each, "quantile"), reported, reported, reported, count, reported)
        )
    return Latency(count, percentiles)
