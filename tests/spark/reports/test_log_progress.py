"""The figures of one log: how many messages of a batch were its own, and how they read in a line."""

from __future__ import annotations

from nsquark.spark.reports.log_progress import LogProgress, rate_of, rows_by_log
from nsquark.spark.source.offsets import LogPosition, Offset

A, B = ("t", "a"), ("t", "b")


def at(a: int, b: int, epoch: str = "e") -> Offset:
    return {A: LogPosition("e", "a:4150", a), B: LogPosition(epoch, "b:4150", b)}


def test_messages_are_counted_between_positions_of_the_same_log() -> None:
    assert rows_by_log(at(5, 7), at(9, 7), 4) == {A: 4, B: 0}
    assert rows_by_log(at(5, 7), at(9, 9, "another"), 4) == {A: 4}
    assert rows_by_log({A: at(5, 0)[A]}, at(9, 7), 4) == {A: 4}


def test_a_first_batch_has_no_start_but_a_count() -> None:
    alone = {A: at(9, 0)[A]}
    assert rows_by_log({}, alone, 4) == {A: 4}
    assert rows_by_log({}, alone, None) == rows_by_log({}, at(9, 7), 4) == {}


def test_a_rate_needs_rows_and_time() -> None:
    assert rate_of(10, {"batch_ms": 250}) == 40.0
    assert rate_of(0, {"batch_ms": 250}) == 0.0
    assert rate_of(None, {"batch_ms": 250}) is rate_of(10, {}) is rate_of(10, {"batch_ms": 0}) is None


def test_a_line_tells_what_is_known() -> None:
    progress = LogProgress("id", "", "t", "h:4150", "c", 3, None, 10, None, 5, 1.5)
    assert str(progress) == (
        "query id, topic t at nsqd h:4150: batch 3 had 10 messages in ? s (? a second), "
        "5 messages wait, the oldest for 1.5 s"
    )
