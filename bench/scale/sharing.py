"""How the client's own rule shares RDY over many nsqds: the automaton of the client library, without sockets.

The nsqds are queues that send what RDY allows; the consumer finishes a message `work` seconds after it came.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass

from nsquark.client.consumer.rdy import RdyShare, RdySharing

STEP = 0.05  # seconds
MAX_RDY = 2500
REDISTRIBUTE = 5.0  # the client's rdy_redistribute_interval


class Nsqd:
    """A queue of the times at which its messages were published."""

    def __init__(self, share: RdyShare, rate: float) -> None:
        self.share = share
        self.rate = rate
        self.owed = 0.0
        self.queue: deque[float] = deque()


@dataclass(frozen=True, slots=True)
class Sharing:
    used: float  # of what the consumer could do, or of what came if that is less
    median_wait: float  # seconds from publish to delivery, or to the end if it was not delivered
    longest_wait: float
    highest: int  # messages in flight at once
    steady_again: float | None  # seconds after the loss until RDY adds up to max_in_flight again


class Consumer:
    """A consumer of `nsqds` connections with RDY shared by the client's rule."""

    def __init__(self, rates: list[float], max_in_flight: int, work: float) -> None:
        self.max_in_flight = max_in_flight
        self.work = work
        self.now = 0.0
        self.sharing = RdySharing(max_in_flight, lambda share, rdy: None)
        self.nsqds = [Nsqd(RdyShare(MAX_RDY, 0.0), rate) for rate in rates]
        for nsqd in self.nsqds:
            self.sharing.add(nsqd.share, 0.0)
        self.working: list[tuple[float, int]] = []  # when it will be finished, at which nsqd
        self.waits: list[float] = []
        self.finished = 0
        self.highest = 0
        self._ticked = 0.0

    def step(self) -> None:
        self.now += STEP
        while self.working and self.working[0][0] <= self.now:
            _, place = heapq.heappop(self.working)
            self.nsqds[place].share.in_flight -= 1
            self.finished += 1
        if self.sharing.waiting:
            self.sharing.distribute(self.now)
        if self.now - self._ticked >= REDISTRIBUTE:
            self._ticked = self.now
            self.sharing.tick(self.now)
        for place, nsqd in enumerate(self.nsqds):
            self._deliver(place, nsqd)
        self.highest = max(self.highest, len(self.working))

    def _deliver(self, place: int, nsqd: Nsqd) -> None:
        nsqd.owed += nsqd.rate * STEP
        while nsqd.owed >= 1:
            nsqd.owed -= 1
            nsqd.queue.append(self.now)
        if nsqd.share not in self.sharing.shares:
            return
        sent = False
        while nsqd.queue and nsqd.share.in_flight < nsqd.share.rdy:
            self.waits.append(self.now - nsqd.queue.popleft())
            nsqd.share.in_flight += 1
            heapq.heappush(self.working, (self.now + self.work, place))
            sent = True
        if sent:
            self.sharing.message(nsqd.share, self.now)

    def lose(self, places: list[int]) -> None:
        """These connections end, and their messages in flight with them."""
        gone = set(places)
        self.working = [each for each in self.working if each[1] not in gone]
        heapq.heapify(self.working)
        for place in places:
            self.nsqds[place].share.in_flight = 0
            self.nsqds[place].rate = 0.0
            self.nsqds[place].queue.clear()
            self.sharing.remove(self.nsqds[place].share, self.now)

    @property
    def total_rdy(self) -> int:
        return sum(share.rdy for share in self.sharing.shares)


def skewed(nsqds: int, rate: float, skew: float, seed: int) -> list[float]:
    """Rates that add up to `rate`: all equal for a skew of 0, Zipf's for 1."""
    weights = [1 / (place + 1) ** skew for place in range(nsqds)]
    random.Random(seed).shuffle(weights)
    return [rate * weight / sum(weights) for weight in weights]


def share(
    nsqds: int,
    max_in_flight: int,
    *,
    rate: float,
    skew: float = 0.0,
    work: float = 0.1,
    seconds: float = 120.0,
    lose: int = 0,
    seed: int = 1,
) -> Sharing:
    """Run one consumer; in the middle it loses so many of its nsqds, and the others get their messages."""
    consumer = Consumer(skewed(nsqds, rate, skew, seed), max_in_flight, work)
    half = seconds / 2
    steady_again: float | None = None
    while consumer.now < seconds:
        consumer.step()
        if lose and consumer.now >= half and len(consumer.sharing.shares) == nsqds:
            consumer.lose(list(range(lose)))
            others = consumer.nsqds[lose:]
            grown = rate / sum(nsqd.rate for nsqd in others)
            for nsqd in others:
                nsqd.rate *= grown
        if consumer.now >= half and steady_again is None and len(consumer.sharing.shares) < nsqds:
            if consumer.total_rdy == max_in_flight:
                steady_again = round(consumer.now - half, 3)
    possible = min(rate, max_in_flight / work) * seconds
    left = [consumer.now - published for nsqd in consumer.nsqds for published in nsqd.queue]
    waits = sorted([*consumer.waits, *left])
    return Sharing(
        used=consumer.finished / possible,
        median_wait=waits[len(waits) // 2],
        longest_wait=waits[-1],
        highest=consumer.highest,
        steady_again=steady_again,
    )
