from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import SparkSession

from nsquark.spark import use_session
from tests.spark.broker import Broker

pytestmark = pytest.mark.xdist_group("spark")


def test_a_thread_with_a_session_may_write(spark: SparkSession, broker: Broker) -> None:
    rows = spark.sql("SELECT 'written' AS value")

    def write() -> None:
        use_session(spark)
        writer = rows.write.format("nsq").option("nsqd.http.addresses", broker.http_address)
        writer.option("topic", "out").mode("append").save()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result()
    (message,) = broker.ask("GET", "/topic/peek?topic=out&from=0&limit=10")["messages"]
    assert message["body"] == "written"
