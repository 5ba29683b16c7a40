"""Limits and retentions, without a log."""

import pytest

from nsquark.log.retention import UNLIMITED, Limits, Retention, is_retained

HOUR = 3600.0


@pytest.mark.parametrize(
    ("size", "age", "limits", "kept"),
    [
        (10, 0, Limits(), False),  # without a retention nothing is kept that no channel needs
        (10, 0, Limits(retention_bytes=10), True),
        (11, 0, Limits(retention_bytes=10), False),
        (10**9, HOUR, Limits(retention_time=HOUR), True),
        (10**9, HOUR + 1, Limits(retention_time=HOUR), False),
        (10, HOUR + 1, Limits(retention_bytes=10, retention_time=HOUR), False),
        (11, 0, Limits(retention_bytes=10, retention_time=HOUR), False),
        (10, HOUR, Limits(retention_bytes=10, retention_time=HOUR), True),
    ],
)
def test_a_file_is_kept_while_no_limit_that_is_set_is_exceeded(
    size: int, age: float, limits: Limits, kept: bool
) -> None:
    assert is_retained(limits, size, age) is kept


def test_a_topics_retention_goes_before_that_of_the_node() -> None:
    node = Limits(retention_bytes=100, retention_time=HOUR)
    assert Retention().apply_to(node) == node
    assert Retention(bytes=5).apply_to(node) == node._replace(retention_bytes=5)
    assert Retention(time=2_500_000_000).apply_to(node) == node._replace(retention_time=2.5)
    assert Retention(bytes=0, time=0).apply_to(node) == node._replace(retention_bytes=0, retention_time=0.0)


def test_unlimited_keeps_everything_whatever_the_node_says() -> None:
    limits = Retention(bytes=UNLIMITED, time=UNLIMITED).apply_to(Limits(retention_bytes=1, retention_time=1))
    assert is_retained(limits, 1 << 60, 100 * 365 * 86400.0)
