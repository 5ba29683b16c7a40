"""`sql`: a query over topics, to a topic, to files or to the terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from nsquark.flags import StartError

from . import delivery, statements
from .bodies import schemas, view
from .exact_files import ExactFiles
from .failures import one_line
from .options import stream_options
from .running import Stop, run_query
from .subcommands import Sql

_MESSAGE = {"value", "topic", "defer"}
_SHOWN = 1000


def run(spark: SparkSession, options: Sql, stop: Stop) -> int:
    """Until the end; how many messages were read. Raises StartError and QueryFailed."""
    for topic, schema in schemas(spark, options).items():
        given = {**stream_options(options), "subscribe": topic}
        columns = "value STRING, topic STRING, nsqd STRING, offset BIGINT, timestamp TIMESTAMP, id STRING"
        rows = view(spark.readStream.format("nsq").options(**given).schema(columns).load(), schema)
        if options.watermark:
            rows = rows.withWatermark("_timestamp", f"{options.watermark * 1000:.0f} milliseconds")
        rows.createOrReplaceTempView(f"`{topic}`")
    result = _result(spark, options)
    files: ExactFiles | None = None
    write: Callable[[DataFrame, int], Any] = _show
    if options.publish:
        result = as_messages(result)
        write = delivery.publisher(delivery.choose(options), delivery.app_of(Path(options.checkpoint)))
    elif options.output:
        files = ExactFiles(
            Path(options.output), Path(options.checkpoint), options.format, (), options.format_opt
        )
        files.open()
        write = files.write

    def write_batch(batch_rows: DataFrame, batch: int) -> None:
        write(batch_rows, batch)

    try:
        writer = result.writeStream.outputMode(options.output_mode).foreachBatch(write_batch)
        return run_query(writer, options, "sql", stop)
    finally:
        if files is not None:
            files.close()


def _result(spark: SparkSession, options: Sql) -> DataFrame:
    """Of the last statement; those before it prepare. Raises StartError."""
    try:
        text = Path(options.file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise StartError(f"--file: {options.file!r}: {error}") from None
    found = statements.split(text)
    if not found:
        raise StartError(f"--file: {options.file!r} has no statement")
    try:
        for statement in found[:-1]:
            spark.sql(statement)
        result = spark.sql(found[-1])
    except Exception as error:  # Spark's, of several kinds
        raise StartError(f"--file: {options.file!r}: {one_line(error)}") from None
    if not result.isStreaming:
        raise StartError(f"--file: {options.file!r}: the last statement is no query over a topic")
    return result


def as_messages(result: DataFrame) -> DataFrame:
    """Rows that are messages as they are; others as JSON."""
    if "value" in result.columns and set(result.columns) <= _MESSAGE:
        return result
    return result.select(f.to_json(f.struct("*")).alias("value"))


def _show(rows: DataFrame, batch: int) -> None:
    shown = rows.limit(_SHOWN).collect()
    if shown:
        print(f"batch {batch}", flush=True)
        rows.sparkSession.createDataFrame(shown, rows.schema).show(_SHOWN, truncate=False)
