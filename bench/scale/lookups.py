"""What nsqlookupd is asked, second by second: consumers poll with jitter, and all start at once."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass

from nsquark.client import Config


@dataclass(frozen=True, slots=True)
class Lookups:
    mean: float  # requests a second
    first_second: int  # when all consumers start within it
    worst_second_later: int  # from the second minute on


def lookups(consumers: int, seconds: int, seed: int = 1) -> Lookups:
    """All consumers start within a second, and then poll as the client library's defaults say."""
    config = Config()
    chance = random.Random(seed)
    interval = config.lookupd_poll_interval
    asked: Counter[int] = Counter()
    due = [chance.random() for _ in range(consumers)]
    asked.update(map(int, due))
    # As `Discovery.wait` does: the jitter lengthens the first period, and later ones by up to a tenth of it.
    due = [at + interval * (1 + config.lookupd_poll_jitter * chance.random()) for at in due]
    heapq.heapify(due)
    while due and due[0] < seconds:
        at = due[0]
        asked[int(at)] += 1
        heapq.heapreplace(due, at + interval * (1 + config.lookupd_poll_jitter * 0.1 * chance.random()))
    later = [count for second, count in asked.items() if second >= 2 * interval]
    return Lookups(
        mean=consumers / interval,
        first_second=asked[0],
        worst_second_later=max(later, default=0),
    )
