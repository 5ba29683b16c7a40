from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest

from nsquark.cli.flags import StartError
from nsquark.pipeline.running.progress import Progress, lag, line, open_json, summary


class Told(dict[str, Any]):
    """Spark's progress: a mapping that knows its JSON."""

    @property
    def json(self) -> str:
        return json.dumps(self)


class FakeQuery:
    def __init__(self) -> None:
        self.recentProgress: list[Told] = []

    @property
    def lastProgress(self) -> Told | None:
        return self.recentProgress[-1] if self.recentProgress else None

    def batch(self, number: int, messages: int, at: str = "") -> None:
        self.recentProgress.append(told(number, messages, at))


def told(number: int, messages: int, at: str = "") -> Told:
    place = {"epoch": "e", "nsqd": "127.0.0.1:4150"}
    return Told(
        name="archive",
        batchId=number,
        timestamp=at or f"2024-05-01T12:00:{number:02d}.000Z",
        numInputRows=messages,
        inputRowsPerSecond=10.04,
        processedRowsPerSecond=float("nan"),
        durationMs={"triggerExecution": 1500},
        sources=[
            {
                "endOffset": {"t": {"n": {**place, "offset": 7}}},
                "latestOffset": json.dumps(
                    {"t": {"n": {**place, "offset": 10}, "m": {**place, "offset": 5}}}
                ),
            }
        ],
    )


def test_a_summary_has_rates_lag_and_time() -> None:
    batch = summary(told(3, 20))
    assert batch["input_per_second"] == 10.0
    assert batch["processed_per_second"] == 0.0  # what Spark does not know yet is no number
    assert batch["lag"] == 8
    assert line(batch) == "archive: batch 3, 20 messages, in 10/s, done 0/s, lag 8, 1.50 s"


def test_a_source_that_does_not_say_has_no_lag() -> None:
    assert lag([{"endOffset": None, "latestOffset": None}]) is None


def test_every_batch_is_told_once_and_lines_are_few(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = 100.0
    out, query = io.StringIO(), FakeQuery()
    progress = Progress(out, lambda: now)
    progress.look(query)
    query.batch(0, 5)
    progress.look(query)
    progress.look(query)
    for number in (1, 2, 3):  # faster than any reader looks
        query.batch(number, 10)
    progress.look(query)
    query.batch(3, 0, "2024-05-01T12:00:13.000Z")  # idle
    progress.look(query)
    assert [json.loads(each)["batch"] for each in out.getvalue().splitlines()] == [0, 1, 2, 3, 3]
    assert len(caplog.messages) == 1
    now += 1
    query.batch(4, 1)
    progress.look(query)
    assert "batch 4, 31 messages" in caplog.messages[1]
    assert progress.messages == 36


def test_the_last_line_is_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    query = FakeQuery()
    progress = Progress(None, lambda: 100.0)
    for number in (0, 1):
        query.batch(number, 1)
        progress.look(query)
    progress.end()
    assert ["batch 0, 1 messages" in caplog.messages[0], "batch 1, 1 messages" in caplog.messages[1]] == [
        True
    ] * 2


def test_a_file_that_cannot_be_written_is_named() -> None:
    with pytest.raises(StartError, match="--progress-json: '/nowhere/at/all'"):
        open_json("/nowhere/at/all")
