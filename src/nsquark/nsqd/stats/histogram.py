"""How long things took, counted in buckets that double: cheap enough to be used for every run of messages."""

from __future__ import annotations

from collections.abc import Iterator

_SHIFT = 14  # the first bucket ends at 2**14 ns, 16 µs
_BUCKETS = 22  # and the last but one at 34 s
_SMALL_NS, _SMALL_COUNT, _ROOM = 1 << 40, 1 << 20, 1 << 62


class Histogram:
    """Counts how many things took how long."""

    __slots__ = ("_counts", "_large", "_total", "count")

    def __init__(self) -> None:
        self.count = 0
        self._counts = [0] * 64
        self._total = 0
        self._large = 0

    def observe(self, ns: int, count: int = 1) -> None:
        """Record that `count` things took `ns` each. A clock that was set back makes that 0."""
        bucket = 0
        if ns > 0:
            rest = ns - 1 >> 14
            while rest:
                rest >>= 1
                bucket += 1
            # Compiled, `_total` has 64 bits. Whatever could exceed them goes to `_large`, which has no bound.
            if ns < _SMALL_NS and 0 < count < _SMALL_COUNT and self._total < _ROOM:
                self._total += ns * count
            else:
                exact = ns
                self._large += self._total + exact * count
                self._total = 0
        self._counts[bucket] += count
        self.count += count

    @property
    def counts(self) -> list[int]:
        """How many things are in each bucket."""
        return list(self._counts)

    @property
    def total_ns(self) -> int:
        """The sum of all times."""
        return self._large + self._total

    def buckets(self) -> Iterator[tuple[float, int]]:
        """(seconds, how many took at most that), upwards, but for the last, which is `count`."""
        so_far = 0
        for number, count in enumerate(self.counts[:_BUCKETS]):
            so_far += count
            yield (1 << _SHIFT + number) / 1e9, so_far
