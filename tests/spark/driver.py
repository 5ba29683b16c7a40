"""A program with a streaming query: a topic into Parquet files. Tests kill it at any time.

    python driver.py NSQD_HTTP_ADDRESS FOLDER run       until it is killed
    python driver.py NSQD_HTTP_ADDRESS FOLDER finish    all messages; then writes the rows to FOLDER/values

Prints `batch N` when batch N has ended.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tests.spark.session import new_session


class Speaker(StreamingQueryListener):
    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        print("batch", event.progress.batchId, flush=True)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


def main(address: str, folder: Path, what: str) -> None:
    master = os.environ.get("NSQUARK_SPARK_MASTER", "local[2]")
    spark = new_session("driver", master, folder / "spark", spark__executor__memory="512m")
    spark.streams.addListener(Speaker())
    options = {
        "nsqd.http.addresses": address,
        "subscribe": "t",
        "channel": "archive",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "400" if what == "run" else "20000",
        "minPartitions": "2",
        "fetchBytes": "4096",
    }
    writer = spark.readStream.format("nsq").options(**options).load().writeStream.format("parquet")
    writer = writer.option("path", str(folder / "out"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    if what == "run":
        writer.start().awaitTermination()
    writer.trigger(availableNow=True).start().awaitTermination()
    rows = spark.read.parquet(str(folder / "out")).select("value", "id").collect()
    lines = [f"{bytes(row['value']).decode()} {row['id']}\n" for row in rows]
    (folder / "values").write_text("".join(lines))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
