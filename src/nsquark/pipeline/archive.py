"""`archive`: topics into files by topic, date and hour, each message once."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from .compaction import Compactor
from .exact_files import ExactFiles
from .layout import ORDER, PARTITIONS, by_hour, columns
from .running import Stop, read_stream, run_query
from .subcommands import Archive


def run(spark: SparkSession, options: Archive, stop: Stop) -> int:
    """Until the end; how many messages were read. Raises StartError and QueryFailed."""
    in_files = columns(options.value_type)
    rows = by_hour(read_stream(spark, options, f"{in_files}, topic STRING"))
    if not options.exact_files:
        writer = rows.writeStream.format(options.format).partitionBy(*PARTITIONS)
        writer = writer.options(**options.format_opt).option("path", options.output)
        return run_query(writer, options, "archive", stop)
    files = ExactFiles(
        Path(options.output), Path(options.checkpoint), options.format, PARTITIONS, options.format_opt
    )
    files.open()
    try:
        compactor: Compactor | None = None
        if options.compact:
            compactor = Compactor(
                files, in_files, ORDER, options.compact_min_files, options.compact_file_size
            )
            if not compactor.open():
                compactor = None

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
