"""`archive`: writes every message of the topics once, to a table, or to files by topic, date and hour."""

from __future__ import annotations

from pyspark.sql import SparkSession

from ..flags.subcommands import Archive
from ..output.file_output import FileOutput
from ..output.layout import ORDER, PARTITIONS, by_hour, columns
from ..output.table_output import open_table, partitioned
from ..running.queries import StopSignal, read_stream, run_query


def run(spark: SparkSession, options: Archive, stop: StopSignal) -> int:
    """Run the query until it ends; how many messages it has read. Raises StartError and QueryFailed."""
    in_files = columns(options.value_type)
    messages = read_stream(spark, options, f"{in_files}, topic STRING")
    if options.is_table:
        table = open_table(options)
        writer = partitioned(messages, options).writeStream.foreachBatch(table.write)
        return run_query(writer, options, "archive", stop)
    rows = by_hour(messages)
    if not options.exact_files:
        writer = rows.writeStream.format(options.format).partitionBy(*PARTITIONS)
        writer = writer.options(**options.format_opt).option("path", options.output)
        return run_query(writer, options, "archive", stop)
    with FileOutput(options, options.checkpoint, in_files, PARTITIONS, ORDER, stop) as output:
        count = run_query(rows.writeStream.foreachBatch(output.write), options, "archive", stop)
        if options.available_now:
            output.merge_all(spark)
        return count
