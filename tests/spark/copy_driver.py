"""A program with a streaming query: topic `t` into topic `out`, exactly once. Tests kill it at any time.

    python copy_driver.py ADDRESSES FOLDER run       until it is killed; single tasks die at random
    python copy_driver.py ADDRESSES FOLDER finish    all messages; then writes the rows to FOLDER/values

Reads from the first of the nsqds (HTTP addresses, separated by commas) and writes to all of them.
Prints `batch N` when batch N has ended.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from pyspark.sql.functions import udf

from tests.spark.driver import Speaker
from tests.spark.session import new_session


def perilous(value: bytes) -> bytes:
    """Sometimes the process ends in the midst of its rows, and the task is tried again."""
    if random.random() < 0.001:
        os._exit(1)
    return value


def main(addresses: str, folder: Path, what: str) -> None:
    spark = new_session("driver", "local[2,8]", folder / "spark")
    spark.streams.addListener(Speaker())
    source = {
        "nsqd.http.addresses": addresses.partition(",")[0],
        "subscribe": "t",
        "channel": "copy",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "400" if what == "run" else "20000",
        "minPartitions": "3",
        "fetchBytes": "4096",
    }
    rows = spark.readStream.format("nsq").options(**source).load().select("value")
    if what == "run":
        rows = rows.select(udf(perilous, "BINARY")("value").alias("value"))
    sink = {
        "nsqd.http.addresses": addresses,
        "topic": "out",
        "deliveryMode": "exactlyOnce",
        "bodyBytes": "500",
        "checkpointLocation": str(folder / "checkpoint"),
    }
    writer = rows.writeStream.format("nsq").options(**sink)
    if what == "run":
        writer.start().awaitTermination()
    writer.trigger(availableNow=True).start().awaitTermination()
    out = spark.read.format("nsq").option("nsqd.http.addresses", addresses).option("subscribe", "out").load()
    lines = [f"{bytes(row['value']).decode()} {row['id']}\n" for row in out.collect()]
    (folder / "values").write_text("".join(lines))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
