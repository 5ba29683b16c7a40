"""Times, counted in buckets that double: cheap enough for every run of messages."""

from __future__ import annotations

from collections.abc import Iterator

from nsquark.kernel import Tally

_SHIFT = 14  # the first bucket ends at 2**14 ns, 16 µs
_BUCKETS = 22  # and the last but one at 34 s


class Histogram(Tally):
    """Counts how many things took how long."""

    __slots__ = ()

    def buckets(self) -> Iterator[tuple[float, int]]:
        """(seconds, how many took at most that), upwards, but for the last, which is `count`."""
        so_far = 0
        for number, count in enumerate(self.counts[:_BUCKETS]):
            so_far += count
            yield (1 << _SHIFT + number) / 1e9, so_far
