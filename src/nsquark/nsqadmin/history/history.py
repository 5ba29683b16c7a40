"""The last observations of the cluster, of its nodes, topics and channels.

Memory is bounded: a series takes 5.8 kB, and there are at most `max_series` of them (46 MB with 8,000). Nodes
and topics come first, then channels. Of what has no series only the present rate is known.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .reading import CLUSTER, Key, Observation, Reading
from .series import POINTS, Series, Values

MAX_SERIES = 8000
FORGET_AFTER = 60  # observations without it: its node is dead, or it was deleted
STEP = 500  # series that are taken in before other requests have a turn
_LONG_GAP = 60.0  # s; a mean over a longer time than that would be taken for a rate


@dataclass(frozen=True, slots=True)
class Chart:
    """Columns of equal length; `times` are Unix seconds."""

    times: list[float]
    rate: list[float | None]
    depth: list[float | None]
    in_flight: list[float | None]
    latency: list[float | None]

    def to_json(self) -> dict[str, object]:
        return {
            "times": self.times,
            "rate": _rounded(self.rate),
            "depth": _rounded(self.depth),
            "in_flight": _rounded(self.in_flight),
            "latency": _rounded(self.latency),
        }


def _rounded(column: list[float | None]) -> list[float | None]:
    return [None if value is None else float(f"{value:.7g}") for value in column]


class History:
    def __init__(self, max_series: int = MAX_SERIES) -> None:
        self._max_series = max_series
        self._series: dict[Key, Series] = {}
        self._latest: dict[Key, Values] = {}
        self._before = Observation({}, {})
        self._times = array("d", [0.0]) * POINTS
        self._observations = 0

    def __len__(self) -> int:
        """How many series there are."""
        return len(self._series)

    def observe(self, now: float, seen: Observation) -> None:
        """Take in what the cluster is at `now`, Unix seconds."""
        for _ in self.observing(now, seen):
            pass

    def observing(self, now: float, seen: Observation) -> Iterator[None]:
        """`observe` in steps, for a cluster of many thousand series. Readers see the end of it at once.

        A rate is what a count has grown by. When a node comes, goes or is restarted, sums jump: then the
        rates of topics and channels are not known for this once, and the whole cluster's is that of the nodes
        that stayed.
        """
        elapsed = now - self._times[(self._observations - 1) % POINTS] if self._observations else 0.0
        before = self._before.readings
        steady = seen.nodes == self._before.nodes
        latest: dict[Key, Values] = {}
        for number, (key, reading) in enumerate(seen.readings.items()):
            if not number % STEP:
                yield
            known = steady
            if key[0] == "node":
                known = seen.nodes.get(key[1]) == self._before.nodes.get(key[1])
            latest[key] = _values(reading, before.get(key) if known else None, elapsed)
        if not steady and CLUSTER in latest:
            rates = [values.rate for key, values in latest.items() if key[0] == "node"]
            stayed = [rate for rate in rates if not math.isnan(rate)]
            latest[CLUSTER] = latest[CLUSTER]._replace(rate=sum(stayed) if stayed else math.nan)
        yield from self._keep(latest)
        self._times[self._observations % POINTS] = now
        self._observations += 1
        self._before, self._latest = seen, latest

    def _keep(self, latest: Mapping[Key, Values]) -> Iterator[None]:
        number = self._observations
        for key, series in list(self._series.items()):
            if key in latest:
                continue
            if number - series.seen > FORGET_AFTER:
                del self._series[key]
            else:
                series.clear(number)
        newcomers = [key for key in latest if key not in self._series]
        newcomers.sort(key=lambda key: key[0] == "channel")
        for key in newcomers[: max(0, self._max_series - len(self._series))]:
            self._series[key] = Series()
        for at, (key, values) in enumerate(latest.items()):
            if not at % STEP:
                yield
            if key in self._series:
                self._series[key].put(number, values)

    def rate(self, key: Key) -> float | None:
        """Messages a second between the last two observations; None when that is not known."""
        values = self._latest.get(key)
        return None if values is None or math.isnan(values.rate) else values.rate

    def chart(self, key: Key, points: int = POINTS) -> Chart | None:
        """The last `points` observations of it; None if it has no series."""
        series = self._series.get(key)
        if series is None:
            return None
        # The oldest slot is that of the observation which may be under way.
        numbers = range(max(0, self._observations - min(points, POINTS - 1)), self._observations)
        times = [self._times[number % POINTS] for number in numbers]
        return Chart(times, *(series.column(name, numbers) for name in Values._fields))


def _values(reading: Reading, before: Reading | None, elapsed: float) -> Values:
    rate = math.nan
    if before is not None and reading.messages >= before.messages and 0 < elapsed <= _LONG_GAP:
        rate = (reading.messages - before.messages) / elapsed
    latency = math.nan if reading.latency_ns is None else reading.latency_ns / 1e9
    return Values(rate, reading.depth, reading.in_flight, latency)
