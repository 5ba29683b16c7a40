"""Times, counted in buckets that double: cheap enough for every run of messages."""

from __future__ import annotations

from collections.abc import Iterator

_SHIFT = 14  # the first bucket ends at 2**14 ns, 16 µs
_BUCKETS = 22  # and the last but one at 34 s


class Histogram:
    """Counts how many things took how long."""

    __slots__ = ("_counts", "count", "total_ns")

    def __init__(self) -> None:
        self._counts = [0] * 64
        self.count = 0
        self.total_ns = 0

    def observe(self, ns: int, count: int = 1) -> None:
        """`count` things took `ns` each; a clock that was set back makes that 0."""
        if ns > 0:
            self._counts[(ns - 1 >> _SHIFT).bit_length()] += count
            self.total_ns += ns * count
        else:
            self._counts[0] += count
        self.count += count

    def buckets(self) -> Iterator[tuple[float, int]]:
        """(seconds, how many took at most that), upwards, but for the last, which is `count`."""
        so_far = 0
        for number, count in enumerate(self._counts[:_BUCKETS]):
            so_far += count
            yield (1 << _SHIFT + number) / 1e9, so_far
