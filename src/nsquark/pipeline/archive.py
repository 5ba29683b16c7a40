"""`archive`: topics into files by topic, date and hour, each message once."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from .compaction import Compactor
from .exact_files import ExactFiles
from .running import Stop, read_stream, run_query
from .subcommands import TEXT, Archive

PARTITIONS: Final = ("topic", "date", "hour")
_ORDER: Final = ("nsqd", "offset")


def run(spark: SparkSession, options: Archive, stop: Stop) -> int:
    """Until the end; how many messages were read. Raises StartError and QueryFailed."""
    rows = _by_hour(read_stream(spark, options, f"{_columns(options)}, topic STRING"))
    if not options.exact_files:
        writer = rows.writeStream.format(options.format).partitionBy(*PARTITIONS)
        writer = writer.options(**options.format_opt).option("path", options.output)
        return run_query(writer, options, "archive", stop)
    files = ExactFiles(
        Path(options.output), Path(options.checkpoint), options.format, PARTITIONS, options.format_opt
    )
    files.open()
    try:
        compactor = _compactor(options, files)

        def write(batch_rows: DataFrame, batch: int) -> None:
            touched = files.write(batch_rows, batch)
            if compactor is not None and not stop:
                compactor.run(batch_rows.sparkSession, touched, datetime.now(UTC))

        messages = run_query(rows.writeStream.foreachBatch(write), options, "archive", stop)
        if compactor is not None and options.available_now:
            while not stop and compactor.run(spark, (), datetime.now(UTC)):
                pass
        return messages
    finally:
        files.close()


def _columns(options: Archive) -> str:
    """What is in a file; the rest is in its path."""
    value = "STRING" if options.value_type == TEXT else "BINARY"
    return f"value {value}, nsqd STRING, offset BIGINT, timestamp TIMESTAMP, id STRING"


def _by_hour(rows: DataFrame) -> DataFrame:
    return rows.withColumns(
        {"date": f.date_format("timestamp", "yyyy-MM-dd"), "hour": f.date_format("timestamp", "HH")}
    )


def _compactor(options: Archive, files: ExactFiles) -> Compactor | None:
    if not options.compact:
        return None
    compactor = Compactor(
        files, _columns(options), list(_ORDER), options.compact_min_files, options.compact_file_size
    )
    return compactor if compactor.open() else None
