"""The offset of a streaming query: a position in each log, and the JSON that Spark keeps of it.

    {"events": {"<id of nsqd>": {"epoch": "…", "nsqd": "host:4150", "offset": 123, "channel": "archive"}}}

Spark compares offsets as text, so the keys are sorted: equal offsets have equal text. The epoch tells which
log the position is in; two offsets have rows between them only where both have the same epoch. The name is
the value of the `nsqd` column of the rows. It is part of the offset so that a replay has the same rows even
after the nsqd has moved.

The rows of a batch lie between two offsets, except where a position of the later offset has a `begin`: there
the rows begin at `begin`. A query writes `begin` into its first offset, since Spark does not keep where the
query began, and into an offset by which it follows a channel that an operator has moved. `moves` says how
many moves of the channel the query has followed; it is left out while there are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import OptionError
from .logs import LogKey, LogRange


class LogPosition(NamedTuple):
    """A position in the log that has this epoch, at the nsqd of this name."""

    epoch: str
    nsqd: str
    position: int
    channel: str = ""  # of the query; empty in a checkpoint that was written before this was kept
    moves: int = 0  # of the channel by operators, as far as the query has followed them
    begin: int | None = None  # where the rows of the batch begin that ends here, if not where the last ended


Offset = dict[LogKey, LogPosition]


def end_of(log: LogRange) -> LogPosition:
    return LogPosition(log.epoch, log.node.name, log.next)


def pack_offset(offset: Mapping[LogKey, LogPosition]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for topic, nsqd_id in sorted(offset):
        place = offset[topic, nsqd_id]
        told: dict[str, Any] = {"epoch": place.epoch, "nsqd": place.nsqd, "offset": place.position}
        if place.channel:
            told["channel"] = place.channel
        if place.moves:
            told["moves"] = place.moves
        if place.begin is not None:
            told["begin"] = place.begin
        document.setdefault(topic, {})[nsqd_id] = told
    return document


def parse_offset(document: Mapping[str, Any]) -> Offset:
    """Raises OptionError if another kind of source wrote the checkpoint."""
    try:
        return {
            (topic, nsqd_id): LogPosition(
                each["epoch"],
                each["nsqd"],
                int(each["offset"]),
                str(each.get("channel", "")),
                int(each.get("moves", 0)),
                None if each.get("begin") is None else int(each["begin"]),
            )
            for topic, nsqds in document.items()
            for nsqd_id, each in nsqds.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise OptionError(
            "checkpointLocation", f"the checkpoint has offsets of another source: {str(document)[:200]}"
        ) from None


class Span(NamedTuple):
    """The positions [start, end) of one log."""

    topic: str
    nsqd_id: str
    nsqd: str
    epoch: str
    start: int
    end: int

    @property
    def key(self) -> LogKey:
        return self.topic, self.nsqd_id

    @property
    def rows(self) -> int:
        return self.end - self.start


def spans_between(start: Offset, end: Offset) -> list[Span]:
    """The rows between two offsets.

    A log that is not in `start`, or has another epoch there, has no rows between them, unless `end` says
    where they begin. A log that is the same in both has none.
    """
    spans = []
    for key in sorted(end):
        until, since = end[key], start.get(key)
        if since == until:  # the log has no part in the batch
            continue
        begin = until.begin
        if begin is None and since is not None and since.epoch == until.epoch:
            begin = since.position
        if begin is not None and begin < until.position:
            spans.append(Span(*key, until.nsqd, until.epoch, begin, until.position))
    return spans
