"""Following the channel of a query when an operator moves it: by seeking, by emptying, by renaming it.

A query reads by positions that Spark keeps, so moving its channel at the nsqd alone would change nothing.
nsqd counts how often operators have moved a channel by seeking, and remembers what they have emptied. An
offset tells how many moves the query has followed. If the channel has more, the query goes on at the
channel's cursor. If the query comes to what was emptied, it goes on behind it. Its next offset says so, and a
replay has the same rows.
"""

from __future__ import annotations

import logging

from .logs import LogRange
from .offsets import LogPosition

logger = logging.getLogger(__name__)


class ChannelFollower:
    """Keeps the positions of a query in step with its channel at every nsqd."""

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._left_behind: set[str] = set()  # channels that were warned of

    def follow(self, log: LogRange, place: LogPosition) -> LogPosition:
        """Where the query is to go on: `place`, unless an operator has moved the channel or emptied it there.

        The caller has made sure that the log is the one of `place`.
        """
        if log.cursor is None:  # the nsqd was not asked for the channel, or does not have it
            return place
        if place.channel != self._channel:
            # Moves of another channel mean nothing here. The position is what Spark knows to be done.
            self._warn_left_behind(place.channel)
            return place._replace(channel=self._channel, moves=log.moves, begin=place.position)
        if log.moves > place.moves:
            if log.cursor != place.position:
                self._warn(log, f"an operator has moved it from {place.position} to {log.cursor}")
            place = place._replace(position=log.cursor, moves=log.moves, begin=log.cursor)
        if log.emptied is not None:
            start, end = log.emptied
            if start <= place.position < end:
                self._warn(log, f"an operator has emptied it from {place.position} to {end}")
                place = place._replace(position=end, begin=end)
        return place

    def _warn(self, log: LogRange, what: str) -> None:
        logger.warning(
            "nsqd %s, topic %s, channel %s: %s; the query goes on there",
            log.node.name,
            log.topic,
            self._channel,
            what,
        )

    def _warn_left_behind(self, old: str) -> None:
        """A query that goes on with another channel leaves the old one as it is, and that keeps the log."""
        if old and old not in self._left_behind:
            self._left_behind.add(old)
            logger.warning(
                "option 'channel': the checkpoint is of channel %r, and the query goes on with channel %r; "
                "the nsqds keep their logs for channel %r until it is deleted or read by another query",
                old,
                self._channel,
                old,
            )


def readable_end(log: LogRange, place: LogPosition) -> int:
    """How far the query can read from `place` before it comes to what was emptied, or to the log's end."""
    if log.emptied is not None and place.position < log.emptied[0]:
        return min(log.next, log.emptied[0])
    return log.next
