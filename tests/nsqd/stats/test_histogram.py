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


@given(st.lists(st.tuples(st.integers(-5, (1 << 63) - 1), st.integers(1, 1 << 30)), max_size=20))
def test_times_are_counted_whatever_they_add_up_to(samples: list[tuple[int, int]]) -> None:
    histogram = Histogram()
    counts = [0] * 64
    for ns, count in samples:
        histogram.observe(ns, count)
        counts[(ns - 1 >> 14).bit_length() if ns > 0 else 0] += count
    assert histogram.counts == counts
    assert histogram.count == sum(counts)
    assert histogram.total_ns == sum(max(ns, 0) * count for ns, count in samples)


@given(st.lists(st.tuples(st.integers(0, 1 << 62), st.integers(1, 1000)), max_size=20))
def test_every_bucket_counts_what_lies_below_it(samples: list[tuple[int, int]]) -> None:
    histogram = Histogram()
    for ns, count in samples:
        histogram.observe(ns, count)
    assert histogram.count == sum(count for _, count in samples)
    assert histogram.total_ns == sum(ns * count for ns, count in samples)
    for bound, below in histogram.buckets():
        assert below == sum(count for ns, count in samples if ns <= bound * 1e9)
