"""An archive of the classes that Spark loads: the many JVMs of the tests start in half the time with it.

    python -m tests.spark.class_archive

makes it, by running a little of everything once. Without it, or with another Java, all works as well.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.spark.broker import Broker, numbered
from tests.spark.session import CLASSES, QUICK_JAVA, new_session


def main() -> None:
    CLASSES.unlink(missing_ok=True)
    java = f"{QUICK_JAVA} -XX:ArchiveClassesAtExit={CLASSES}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = new_session("classes", folder=folder, spark__driver__extraJavaOptions=java)
        with Broker(folder / "data").start() as broker:
            broker.publish("t", numbered(100))
            use(spark, broker, folder)
        process = SparkContext._gateway.proc
        spark.stop()
        process.stdin.close()  # the JVM ends with it, and writes the archive
        if process.wait(120):
            sys.exit("the archive of Spark's classes could not be made")


def use(spark: SparkSession, broker: Broker, folder: Path) -> None:
    nsqd = {"nsqd.http.addresses": broker.http_address}
    for sink in ("parquet", "memory"):
        options = {"subscribe": "t", "channel": sink, "startingOffsets": "earliest", **nsqd}
        stream = spark.readStream.format("nsq").options(**options).load()
        if sink == "memory":
            stream = stream.withWatermark("timestamp", "1 minute").groupBy("topic").count()
        writer = stream.writeStream.format(sink).queryName(sink).option("path", str(folder / "out"))
        writer = writer.option("checkpointLocation", str(folder / sink))
        writer = writer.outputMode("append" if sink == "parquet" else "complete")
        writer.trigger(availableNow=True).start().awaitTermination()
    rows = spark.read.parquet(str(folder / "out"))
    rows.selectExpr("value").write.format("nsq").options(topic="u", **nsqd).mode("append").save()
    rows.createOrReplaceTempView("rows")
    spark.sql("SELECT topic, window(timestamp, '1 hour'), count(*) FROM rows GROUP BY ALL").collect()


if __name__ == "__main__":
    main()
