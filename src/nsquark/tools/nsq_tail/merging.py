"""Several logs as one stream, by the times of their messages."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import AsyncIterator, Hashable, Mapping
from itertools import accumulate
from operator import itemgetter
from typing import TypeVar

from ..log_reader import LogMessage

S = TypeVar("S", bound=Hashable)
Runs = AsyncIterator[list[LogMessage]]


async def merged(logs: Mapping[S, Runs]) -> AsyncIterator[list[tuple[S, LogMessage]]]:
    """The messages of all logs, each with its log, the oldest first, in runs.

    The order within a log is kept, even where its clock was set back. In memory there is one run of each log.
    """
    # Of each log, the messages that are read and not handed out, with the latest time up to each of them.
    read: dict[S, list[tuple[int, S, LogMessage]]] = {}
    left = dict(logs)
    while True:
        for log, runs in list(left.items()):
            if not read.get(log):
                run = await anext(runs, None)
                if run is None:
                    del left[log]
                    read.pop(log, None)
                else:
                    times = accumulate((message.timestamp_ns for message in run), max)
                    read[log] = [(time, log, message) for time, message in zip(times, run, strict=True)]
        if not read:
            return
        # Up to this time nothing more can come from any log.
        limit = min(run[-1][0] for run in read.values())
        ripe = []
        for log, messages in read.items():
            count = bisect_right(messages, limit, key=itemgetter(0))
            ripe.append(messages[:count])
            read[log] = messages[count:]
        yield [(log, message) for _, log, message in heapq.merge(*ripe, key=itemgetter(0))]
