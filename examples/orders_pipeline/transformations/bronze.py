"""Bronze: the topic as it is, every message once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession


@dp.table(comment="What was published to the topic orders")
def orders_bronze() -> DataFrame:
    spark = SparkSession.active()
    return (
        spark.readStream.format("nsq")
        .option("nsqd.http.addresses", spark.conf.get("nsquark.nsqd.http.addresses"))
        .option("subscribe", "orders")
        .option("channel", "orders_pipeline")
        .option("startingOffsets", "earliest")
        .schema("id STRING, timestamp TIMESTAMP, value STRING")
        .load()
    )
