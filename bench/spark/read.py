"""Reading a topic with Spark, compared with other sources of Spark: ratios, all from one run.

    python bench/spark/read.py [--messages N] [--size BYTES] [--rounds N] [--smoke] [--json FILE]

Three sources of the same rows take turns, each into a `noop` sink and into Parquet:

- a topic of an nsqd of its own, through `format("nsq")`;
- a Python data source that makes record batches from memory: the cost of any Python data source;
- Parquet files.

Then the benchmark publishes one message at a time and waits until a streaming query has committed it as
Parquet. It compares the time with a micro-batch of Spark's own source `rate-micro-batch`.

Then it publishes and consumes messages one by one on another topic of the same nsqd, in three situations:
without Spark, while Spark reads the backlog over and over, and while Spark reads batches from memory. The
third tells how much of the difference comes from two programs that share one machine.

Every ratio is printed with its target, if it has one. See also write.py.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import pyarrow as pa
from measuring import Cost, Target, print_costs, print_ratios, take_turns, write_json
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from nsquark.spark.columns import SCHEMA
from nsquark.spark.source.span_reader import PIECE
from tests.spark.broker import Broker
from tests.spark.session import new_session

FETCH = 8 << 20
COLUMNS = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in SCHEMA.fields)
PIECES = 4  # in memory; together too large for the processor's cache
TARGETS = {
    "nsq to noop / memory to noop": Target(0.85, True),
    "nsq to noop / Parquet to noop": Target(0.9, True),
    "nsq to Parquet / Parquet to Parquet": Target(0.8, True),
    "publish to committed / a micro-batch of Spark": Target(2.0, False),
    "delivery: Spark reads / without Spark": Target(2.0, False),
}


class MemorySource(DataSource):
    """Makes rows like those of the topic from memory.

    Its workers import nothing of nsquark, which would change how they collect garbage.
    """

    @classmethod
    def name(cls) -> str:
        return "from_memory"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        return MemoryReader(schema, {name.lower(): int(value) for name, value in self.options.items()})


class MemoryReader(DataSourceReader):
    def __init__(self, schema: StructType, options: dict[str, int]) -> None:
        self._schema = schema
        self._messages, self._size, self._parts = (options[each] for each in ("messages", "size", "parts"))

    def partitions(self) -> list[InputPartition]:
        edges = [self._messages * each // self._parts for each in range(self._parts + 1)]
        return [InputPartition(high - low) for low, high in pairwise(edges)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Make each batch of columns in memory and of its own positions."""
        rows = min(PIECE // (self._size + 34), partition.value)
        pieces = [self._piece(rows) for _ in range(PIECES)]
        names = self._schema.fieldNames()
        for first in range(0, partition.value, rows):
            columns = dict(zip(names, pieces[first // rows % PIECES].columns, strict=True))
            columns["offset"] = pa.array(np.arange(first, first + rows))
            count = min(rows, partition.value - first)
            yield pa.RecordBatch.from_arrays(list(columns.values()), names=names).slice(0, count)

    def _piece(self, rows: int) -> pa.RecordBatch:
        values = {
            "value": os.urandom(self._size),
            "topic": "backlog",
            "nsqd": "127.0.0.1:4150",
            "offset": 0,
            "timestamp": time.time_ns() // 1000,
            "id": "0123456789abcdef",
        }
        schema = to_arrow_schema(self._schema, timezone="UTC")
        columns = [pa.repeat(pa.scalar(values[field.name], field.type), rows) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


class Bench:
    def __init__(
        self, spark: SparkSession, broker: Broker, folder: Path, options: argparse.Namespace
    ) -> None:
        self.spark = spark
        self.broker = broker
        self.folder = folder
        self.messages, self.size = options.messages, options.size
        self.parts = 2

    def publish(self) -> None:
        """Bodies of text that all differ, so that Parquet cannot store one in place of all."""
        for first in range(0, self.messages, 500):
            text = os.urandom(250 * self.size).hex().encode()
            bodies = [text[at : at + self.size] for at in range(0, len(text), self.size)]
            self.broker.publish("backlog", bodies[: self.messages - first])

    def nsq(self) -> DataFrame:
        reader = self.spark.read.format("nsq").option("nsqd.http.addresses", self.broker.http_address)
        reader = reader.option("subscribe", "backlog").option("minPartitions", str(self.parts))
        return reader.option("fetchBytes", str(FETCH)).load()

    def memory(self) -> DataFrame:
        reader = self.spark.read.format("from_memory").option("messages", str(self.messages))
        return reader.option("size", str(self.size)).option("parts", str(self.parts)).load()

    def parquet(self) -> DataFrame:
        return self.spark.read.parquet(str(self.folder / "rows"))

    def to_parquet(self, frame: DataFrame) -> None:
        frame.write.mode("overwrite").parquet(str(self.folder / "copy"))

    def costs(self, rounds: int) -> dict[str, Cost]:
        self.nsq().write.mode("overwrite").parquet(str(self.folder / "rows"))
        works: dict[str, Callable[[], object]] = {
            "memory to noop": lambda: to_noop(self.memory()),
            "nsq to noop": lambda: to_noop(self.nsq()),
            "Parquet to noop": lambda: to_noop(self.parquet()),
            "nsq to Parquet": lambda: self.to_parquet(self.nsq()),
            "Parquet to Parquet": lambda: self.to_parquet(self.parquet()),
        }
        return take_turns(works, rounds)

    def commits(self, number: int) -> tuple[list[float], list[float]]:
        """Seconds from publishing to committed Parquet, and of a micro-batch of Spark's own source."""
        self.broker.publish("light", [b"first"])
        reader = self.spark.readStream.format("nsq").option("nsqd.http.addresses", self.broker.http_address)
        reader = (
            reader.option("subscribe", "light").option("channel", "bench").option("startingOffsets", "latest")
        )
        query = self.to_files(reader.load(), "light")
        committed = self.folder / "light.checkpoint" / "commits"
        found = []
        for _ in range(number + 3):  # the first three warm up
            query.processAllAvailable()
            before = newest(committed)
            time.sleep(0.2)
            begin = time.perf_counter()
            self.broker.publish("light", [b"x" * self.size])
            while newest(committed) == before:
                time.sleep(0.001)
            found.append(time.perf_counter() - begin)
        query.stop()
        rate = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").load()
        query = self.to_files(rate, "rate")
        while len(query.recentProgress) < number + 3:
            time.sleep(0.05)
        query.stop()
        floor = [progress.durationMs["triggerExecution"] / 1e3 for progress in query.recentProgress]
        return found[3:], floor[3:]

    def to_files(self, frame: DataFrame, name: str) -> StreamingQuery:
        writer = frame.writeStream.format("parquet").option("path", str(self.folder / name))
        return writer.option("checkpointLocation", str(self.folder / f"{name}.checkpoint")).start()

    def latencies(self, seconds: float) -> dict[str, list[float]]:
        """Seconds from publishing to delivery, one message after another, without Spark and with it."""
        asyncio.run(latencies(self.broker, seconds / 4))
        return {
            "without Spark": asyncio.run(latencies(self.broker, seconds)),
            "Spark reads": self.beside(lambda: to_noop(self.nsq()), seconds),
            "Spark works on something else": self.beside(lambda: to_noop(self.memory()), seconds),
        }

    def beside(self, work: Callable[[], object], seconds: float) -> list[float]:
        stop = threading.Event()

        def loop() -> None:
            while not stop.is_set():
                work()

        thread = threading.Thread(target=loop)
        thread.start()
        try:
            return asyncio.run(latencies(self.broker, seconds))
        finally:
            stop.set()
            thread.join()


def newest(folder: Path) -> int:
    return max((int(path.name) for path in folder.glob("*") if path.name.isdigit()), default=-1)


async def latencies(broker: Broker, seconds: float) -> list[float]:
    publisher, consumer = await broker.connect(), await broker.connect()
    await consumer.sub("live", "c", 100)
    found = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        await publisher.pub("live", b"x" * 100)
        consumer.fin(await consumer.message())
        found.append(time.perf_counter() - begin)
        await asyncio.sleep(0.005)
    for client in (publisher, consumer):
        client.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Reads a topic with Spark, and prints ratios.")
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=200, help="of a body, in bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="for each part of the latencies")
    parser.add_argument("--smoke", action="store_true", help="a little of everything")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    if options.smoke:
        options.messages, options.rounds, options.seconds = 20_000, 1, 0.5
    logging.getLogger("nsquark").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "data").start() as broker:
        spark = new_session("smoke" if options.smoke else "bench")
        spark.dataSource.register(MemorySource)
        bench = Bench(spark, broker, Path(folder), options)
        bench.publish()
        costs = bench.costs(options.rounds)
        commits, floor = bench.commits(3 if options.smoke else 25)
        waits = bench.latencies(options.seconds)
        spark.stop()
    print_costs(costs, options.messages)
    pairs = [name.split(" / ") for name in TARGETS if name.split(" / ")[1] in costs]
    ratios = {f"{ours} / {other}": costs[other].seconds / costs[ours].seconds for ours, other in pairs}
    by_cpu = {
        f"{ours} / {other}": costs[other].cpu_seconds / costs[ours].cpu_seconds for ours, other in pairs
    }
    committed, batch = statistics.median(commits), statistics.median(floor)
    print(f"\npublish to Parquet committed {committed * 1e3:5.0f} ms")
    print(f"a micro-batch of Spark       {batch * 1e3:5.0f} ms")
    ratios["publish to committed / a micro-batch of Spark"] = committed / batch
    print()
    alone = statistics.median(waits["without Spark"])
    for name, found in waits.items():
        median, worst = statistics.median(found), sorted(found)[int(len(found) * 0.99)]
        print(f"delivery, {name:30} median {median * 1e3:6.2f} ms, 99 % within {worst * 1e3:6.2f} ms")
        if name != "without Spark":
            ratios[f"delivery: {name} / without Spark"] = median / alone
    print()
    print_ratios(ratios, by_cpu, TARGETS)
    if options.json:
        write_json(Path(options.json), costs, ratios, by_cpu)
    return 0


if __name__ == "__main__":
    sys.exit(main())
