"""Writing a topic with Spark, compared with an Arrow writer that discards: ratios, all from one run.

    python bench/spark/write.py [--messages N] [--size BYTES] [--rounds N] [--smoke] [--json FILE]

Rows of `value` in Parquet files are written, in turn, to:

- a Python data source whose Arrow writer discards its batches: the least that any Python sink costs;
- a topic of an nsqd of its own, through `format("nsq")`, at least once and exactly once.

nsqd runs on the same machine and stores all messages, so the figures contain its work, too.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from measuring import Cost, Target, print_costs, print_ratios, take_turns, write_json
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tests.spark.broker import Broker
from tests.spark.session import new_session

PARTS = 2
TARGETS = {
    "nsq, at least once / discard": Target(0.8, True),
    "nsq, exactly once / nsq, at least once": Target(0.7, True),
}


class DiscardSource(DataSource):
    """A sink that discards its batches."""

    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return DiscardWriter()


class DiscardWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Bench:
    def __init__(
        self, spark: SparkSession, broker: Broker, folder: Path, options: argparse.Namespace
    ) -> None:
        self.spark = spark
        self.broker = broker
        self.messages, self.size = options.messages, options.size
        self.path = str(folder / "rows")
        self.topics = 0

    def make_rows(self) -> None:
        """Bodies of text that all differ, so that Parquet cannot store one in place of all."""
        text = " || ".join(f"md5(concat(id, '-{part}'))" for part in range(-(-self.size // 32)))
        frame = self.spark.range(0, self.messages, 1, PARTS)
        frame.selectExpr(f"CAST(left({text}, {self.size}) AS BINARY) AS value").write.parquet(self.path)

    def rows(self) -> DataFrame:
        return self.spark.read.parquet(self.path)

    def discard(self) -> None:
        self.rows().write.format("discard").mode("append").save()

    def nsq(self, delivery: str) -> None:
        """Write to a new topic, so that every round begins alike."""
        self.topics += 1
        topic = f"t{self.topics}"
        given = {"nsqd.http.addresses": self.broker.http_address, "topic": topic, "deliveryMode": delivery}
        self.rows().write.format("nsq").options(**given).mode("append").save()

    def tidy(self) -> None:
        """Check that the topic has all messages, and delete it."""
        for topic in self.broker.ask("GET", "/stats?format=json")["topics"]:
            name = topic["topic_name"]
            told = self.broker.log(name)
            assert told["next"] - told["first"] == self.messages
            self.broker.ask("POST", f"/topic/delete?topic={name}")

    def costs(self, rounds: int) -> dict[str, Cost]:
        works: dict[str, Callable[[], object]] = {
            "discard": self.discard,
            "nsq, at least once": lambda: self.nsq("atLeastOnce"),
            "nsq, exactly once": lambda: self.nsq("exactlyOnce"),
        }
        return take_turns(works, rounds, self.tidy)


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes a topic with Spark, and prints ratios.")
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=200, help="of a body, in bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="a little of everything")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    if options.smoke:
        options.messages, options.rounds = 20_000, 1
    logging.getLogger("nsquark").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "data").start() as broker:
        spark = new_session("smoke" if options.smoke else "bench")
        spark.dataSource.register(DiscardSource)
        bench = Bench(spark, broker, Path(folder), options)
        bench.make_rows()
        costs = bench.costs(options.rounds)
        spark.stop()
    print_costs(costs, options.messages)
    pairs = [name.split(" / ") for name in (*TARGETS, "nsq, exactly once / discard")]
    ratios = {f"{ours} / {other}": costs[other].seconds / costs[ours].seconds for ours, other in pairs}
    by_cpu = {
        f"{ours} / {other}": costs[other].cpu_seconds / costs[ours].cpu_seconds for ours, other in pairs
    }
    print()
    print_ratios(ratios, by_cpu, TARGETS)
    if options.json:
        write_json(Path(options.json), costs, ratios, by_cpu)
    return 0


if __name__ == "__main__":
    sys.exit(main())
