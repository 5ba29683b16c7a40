from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsquark.nsqd.stats.histogram import Histogram


def test_a_bucket_takes_what_is_not_longer_than_its_bound() -> None:
    histogram = Histogram()
    for ns in (-5, 0, 1, 1 << 14, (1 << 14) + 1, 1 << 15, (1 << 35) + 1):
        histogram.observe(ns)
    buckets = list(histogram.buckets())
    assert buckets[0] == ((1 << 14) / 1e9, 4)
    assert buckets[1] == ((1 << 15) / 1e9, 6)
    assert buckets[-1] == ((1 << 35) / 1e9, 6)
    assert histogram.count == 7


@given(st.lists(st.tuples(st.integers(0, 1 << 62), st.integers(1, 1000)), max_size=20))
def test_every_bucket_counts_what_lies_below_it(samples: list[tuple[int, int]]) -> None:
    histogram = Histogram()
    for ns, count in samples:
        histogram.observe(ns, count)
    assert histogram.count == sum(count for _, count in samples)
    assert histogram.total_ns == sum(ns * count for ns, count in samples)
    for bound, below in histogram.buckets():
        assert below == sum(count for ns, count in samples if ns <= bound * 1e9)
