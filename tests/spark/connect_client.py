"""A client of Spark Connect: reads a topic as a table and as a stream, and writes to a topic.

    python connect_client.py NSQD_HTTP_ADDRESS FOLDER

starts a Connect server of its own, and prints how many rows the table and the stream have.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from pyspark.sql import SparkSession

from tests.spark.interpreter import interpreter
from tests.spark.session import QUICK_START


def main(address: str, folder: Path) -> None:
    warnings.simplefilter("ignore")  # the client cannot change settings of the server, and says so
    os.environ["PYSPARK_PYTHON"] = interpreter()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.remote("local[2]").config("spark.driver.extraJavaOptions", QUICK_START)
    spark = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1").getOrCreate()
    nsqd = {"nsqd.http.addresses": address}
    table = spark.read.format("nsq").options(**nsqd, subscribe="t").load()
    row = spark.createDataFrame([("written",)], "value STRING")
    row.write.format("nsq").options(**nsqd, topic="out").mode("append").save()
    source = spark.readStream.format("nsq").options(**nsqd, subscribe="t", channel="c")
    stream = source.option("startingOffsets", "earliest").load().select("value")
    writer = stream.writeStream.format("parquet").option("path", f"{folder}/out")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    for _ in range(3):  # on a busy machine Spark may give up waiting for its own processes
        try:
            writer.start().awaitTermination()
            break
        except Exception as error:
            print(error, file=sys.stderr)
    print(table.count(), spark.read.parquet(f"{folder}/out").count(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
