"""`replay`: publishes an archive, or a range of a log, to a topic again."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from nsquark.errors import NsquarkError
from nsquark.spark.sink.options import parse_sink_options

from ..flags.options import local_path
from ..flags.subcommands import Replay, range_options
from ..flags.table_flags import PARQUET
from ..output import delivery
from ..output.exact_files import spark_path
from ..output.table_output import archived_files
from ..replaying.pacing import choose_pace
from ..replaying.slices import (
    AtLeastOncePublisher,
    ExactlyOncePublisher,
    Message,
    Replayer,
    ReplayState,
    SlicePublisher,
)
from ..running.failures import one_line
from ..running.progress import open_json
from ..running.queries import Interrupted, QueryFailed, StopSignal

logger = logging.getLogger(__name__)

_ORDER: Final = ("timestamp", "topic", "nsqd", "offset")
_PIECE_ROWS: Final = 100_000
_BETWEEN_LINES: Final = 1.0


def run(spark: SparkSession, options: Replay, stop: StopSignal) -> int:
    """Run the replay until it ends; how many messages it has published, in this run and in earlier ones."""
    sink = delivery.choose(options)
    parsed = parse_sink_options(sink, delivery.MESSAGES)
    checkpoint = Path(options.checkpoint) if options.checkpoint else None
    state = ReplayState.load(checkpoint) if checkpoint is not None else ReplayState(delivery.new_app_name())
    publisher: SlicePublisher
    if delivery.is_exact(sink):
        publisher = ExactlyOncePublisher(parsed, state.app)
    else:
        publisher = AtLeastOncePublisher(parsed)
    progress = _ProgressReporter(options.progress_json, state.messages)
    pace = choose_pace(options.rate, options.speed)
    try:
        with stop.at_once():  # nsqd knows a slice that the state does not have yet
            rows = _in_order(_after(_rows(spark, options), state.last))
            Replayer(publisher, pace, state, checkpoint, _waiting(stop)).run(
                _messages(rows, stop), progress.report
            )
    except Interrupted:
        pass
    except NsquarkError:
        raise
    except Exception as error:  # Py4J and Spark raise errors of many types
        if not stop:
            raise QueryFailed(one_line(error)) from None
    finally:
        progress.end(state)
    return state.messages


def _waiting(stop: StopSignal) -> Any:
    return lambda seconds: stop.wait(seconds) if seconds else bool(stop)


def _rows(spark: SparkSession, options: Replay) -> DataFrame:
    columns = ("value", *_ORDER)
    if not options.archive:
        return spark.read.format("nsq").options(**range_options(options)).load().select(*columns)
    # Without inference, a topic named 123 stays a text.
    spark.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    rows = _archived(spark, options)
    rows = rows.select(
        rows["value"].cast("binary").alias("value"),
        rows["timestamp"].cast("timestamp").alias("timestamp"),
        rows["topic"].cast("string").alias("topic"),
        rows["nsqd"],
        rows["offset"].cast("bigint").alias("offset"),
    )
    if options.topic:
        rows = rows.where(f.col("topic").isin(options.topic))
    if options.topic_pattern:
        rows = rows.where(f.col("topic").rlike(f"^(?:{options.topic_pattern})$"))
    if options.starting_timestamp:
        rows = rows.where(f.col("timestamp") >= _at(options.starting_timestamp))
    if options.ending_timestamp:
        rows = rows.where(f.col("timestamp") < _at(options.ending_timestamp))
    return rows


def _archived(spark: SparkSession, options: Replay) -> DataFrame:
    folder = local_path("archive", options.archive)
    files = archived_files(folder, options.format)
    if files is None:
        return spark.read.format(options.format).load(spark_path(folder))
    if not files:
        raise QueryFailed(f"--archive: {options.archive!r} has no messages")
    reader = spark.read.format(PARQUET).option("basePath", spark_path(folder))
    return reader.load([spark_path(Path(each.removeprefix("file://"))) for each in files])


def _at(ms: int) -> Any:
    return f.timestamp_millis(f.lit(ms))


def _after(rows: DataFrame, last: list[Any] | None) -> DataFrame:
    """The rows behind the last message that was published."""
    if last is None:
        return rows
    time_of = datetime.fromisoformat(last[0]).astimezone(UTC)
    micros = round(time_of.timestamp() * 1_000_000)
    there = (f.timestamp_micros(f.lit(micros)), f.lit(last[1]), f.lit(last[2]), f.lit(last[3]).cast("bigint"))
    here = f.struct(*_ORDER)
    named = f.struct(*(value.alias(name) for name, value in zip(_ORDER, there, strict=True)))
    return rows.where(here > named)


def _in_order(rows: DataFrame) -> DataFrame:
    """The rows in order of time. They are sorted in pieces, which come to this process one after another."""
    kept = rows.persist(StorageLevel.DISK_ONLY)  # so that counting, sampling and sorting read the source once
    pieces = kept.count() // _PIECE_ROWS + 1
    return kept.repartitionByRange(pieces, *_ORDER).sortWithinPartitions(*_ORDER)


def _messages(rows: DataFrame, stop: StopSignal) -> Iterator[Message]:
    for row in rows.toLocalIterator(prefetchPartitions=True):
        if stop:
            return
        moment = row["timestamp"].astimezone(UTC)
        yield Message(moment, row["topic"], row["nsqd"], row["offset"], bytes(row["value"]))


class _ProgressReporter:
    """A log line at most every second, and a JSON line beside it if the flag is given."""

    def __init__(self, path: str, messages: int) -> None:
        self._out = open_json(path)
        self._messages = messages  # at the time of the last line
        self._logged = time.monotonic()

    def report(self, state: ReplayState) -> None:
        if time.monotonic() - self._logged >= _BETWEEN_LINES:
            self._log(state)

    def end(self, state: ReplayState) -> None:
        self._log(state)
        if self._out is not None and self._out is not sys.stdout:
            self._out.close()

    def _log(self, state: ReplayState) -> None:
        now = time.monotonic()
        rate = (state.messages - self._messages) / max(0.001, now - self._logged)
        self._logged, self._messages = now, state.messages
        at = state.last[0] if state.last else "the beginning"
        logger.info("replay: %d messages, %.0f/s, at %s", state.messages, rate, at)
        if self._out is not None:
            line = {"query": "replay", "messages": state.messages, "per_second": round(rate, 1), "at": at}
            self._out.write(json.dumps(line) + "\n")
            self._out.flush()
