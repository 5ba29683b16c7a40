"""`replay`: an archive, or a range of a log, back into a topic."""

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

from . import delivery
from .exact_files import spark_path
from .failures import one_line
from .options import local_path, reading_options
from .pacing import pace_of
from .progress import open_json
from .replaying import ExactOutlet, Message, Outlet, PlainOutlet, Replaying, State
from .running import Interrupted, QueryFailed, Stop
from .subcommands import Replay

logger = logging.getLogger(__name__)

_ORDER: Final = ("timestamp", "topic", "nsqd", "offset")
_PIECE_ROWS: Final = 100_000
_BETWEEN_LINES: Final = 1.0


def run(spark: SparkSession, options: Replay, stop: Stop) -> int:
    """Until the end; how many messages have gone out, in this run and those before it."""
    sink = delivery.choose(options)
    parsed = parse_sink_options(sink, delivery.MESSAGES)
    checkpoint = Path(options.checkpoint) if options.checkpoint else None
    state = State.load(checkpoint) if checkpoint is not None else State(delivery.new_app())
    outlet: Outlet = ExactOutlet(parsed, state.app) if delivery.is_exact(sink) else PlainOutlet(parsed)
    telling = _Telling(options.progress_json, state.messages)
    pace = pace_of(options.rate, options.speed)
    try:
        with stop.at_once():  # what went out without being noted is known at the next start
            rows = _in_order(_after(_rows(spark, options), state.last))
            Replaying(outlet, pace, state, checkpoint, _waiting(stop)).run(
                _messages(rows, stop), telling.tell
            )
    except Interrupted:
        pass
    except NsquarkError:
        raise
    except Exception as error:  # whatever comes out of Py4J and Spark
        raise QueryFailed(one_line(error)) from None
    finally:
        telling.end(state)
    return state.messages


def _waiting(stop: Stop) -> Any:
    return lambda seconds: stop.wait(seconds) if seconds else bool(stop)


def _rows(spark: SparkSession, options: Replay) -> DataFrame:
    columns = ("value", *_ORDER)
    if not options.archive:
        given = reading_options(options)
        if options.ending_offsets:
            given["endingOffsets"] = options.ending_offsets
        if options.ending_timestamp:
            given["endingTimestamp"] = str(options.ending_timestamp)
        return spark.read.format("nsq").options(**given).load().select(*columns)
    # A topic named 123 is no number.
    spark.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    rows = spark.read.format(options.format).load(spark_path(local_path("archive", options.archive)))
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


def _at(ms: int) -> Any:
    return f.timestamp_millis(f.lit(ms))


def _after(rows: DataFrame, last: list[Any] | None) -> DataFrame:
    """What follows the last message that has gone out."""
    if last is None:
        return rows
    time_of = datetime.fromisoformat(last[0]).astimezone(UTC)
    micros = round(time_of.timestamp() * 1_000_000)
    there = (f.timestamp_micros(f.lit(micros)), f.lit(last[1]), f.lit(last[2]), f.lit(last[3]).cast("bigint"))
    here = f.struct(*_ORDER)
    named = f.struct(*(value.alias(name) for name, value in zip(_ORDER, there, strict=True)))
    return rows.where(here > named)


def _in_order(rows: DataFrame) -> DataFrame:
    """Sorted in pieces, one after the other of which comes to this process."""
    kept = rows.persist(StorageLevel.DISK_ONLY)  # for counting, sampling and sorting they are read once
    pieces = kept.count() // _PIECE_ROWS + 1
    return kept.repartitionByRange(pieces, *_ORDER).sortWithinPartitions(*_ORDER)


def _messages(rows: DataFrame, stop: Stop) -> Iterator[Message]:
    for row in rows.toLocalIterator(prefetchPartitions=True):
        if stop:
            return
        moment = row["timestamp"].astimezone(UTC)
        yield Message(moment, row["topic"], row["nsqd"], row["offset"], bytes(row["value"]))


class _Telling:
    """A line now and then, and JSON if that is wanted."""

    def __init__(self, path: str, messages: int) -> None:
        self._out = open_json(path)
        self._messages = messages  # at the last line
        self._told = time.monotonic()

    def tell(self, state: State) -> None:
        if time.monotonic() - self._told >= _BETWEEN_LINES:
            self._say(state)

    def end(self, state: State) -> None:
        self._say(state)
        if self._out is not None and self._out is not sys.stdout:
            self._out.close()

    def _say(self, state: State) -> None:
        now = time.monotonic()
        rate = (state.messages - self._messages) / max(0.001, now - self._told)
        self._told, self._messages = now, state.messages
        at = state.last[0] if state.last else "the beginning"
        logger.info("replay: %d messages, %.0f/s, at %s", state.messages, rate, at)
        if self._out is not None:
            told = {"query": "replay", "messages": state.messages, "per_second": round(rate, 1), "at": at}
            self._out.write(json.dumps(told) + "\n")
            self._out.flush()
