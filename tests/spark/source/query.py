"""A streaming query without Spark: its reader, called in the order in which Spark calls it."""

from __future__ import annotations

import pickle
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from nsquark.spark.columns import SCHEMA
from nsquark.spark.source.options import parse_stream_options
from nsquark.spark.stream_reader import NsqStreamReader
from tests.spark.broker import Broker

ALL = ReadAllAvailable()
Offset = dict[str, Any]


class Query:
    """A reader, and its rows between two offsets."""

    def __init__(self, *brokers: Broker, **options: str) -> None:
        given = {
            "nsqd.http.addresses": ",".join(broker.http_address for broker in brokers),
            "subscribe": "t",
            "channel": "q",
            "startingOffsets": "earliest",
            "pollWaitMs": "0",
            "lookupd.pollIntervalMs": "1",
            "requestTimeoutMs": "2000",
            "fetchOffset.retryIntervalMs": "1",
            **options,
        }
        if "subscribePattern" in options:
            del given["subscribe"]
        if "startingTimestamp" in options:
            del given["startingOffsets"]
        self.reader = NsqStreamReader(parse_stream_options(given), SCHEMA)

    def read(self, start: Offset, end: Offset) -> list[dict[str, Any]]:
        rows = []
        for partition in self.reader.partitions(start, end):
            reader, there = pickle.loads(pickle.dumps((self.reader, partition)))
            rows += [row for batch in reader.read(there) for row in batch.to_pylist()]
        return rows

    def values(self, start: Offset, end: Offset) -> list[bytes]:
        return sorted(
            (row["value"] for row in self.read(start, end)), key=lambda value: int(value.split()[1])
        )

    def stop(self) -> None:
        self.reader.stop()


def place(offset: Offset, topic: str = "t") -> int:
    ((_, each),) = offset[topic].items()
    return int(each["offset"])
