"""A program for spark-submit: a topic into Parquet files, the same topic as a table, and a row into a topic.

    spark-submit submitted.py NSQD_HTTP_ADDRESS FOLDER

Writes the messages that it has seen to FOLDER/values. Imports nothing of nsquark.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(address: str, folder: Path) -> None:
    spark = SparkSession.builder.getOrCreate()
    options = {"nsqd.http.addresses": address, "subscribe": "t", "minPartitions": "2"}
    stream = spark.readStream.format("nsq").options(**options, channel="submitted")
    writer = stream.option("startingOffsets", "earliest").load().writeStream.format("parquet")
    writer = writer.option("path", f"{folder}/out").option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    streamed = spark.read.parquet(f"{folder}/out").selectExpr("CAST(value AS STRING)").collect()
    table = spark.read.format("nsq").options(**options).schema("value STRING").load().collect()
    row = spark.createDataFrame([("written",)], "value STRING")
    sink = row.write.format("nsq").option("nsqd.http.addresses", address).option("topic", "out")
    sink.mode("append").save()
    assert sorted(streamed) == sorted(table)
    folder.joinpath("values").write_text("".join(f"{row['value']}\n" for row in streamed))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
