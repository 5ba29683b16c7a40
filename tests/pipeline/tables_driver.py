"""A program that archives topic `t` to a table. It kills itself in the midst of a commit.

    python tables_driver.py NSQD_HTTP_ADDRESS FOLDER delta     to a Delta table, until a commit kills it
    python tables_driver.py NSQD_HTTP_ADDRESS FOLDER finish    all messages, to tables of all kinds

Prints `batch N` when batch N of a query has ended.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from pyspark.sql import SparkSession

from nsquark.pipeline.__main__ import parse
from nsquark.pipeline.output.layout import columns
from nsquark.pipeline.output.table_output import open_table, partitioned
from nsquark.pipeline.running.queries import read_stream
from nsquark.spark.tables import manifest_commits
from nsquark.spark.tables.exact_table import Batch
from tests.pipeline.tables import KINDS, flags_of
from tests.spark.driver import Speaker
from tests.spark.session import new_session


def killing(commit: Callable[[Batch], None]) -> Callable[[Batch], None]:
    """The third commit is the last. The process dies before it, within it, or shortly after it."""
    took: list[float] = []

    def perilous(batch: Batch) -> None:
        if len(took) == 2:
            after = random.random() * 1.5 * max(took)
            threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
        began = time.monotonic()
        commit(batch)
        took.append(time.monotonic() - began)

    return perilous


def archive(spark: SparkSession, address: str, folder: Path, kind: str, finish: bool) -> None:
    arguments = ["archive", f"--nsqd-http-address={address}", "--topic=t", f"--channel={kind}"]
    limit = f"--max-offsets-per-trigger={20000 if finish else 200}"
    parsed = parse([*arguments, limit, *flags_of(kind, folder)])
    assert parsed is not None
    options: Any = parsed[1]
    table = open_table(options)
    if not finish:
        table._commits.commit = killing(table._commits.commit)  # type: ignore[method-assign]
    rows = read_stream(spark, options, f"{columns()}, topic STRING")
    writer = partitioned(rows, options).writeStream.foreachBatch(table.write)
    writer = writer.option("checkpointLocation", options.checkpoint)
    if finish:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


def main(address: str, folder: Path, what: str) -> None:
    manifest_commits.FANOUT = 3  # type: ignore[misc]  # so that manifests become one now and then
    spark = new_session("driver", "local[2]", folder / "spark")
    spark.streams.addListener(Speaker())
    for kind in KINDS if what == "finish" else [what]:
        archive(spark, address, folder, kind, what == "finish")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
