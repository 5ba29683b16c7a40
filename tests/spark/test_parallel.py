"""Calls at the same time: their order, and their errors."""

from __future__ import annotations

import threading

import pytest

from nsquark.spark.parallel import call_each, try_each


def reciprocal(number: int) -> float:
    return 1 / number


def test_results_are_in_the_order_of_the_items() -> None:
    assert call_each(reciprocal, [4, 2, 1]) == [0.25, 0.5, 1.0]
    assert call_each(reciprocal, []) == []


def test_calls_run_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=20)
    assert len(call_each(lambda _: barrier.wait(), range(3))) == 3


def test_an_error_is_raised_or_stands_in_the_list() -> None:
    for items in ([0], [1, 0, 2]):
        with pytest.raises(ZeroDivisionError):
            call_each(reciprocal, items)
    first, failed, last = try_each(reciprocal, [1, 0, 2])
    assert (first, last) == (1.0, 0.5)
    assert isinstance(failed, ZeroDivisionError)


def test_a_call_may_call_each_again() -> None:
    nested = call_each(lambda number: call_each(reciprocal, [number] * 20), [1] * 20)
    assert nested == [[1.0] * 20] * 20
