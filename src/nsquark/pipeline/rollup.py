"""`rollup`: what a topic did in each window of time, to files and to a topic."""

from __future__ import annotations

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

from nsquark.spark.options import parse_stream_options

from . import delivery
from .exact_files import ExactFiles
from .options import stream_options
from .retries import Watcher
from .running import Stop, read_stream, run_query
from .subcommands import Rollup

_ACCURACY: Final = 1000  # of percentiles: a thousandth of the rank


def run(spark: SparkSession, options: Rollup, stop: Stop) -> int:
    """Until the end; how many messages were read. Raises StartError and QueryFailed."""
    checkpoint = Path(options.checkpoint)
    outputs: list[Callable[[DataFrame, int], Any]] = []
    files: ExactFiles | None = None
    if options.publish:
        publish = delivery.publisher(delivery.choose(options), delivery.app_of(checkpoint))
        outputs.append(
            lambda rows, batch: publish(rows.select(f.to_json(f.struct("*")).alias("value")), batch)
        )
    if options.output:
        files = ExactFiles(Path(options.output), checkpoint, options.format, (), options.format_opt)
        files.open()
        outputs.append(files.write)
    kept = options.window + options.watermark + 3600.0
    source = parse_stream_options(stream_options(options))
    try:
        with Watcher(source, options.stats_interval, kept, time.time) as watcher:

            def write(windows: DataFrame, batch: int) -> None:
                rows = [(*row, _share(watcher, options, row)) for row in windows.collect()]
                whole = windows.sparkSession.createDataFrame(rows, schema(options.percentile))
                for output in outputs:
                    output(whole.coalesce(1), batch)

            windows = roll_up(
                read_stream(spark, options, "value BINARY, topic STRING, timestamp TIMESTAMP"), options
            )
            return run_query(windows.writeStream.foreachBatch(write), options, "rollup", stop)
    finally:
        if files is not None:
            files.close()


def roll_up(rows: DataFrame, options: Rollup) -> DataFrame:
    """A row a topic and window, once the window is over and late messages have come."""
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
    """From when nsqd accepted a message to when it is read. Spark's own clock stands still in a batch."""
    now = f.java_method(f.lit("java.lang.System"), f.lit("currentTimeMillis")).cast("bigint")
    return f.greatest(now - f.unix_millis("timestamp"), f.lit(0)).alias("latency")


def schema(percentiles: list[float]) -> StructType:
    """Of what comes out."""
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


def _share(watcher: Watcher, options: Rollup, row: Any) -> float | None:
    end = row["window_end"].timestamp()
    return watcher.watched.share(row["topic"], end - options.window, end, watcher.slack)
