"""How far a query has come: a position in each log, and its JSON, which Spark compares as text.

    {"events": {"<id of nsqd>": {"epoch": "…", "nsqd": "host:4150", "offset": 123}}}

Keys are sorted, so that equal offsets are equal text. The epoch says which log the position is in: rows lie
between two offsets only where both have the same one. The name is what the `nsqd` column of those rows says,
so that it does not change when the nsqd moves before a batch is replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import OptionError

Key = tuple[str, str]  # topic, id of the nsqd


class Place(NamedTuple):
    epoch: str
    nsqd: str
    position: int


Places = dict[Key, Place]


def pack(places: Mapping[Key, Place]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for topic, node in sorted(places):
        place = places[topic, node]
        document.setdefault(topic, {})[node] = {
            "epoch": place.epoch,
            "nsqd": place.nsqd,
            "offset": place.position,
        }
    return document


def parse(document: Mapping[str, Any]) -> Places:
    """Raises OptionError if the checkpoint is not ours."""
    try:
        return {
            (topic, node): Place(each["epoch"], each["nsqd"], int(each["offset"]))
            for topic, nodes in document.items()
            for node, each in nodes.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise OptionError(
            "checkpointLocation", f"the checkpoint has offsets of another source: {str(document)[:200]}"
        ) from None


class Span(NamedTuple):
    """Rows to read: the positions [start, end) of one log."""

    topic: str
    id: str
    nsqd: str
    epoch: str
    start: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.start


def between(start: Places, end: Places) -> list[Span]:
    """What lies between two offsets. A log that begins in `end`, or is another one there, has no rows yet."""
    spans = []
    for key in sorted(end):
        until, since = end[key], start.get(key)
        if since is not None and since.epoch == until.epoch and since.position < until.position:
            spans.append(Span(*key, until.nsqd, until.epoch, since.position, until.position))
    return spans


def share(counts: Mapping[Key, int], limit: int) -> dict[Key, int]:
    """At most `limit` of these, each by its part of the whole, and none nothing if there is enough."""
    total = sum(counts.values())
    if total <= limit:
        return dict(counts)
    shares = {key: count * limit // total for key, count in counts.items()}
    left = limit - sum(shares.values())
    # what rounding has left goes to those who have least, so that a small log is not kept waiting for ever
    for key in sorted(counts, key=lambda key: (shares[key], key)):
        if left <= 0:
            break
        if shares[key] < counts[key]:
            shares[key] += 1
            left -= 1
    return shares
