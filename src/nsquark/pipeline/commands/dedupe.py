"""`dedupe`: passes on the first of several messages with the same key."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ..flags.subcommands import Dedupe
from ..output import delivery
from ..output.file_output import FileOutput
from ..output.layout import ORDER, PARTITIONS, by_hour, columns
from ..running.queries import StopSignal, read_stream, run_query


def run(spark: SparkSession, options: Dedupe, stop: StopSignal) -> int:
    """Run the query until it ends; how many messages it has read. Raises StartError and QueryFailed."""
    rows = distinct(read_stream(spark, options, f"{columns()}, topic STRING"), options)
    if options.publish:
        publish = delivery.publisher(
            delivery.choose(options), delivery.load_app_name(Path(options.checkpoint))
        )
        return run_query(rows.select("value").writeStream.foreachBatch(publish), options, "dedupe", stop)
    with FileOutput(options, options.checkpoint, columns(), PARTITIONS, ORDER, stop) as output:
        messages = run_query(by_hour(rows).writeStream.foreachBatch(output.write), options, "dedupe", stop)
        if options.available_now:
            output.merge_all(spark)
        return messages


def distinct(rows: DataFrame, options: Dedupe) -> DataFrame:
    """The first message of each topic and key, within the time of --within."""
    return (
        rows.withColumn("_key", key(options.by))
        .withWatermark("timestamp", f"{options.within * 1000:.0f} milliseconds")
        .dropDuplicatesWithinWatermark(["topic", "_key"])
        .drop("_key")
    )


def key(by: str) -> Column:
    """The key of a message. A message without the JSON field has a key of its own: it is no duplicate."""
    if by == "id":
        return f.col("id")
    if by == "body":
        return f.sha2("value", 256)
    found = f.get_json_object(f.col("value").cast("string"), by)
    return f.coalesce(f.concat(f.lit("json:"), found), f.concat(f.lit("id:"), "id"))
