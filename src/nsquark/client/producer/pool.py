"""Which nsqd to publish to next, when there are several. No sockets: time is an argument."""

from __future__ import annotations

import random
from typing import Literal, Protocol

from nsquark.errors import UsageError

Mode = Literal["all", "round-robin", "hostpool", "epsilon-greedy", "random", "group"]

_FIRST_RETRY = 30.0
_LONGEST_RETRY = 900.0
_BUCKETS = 120
_BUCKET = 2.5  # seconds


class PickedHost:
    """A host that a pool has picked. `mark` tells the pool the outcome, once."""

    __slots__ = ("_marked", "_pool", "_since", "host")

    def __init__(self, pool: Pool, host: int, now: float) -> None:
        self.host = host
        self._pool = pool
        self._since = now
        self._marked = False

    def mark(self, ok: bool, now: float) -> None:
        if not self._marked:
            self._marked = True
            self._pool.marked(self.host, ok, now, now - self._since)


class Pool(Protocol):
    def pick(self, now: float) -> PickedHost: ...

    def marked(self, host: int, ok: bool, now: float, took: float) -> None: ...


class RoundRobin:
    """All hosts in turn, beginning with the second, whether they fail or not."""

    def __init__(self, hosts: int) -> None:
        self._hosts = hosts
        self._counter = 0

    def pick(self, now: float) -> PickedHost:
        self._counter += 1
        return PickedHost(self, self._counter % self._hosts, now)

    def marked(self, host: int, ok: bool, now: float, took: float) -> None:
        pass


class Random:
    def __init__(self, hosts: int) -> None:
        self._hosts = hosts

    def pick(self, now: float) -> PickedHost:
        return PickedHost(self, random.randrange(self._hosts), now)

    def marked(self, host: int, ok: bool, now: float, took: float) -> None:
        pass


class HostPool:
    """All hosts in turn, without those that failed. A failed one is tried again; the delay doubles."""

    def __init__(self, hosts: int) -> None:
        self._hosts = hosts
        self._dead = [False] * hosts
        self._retry_delay = [0.0] * hosts
        self._next_retry = [0.0] * hosts
        self._cursor = 0

    def pick(self, now: float) -> PickedHost:
        for step in range(self._hosts):
            host = (self._cursor + step) % self._hosts
            if self._may_try(host, now):
                self._tried(host, now)
                self._cursor = host + 1
                return PickedHost(self, host, now)
        self._dead = [False] * self._hosts
        self._cursor = 0
        return PickedHost(self, 0, now)

    def _may_try(self, host: int, now: float) -> bool:
        return not self._dead[host] or now > self._next_retry[host]

    def _tried(self, host: int, now: float) -> None:
        if self._dead[host]:
            self._retry_delay[host] = min(2 * self._retry_delay[host], _LONGEST_RETRY)
            self._next_retry[host] = now + self._retry_delay[host]

    def marked(self, host: int, ok: bool, now: float, took: float) -> None:
        if ok:
            self._dead[host] = False
        elif not self._dead[host]:
            self._dead[host] = True
            self._retry_delay[host] = _FIRST_RETRY
            self._next_retry[host] = now + _FIRST_RETRY


class _AnswerTimes:
    """How long a host took to answer in the last five minutes. Recent answers weigh more."""

    __slots__ = ("_bucket", "_counts", "_sums")

    def __init__(self, now: float) -> None:
        self._counts = [0] * _BUCKETS
        self._sums = [0.0] * _BUCKETS
        self._bucket = int(now // _BUCKET)

    def _rotate(self, now: float) -> None:
        current = int(now // _BUCKET)
        for bucket in range(self._bucket + 1, min(current, self._bucket + _BUCKETS) + 1):
            self._counts[bucket % _BUCKETS] = 0
            self._sums[bucket % _BUCKETS] = 0.0
        self._bucket = max(self._bucket, current)

    def add(self, took: float, now: float) -> None:
        self._rotate(now)
        self._counts[self._bucket % _BUCKETS] += 1
        self._sums[self._bucket % _BUCKETS] += took * 1000

    def average(self, now: float) -> float:
        """The weighted average in milliseconds; 0 without data."""
        self._rotate(now)
        value = weighted = weights = 0.0
        for place in range(1, _BUCKETS + 1):  # the oldest first
            bucket = (self._bucket + place) % _BUCKETS
            if self._counts[bucket]:
                value = self._sums[bucket] / self._counts[bucket]
            if value:  # an empty bucket repeats the one before
                weighted += value * place / _BUCKETS
                weights += place / _BUCKETS
        return weighted / weights if weights else 0.0


class EpsilonGreedy(HostPool):
    """Mostly the fast hosts, and now and then any host, to measure it."""

    def __init__(self, hosts: int) -> None:
        super().__init__(hosts)
        self._epsilon = 0.3
        self._times: dict[int, _AnswerTimes] = {}

    def pick(self, now: float) -> PickedHost:
        if random.random() < self._epsilon:
            self._epsilon = max(0.01, 0.9 * self._epsilon)
            return super().pick(now)
        scores = {}
        for host, times in self._times.items():
            average = times.average(now)
            if average > 0 and self._may_try(host, now):
                scores[host] = 1 / average
        if not scores:
            return super().pick(now)
        (host,) = random.choices(list(scores), list(scores.values()))
        self._tried(host, now)
        return PickedHost(self, host, now)

    def marked(self, host: int, ok: bool, now: float, took: float) -> None:
        super().marked(host, ok, now, took)
        if ok:
            self._times.setdefault(host, _AnswerTimes(now)).add(took, now)


_POOLS: dict[str, type[RoundRobin] | type[HostPool] | type[Random]] = {
    "round-robin": RoundRobin,
    "hostpool": HostPool,
    "epsilon-greedy": EpsilonGreedy,
    "random": Random,
}


def make_pool(mode: Mode, hosts: int) -> Pool | None:
    """The pool of a mode; None for `all`, which needs no choice."""
    if mode == "all":
        return None
    if mode not in _POOLS:
        raise UsageError(f"mode {mode!r} is none of all, group, {', '.join(_POOLS)}")
    return _POOLS[mode](hosts)
