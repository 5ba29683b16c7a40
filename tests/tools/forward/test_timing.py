"""The status lines: when they come and what they say."""

from __future__ import annotations

import logging

import pytest

from nsquark.tools.forward.timing import DurationRing, StatusLines, percentile


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nsquark.tools.forward.timing")


@pytest.mark.parametrize("at_once", [1, 7, 100, 350])
def test_a_line_comes_with_the_sample_that_wraps_and_every_so_many_after_it(
    caplog: pytest.LogCaptureFixture, at_once: int
) -> None:
    ring = DurationRing(100, "[x]:")
    left = 350
    while left:
        some = min(left, at_once)
        ring.add(0.0125, some)
        left -= some
    expected = "[x]: finished {} - 99th: 12.50ms - 95th: 12.50ms - avg: 12.50ms"
    assert lines(caplog) == [expected.format(count) for count in (101, 201, 301)]


def test_a_line_tells_of_the_last_samples_alone(caplog: pytest.LogCaptureFixture) -> None:
    ring = DurationRing(100, "[x]:")
    ring.add(9.0)  # left out: the sample that wraps takes its place
    for number in range(1, 101):
        ring.add(number / 1000)
    assert lines(caplog) == ["[x]: finished 101 - 99th: 100.00ms - 95th: 97.00ms - avg: 50.50ms"]


def test_nothing_is_kept_or_said_when_turned_off(caplog: pytest.LogCaptureFixture) -> None:
    ring = DurationRing(0, "[x]:")
    ring.add(1.0, 10_000)
    assert ring.finished == 0
    assert lines(caplog) == []


def test_the_percentile_is_by_nsqs_rule() -> None:
    assert percentile([1.0], 99) == 1.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 25) == 3.0  # ceil(1 + 0.5) = 2
    assert percentile([1.0, 2.0, 3.0, 4.0], 95) == 4.0  # beyond the end: the last


def test_too_few_samples_are_warned_of_for_each_timer(caplog: pytest.LogCaptureFixture) -> None:
    StatusLines(10, ["a:1", "b:2"])
    assert [line.split(" ")[0] for line in lines(caplog)] == ["[a:1]:", "[b:2]:", "[aggregate]:"]


def test_one_target_has_no_lines_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    status = StatusLines(100, ["a:1"])
    for _ in range(101):
        status.target_took(0, 0.001)
        status.delivered(0.001)
    assert [line.split(" ")[0] for line in lines(caplog)] == ["[aggregate]:"]
