"""`sql`: runs a SQL query over topics, and sends the result to a topic, to files or to the terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from nsquark.cli.flags import StartError

from ..flags.options import stream_options
from ..flags.subcommands import Sql
from ..output import delivery
from ..output.exact_files import ExactFiles
from ..running.failures import one_line
from ..running.queries import StopSignal, run_query
from ..topics.bodies import find_schemas, view
from . import statements

_SINK_COLUMNS = {"value", "topic", "defer"}
_MAX_SHOWN = 1000


def run(spark: SparkSession, options: Sql, stop: StopSignal) -> int:
    """Run the query until it ends; how many messages it has read. Raises StartError and QueryFailed."""
    for topic, schema in find_schemas(spark, options).items():
        given = {**stream_options(options), "subscribe": topic}
        columns = "value STRING, topic STRING, nsqd STRING, offset BIGINT, timestamp TIMESTAMP, id STRING"
        rows = view(spark.readStream.format("nsq").options(**given).schema(columns).load(), schema)
        if options.watermark:
            rows = rows.withWatermark("_timestamp", f"{options.watermark * 1000:.0f} milliseconds")
        rows.createOrReplaceTempView(f"`{topic}`")
    result = _run_statements(spark, options)
    files: ExactFiles | None = None
    write: Callable[[DataFrame, int], Any] = _show
    if options.publish:
        result = as_messages(result)
        write = delivery.publisher(delivery.choose(options), delivery.load_app_name(Path(options.checkpoint)))
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


def _run_statements(spark: SparkSession, options: Sql) -> DataFrame:
    """The result of the last statement, after the statements before it. Raises StartError."""
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
    except Exception as error:  # Spark raises errors of several types
        raise StartError(f"--file: {options.file!r}: {one_line(error)}") from None
    if not result.isStreaming:
        raise StartError(f"--file: {options.file!r}: the last statement is no query over a topic")
    return result


def as_messages(result: DataFrame) -> DataFrame:
    """Rows that have only columns of a sink stay as they are; other rows become JSON."""
    if "value" in result.columns and set(result.columns) <= _SINK_COLUMNS:
        return result
    return result.select(f.to_json(f.struct("*")).alias("value"))


def _show(rows: DataFrame, batch: int) -> None:
    shown = rows.limit(_MAX_SHOWN).collect()
    if shown:
        print(f"batch {batch}", flush=True)
        rows.sparkSession.createDataFrame(shown, rows.schema).show(_MAX_SHOWN, truncate=False)
