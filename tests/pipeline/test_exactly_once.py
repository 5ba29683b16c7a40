"""Exactly once in plain files, whatever is killed, for a reader that knows nothing of Spark.

`archive` runs while messages are published; it is killed at random moments, sometimes with all its processes
and sometimes alone, and so is nsqd. A reader that lists the files at any time sees no message twice.
NSQUARK_SPARK_ROUNDS says how often.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from tests.pipeline.command import Command, rows_of, wait_until_gone
from tests.spark.broker import Broker
from tests.spark.test_exactly_once import Publisher

ROUNDS = int(os.environ.get("NSQUARK_SPARK_ROUNDS", "2"))


def archive(broker: Broker, folder: Path, *flags: str, under: Sequence[str] = ()) -> Command:
    return Command(
        "archive",
        f"--nsqd-http-address={broker.http_address}",
        "--topic=t",
        f"--output={folder / 'out'}",
        "--compact-min-files=3",
        "--min-partitions=2",
        *flags,
        under=under,
    )


def started(broker: Broker, folder: Path) -> Command:
    """One that has done a batch. On a busy machine Spark may give up waiting for its own processes."""
    for _ in range(3):
        command = archive(
            broker, folder, "--trigger=0s", "--max-offsets-per-trigger=400", "--progress-json=-"
        )
        if command.wait_for_line():
            return command
        with command:
            pass
    raise AssertionError(command.stderr)


def numbers(folder: Path) -> Counter[int]:
    """The rows that a reader sees now. It lists again if a file was merged between listing and reading."""
    while True:
        try:
            return Counter(int(row["value"]) for row in rows_of(folder / "out"))
        except (FileNotFoundError, pa.ArrowInvalid):
            continue


@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_every_message_is_in_the_plain_files_exactly_once(broker: Broker, tmp_path: Path) -> None:
    broker.ask("POST", "/topic/create?topic=t")
    broker.ask("POST", "/channel/create?topic=t&channel=nsq_to_spark_archive")
    publisher = Publisher(broker)
    publisher.start()
    try:
        for number in range(ROUNDS):
            with started(broker, tmp_path) as command:
                if number % 2 == 0:
                    broker.kill()
                    broker.restart()
                command.wait_for_line(random.randint(1, 4))
                time.sleep(random.random() * 0.5)  # somewhere in a batch
                assert max(numbers(tmp_path).values()) == 1
                if number % 2:
                    command.process.send_signal(signal.SIGKILL)  # the JVM is left to find out by itself
                    command.process.wait()
                    assert max(numbers(tmp_path).values()) == 1
            assert max(numbers(tmp_path).values()) == 1
    finally:
        publisher.stop()
    for _ in range(3):
        with archive(broker, tmp_path, "--trigger=once") as command:
            if command.wait() == 0:
                break
    else:
        raise AssertionError(command.stderr)
    rows = numbers(tmp_path)
    assert len(publisher.answered) > 500
    assert [each for each in publisher.answered if rows[each] != 1] == []
    assert max(rows.values()) == 1
    assert rows.keys() <= set(publisher.answered) | set(publisher.unanswered)
    assert broker.depth("t", "nsq_to_spark_archive") == 0
    merged = list((tmp_path / "out").rglob("merged-*"))
    assert merged, "nothing was merged, so nothing was shown about that"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("how", ["SIGINT", "timeout", "systemd"])
def test_a_signal_ends_it_well(broker: Broker, tmp_path: Path, how: str) -> None:
    """`timeout` sends SIGTERM to the process group, and systemd to all processes of the service."""
    broker.publish("t", [b"%d" % number for number in range(1000)])
    flags = ("--trigger=200ms", "--max-offsets-per-trigger=100", "--progress-json=-")
    under = ("timeout", "3600") if how == "timeout" else ()
    with archive(broker, tmp_path, *flags, under=under) as command:
        assert command.wait_for_line(2)
        family = command.family()
        if how == "systemd":
            assert command.end_all(signal.SIGTERM) == 0, command.stderr
        else:
            signum = signal.SIGINT if how == "SIGINT" else signal.SIGTERM
            assert command.end(signum) == 0, command.stderr
        lines = [line for line in command.stderr.splitlines() if not line.startswith("[nsq_to_spark] ")]
        assert lines == []  # nothing of Spark's, and no traceback
        assert command.stderr.rstrip().endswith("INFO: stopped")
        wait_until_gone(family)
    (channel,) = broker.ask("GET", "/channel/reports")["channels"]
    assert [report["query_name"] for report in channel["reports"]][-2:] == ["archive", "archive"]
    states = [report["state"] for report in channel["reports"]][-2:]
    # systemd ends Spark's Python workers, too, so that the batch under way may fail.
    assert states == ["running", "ended"] or (how == "systemd" and states[-1] == "failed"), states
    seen = numbers(tmp_path)
    assert max(seen.values()) == 1
    assert seen.keys() == set(range(len(seen)))


@pytest.mark.timeout(180)
def test_a_replay_that_is_killed_goes_on_where_it_was(broker: Broker, tmp_path: Path) -> None:
    broker.publish("t", [b"%d" % number for number in range(1000)])
    where = (f"--nsqd-http-address={broker.http_address}", f"--checkpoint={tmp_path / 'checkpoint'}")
    with Command(
        "replay", *where, "--topic=t", "--publish=back", "--rate=250", "--progress-json=-"
    ) as command:
        assert command.wait_for_line(), command.stderr
        time.sleep(random.random())  # somewhere in the four seconds that it takes
    assert 0 < broker.log("back")["next"] < 1000
    with Command("replay", *where, "--topic=t", "--publish=back") as command:
        assert command.wait() == 0, command.stderr
    messages = broker.ask("GET", "/topic/peek?topic=back&from=0&limit=1000")["messages"]
    assert [int(message["body"]) for message in messages] == list(range(1000))
