"""Batches of real queries in all kinds of tables, with a crash before and after the commit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from nsquark.spark.errors import OldCheckpoint, TableError
from nsquark.spark.tables import DeltaCommits, ExactTable, IcebergCommits, ManifestCommits, dataset
from nsquark.spark.tables.exact_table import Batch, query_id
from tests.spark.tables.stores import Crash, object_store

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

KINDS = ["delta", "iceberg", "manifest"]
COLUMNS = (
    "'host:4150' AS nsqd",
    "id AS offset",
    "concat('t', id % 2) AS topic",
    "timestamp_micros(id) AS timestamp",
)


def iceberg_table(folder: Path) -> Any:
    from pyiceberg.catalog import load_catalog

    where = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    catalog = load_catalog("tests", type="sql", **where)
    if not catalog.table_exists("n.t"):
        catalog.create_namespace("n")
        kinds = [("offset", pa.int64()), ("topic", pa.string()), ("timestamp", pa.timestamp("us", "UTC"))]
        with catalog.create_table_transaction("n.t", pa.schema(kinds)) as new, new.update_spec() as spec:
            spec.add_identity("topic")
    return catalog.load_table("n.t")


def commits(kind: str, folder: Path) -> Any:
    if kind == "delta":
        return DeltaCommits(str(folder / "table"))
    if kind == "iceberg":
        return IcebergCommits(iceberg_table(folder))
    return ManifestCommits(str(folder / "table"), object_store())


def table(kind: str, folder: Path, query: str = "q") -> ExactTable:
    return ExactTable(commits(kind, folder), ["topic"], query=query)


def seen(kind: str, folder: Path) -> list[int]:
    """The rows, as a program without Spark reads them."""
    if kind == "delta":
        from deltalake import DeltaTable

        rows = DeltaTable(str(folder / "table")).to_pyarrow_table()
    elif kind == "iceberg":
        rows = iceberg_table(folder).scan().to_arrow()
    else:
        rows = dataset(str(folder / "table")).to_table()
    assert not rows.num_rows or {f"t{each % 2}" for each in rows["offset"].to_pylist()} == set(
        rows["topic"].to_pylist()
    )
    return sorted(rows["offset"].to_pylist()) if rows.num_rows else []


def rows(spark: SparkSession, first: int, last: int) -> DataFrame:
    return spark.range(first, last, 1, 1).selectExpr(*COLUMNS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_there_once_whatever_happens(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    batch = {number: rows(spark, 10 * number, 10 * number + 10) for number in range(3)}
    first = table(kind, tmp_path)
    first.write(batch[0], 0)
    first.write(batch[0], 0)
    assert seen(kind, tmp_path) == list(range(10))

    crashing = commits(kind, tmp_path)
    crashing.commit = dying_before(crashing.commit)
    with pytest.raises(Crash):
        ExactTable(crashing, ["topic"], query="q").write(batch[1], 1)
    assert seen(kind, tmp_path) == list(range(10))  # the files are there, and do not count

    crashing = commits(kind, tmp_path)
    crashing.commit = dying_after(crashing.commit)
    with pytest.raises(Crash):
        ExactTable(crashing, ["topic"], query="q").write(batch[1], 1)
    again = table(kind, tmp_path)
    again.write(batch[1], 1)  # as Spark replays it
    again.write(rows(spark, 0, 0), 2)
    again.write(batch[2], 3)
    assert seen(kind, tmp_path) == list(range(30))

    another = table(kind, tmp_path, "another query")  # its batches have the same numbers
    another.write(rows(spark, 30, 33), 0)
    assert seen(kind, tmp_path) == list(range(33))
    with pytest.raises(OldCheckpoint, match="batch 1 was written long ago, the last one was 3"):
        table(kind, tmp_path).write(batch[1], 1)
    with pytest.raises(OldCheckpoint, match=r"batch 3 is in the table in .* with other rows"):
        table(kind, tmp_path).write(rows(spark, 20, 31), 3)


def dying_before(commit: Callable[[Batch], None]) -> Callable[[Batch], None]:
    def die(batch: Batch) -> None:
        raise Crash

    return die


def dying_after(commit: Callable[[Batch], None]) -> Callable[[Batch], None]:
    def die(batch: Batch) -> None:
        commit(batch)
        raise Crash

    return die


@pytest.mark.parametrize("kind", KINDS)
def test_two_drivers_do_not_write_the_same_batch(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """The second one has not noticed yet that it is no longer the driver."""
    one, two = table(kind, tmp_path), table(kind, tmp_path)
    for each in (one, two):
        each.write(rows(spark, 0, 0), 0)
    one.write(rows(spark, 0, 10), 1)
    with pytest.raises(TableError, match="another driver has written batch 1"):
        two.write(rows(spark, 0, 10), 1)
    assert seen(kind, tmp_path) == list(range(10))


def test_a_table_with_other_columns_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table("delta", tmp_path).write(rows(spark, 0, 1), 0)
    with pytest.raises(TableError, match="has no column 'more'"):
        table("delta", tmp_path).write(rows(spark, 0, 1).selectExpr("*", "1 AS more"), 1)
    with pytest.raises(TableError, match=r"column 'offset' is .*long.*, and the rows have .*string"):
        table("delta", tmp_path).write(rows(spark, 0, 1).selectExpr("topic", "'' AS offset"), 1)
    with pytest.raises(TableError, match="is partitioned by topic, and not by nothing"):
        ExactTable(commits("delta", tmp_path), query="q").write(rows(spark, 0, 1), 1)
    with pytest.raises(TableError, match="has a column 'timestamp', the rows do not"):
        table("iceberg", tmp_path).write(rows(spark, 0, 1).drop("timestamp"), 0)


def test_the_query_is_told_by_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(TableError, match="the frame is no batch of a streaming query"):
        query_id(rows(spark, 0, 1))
    (tmp_path / "in").mkdir()
    table = ExactTable(ManifestCommits(str(tmp_path / "table"), object_store()))

    def run() -> str:
        stream = spark.readStream.schema("number INT").json(str(tmp_path / "in"))
        writer = stream.writeStream.foreachBatch(table.write).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.awaitTermination()
        return str(query.id)

    (tmp_path / "in" / "0.json").write_text('{"number": 1}')
    name = run()
    assert [path.name for path in (tmp_path / "table" / "_manifests").iterdir()] == [name]
    (tmp_path / "in" / "1.json").write_text('{"number": 2}')
    shutil.rmtree(tmp_path / "checkpoint" / "commits")  # a crash before Spark noted the first batch
    table = ExactTable(ManifestCommits(str(tmp_path / "table"), object_store()))
    assert run() == name
    assert sorted(dataset(str(tmp_path / "table")).to_table()["number"].to_pylist()) == [1, 2]
