"""`rollup`: counts, rates and latencies of each topic and window, to files and to a topic."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from nsquark.spark.source.options import parse_stream_options

from ..flags.options import stream_options
from ..flags.subcommands import Rollup
from ..output import delivery
from ..output.file_output import FileOutput
from ..running.queries import StopSignal, read_stream, run_query
from ..topics.retries import CounterWatcher

_ACCURACY: Final = 1000  # of percentiles: a thousandth of the rank


def run(spark: SparkSession, options: Rollup, stop: StopSignal) -> int:
    """Run the query until it ends; how many messages it has read. Raises StartError and QueryFailed."""
    columns = schema(options.percentile)
    kept = options.window + options.watermark + 3600.0
    source = parse_stream_options(stream_options(options))
    outputs: list[Callable[[DataFrame, int], None]] = []
    with contextlib.ExitStack() as stack:
        if options.publish:
            outputs.append(_publisher(options))
        if options.output:
            where = (options.checkpoint, columns, ("date",), ("window_start", "topic"))
            files = stack.enter_context(FileOutput(options, *where, stop))
            outputs.append(lambda rows, batch: files.write(_by_date(rows), batch))
        watcher = stack.enter_context(CounterWatcher(source, options.stats_interval, kept, time.time))

        def write(windows: DataFrame, batch: int) -> None:
            rows = [(*row, _share(watcher, options, row)) for row in windows.collect()]
            whole = windows.sparkSession.createDataFrame(rows, columns).coalesce(1)
            for output in outputs:
                output(whole, batch)

        rows = read_stream(spark, options, "value BINARY, topic STRING, timestamp TIMESTAMP")
        writer = roll_up(rows, options).writeStream.foreachBatch(write)
        messages = run_query(writer, options, "rollup", stop)
        if options.output and options.available_now:
            files.merge_all(spark)
        return messages


def _publisher(options: Rollup) -> Callable[[DataFrame, int], None]:
    publish = delivery.publisher(delivery.choose(options), delivery.load_app_name(Path(options.checkpoint)))
    return lambda rows, batch: publish(rows.select(f.to_json(f.struct("*")).alias("value")), batch)


def _by_date(rows: DataFrame) -> DataFrame:
    return rows.withColumn("date", f.date_format("window_start", "yyyy-MM-dd"))


def roll_up(rows: DataFrame, options: Rollup) -> DataFrame:
    """One row for each topic and window, when the window is over and the time for late messages, too."""
    window = f.window("timestamp", f"{options.window * 1000:.0f} milliseconds")
    measured = rows.select("topic", "timestamp", f.length("value").alias("size"), _latency_ms())
    grouped = (
        measured.withWatermark("timestamp", f"{options.watermark * 1000:.0f} milliseconds")
        .groupBy(window.alias("window"), "topic")
        .agg(
            f.count("*").alias("messages"),
            f.sum("size").cast("bigint").alias("bytes"),
            f.percentile_approx("latency", list(options.percentile), _ACCURACY).alias("latencies"),
        )
    )
    percentiles = [
        f.col("latencies")[number].cast("double").alias(name)
        for number, name in enumerate(_names(options.percentile))
    ]
    return grouped.select(
        f.col("window.start").alias("window_start"),
        f.col("window.end").alias("window_end"),
        "topic",
        "messages",
        "bytes",
        (f.col("messages") / options.window).alias("rate"),
        *percentiles,
    )


def _latency_ms() -> Column:
    """The time from nsqd's timestamp to now, by the JVM's clock: Spark's own time is that of the batch."""
    now = f.java_method(f.lit("java.lang.System"), f.lit("currentTimeMillis")).cast("bigint")
    return f.greatest(now - f.unix_millis("timestamp"), f.lit(0)).alias("latency")


def schema(percentiles: list[float]) -> StructType:
    """The schema of the rows."""
    return StructType(
        [
            StructField("window_start", TimestampType()),
            StructField("window_end", TimestampType()),
            StructField("topic", StringType()),
            StructField("messages", LongType()),
            StructField("bytes", LongType()),
            StructField("rate", DoubleType()),
            *(StructField(name, DoubleType()) for name in _names(percentiles)),
            StructField("retry_share", DoubleType()),
        ]
    )


def _names(percentiles: list[float]) -> list[str]:
    return [f"latency_ms_p{100 * each:g}".replace(".", "_") for each in percentiles]


def _share(watcher: CounterWatcher, options: Rollup, row: Any) -> float | None:
    end = row["window_end"].timestamp()
    return watcher.history.share(row["topic"], end - options.window, end, watcher.tolerance)
