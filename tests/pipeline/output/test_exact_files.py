"""Batches as plain files, on a real Spark, with a crash after each step."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from nsquark.cli.flags import StartError
from nsquark.pipeline.output import durable, exact_files
from nsquark.pipeline.output.compaction import Compactor
from nsquark.pipeline.output.exact_files import ExactFiles, OldCheckpoint
from tests.pipeline.command import rows_of

pytestmark = pytest.mark.xdist_group("pipeline")


class Crash(BaseException):
    """The end of the process, as far as the code under test is concerned."""


@pytest.fixture
def files(tmp_path: Path) -> Iterator[ExactFiles]:
    made = reopened(tmp_path)
    yield made
    made.close()


def reopened(tmp_path: Path) -> ExactFiles:
    files = ExactFiles(tmp_path / "out", tmp_path / "checkpoint", "parquet", ["part"])
    files.open()
    return files


def batch(spark: SparkSession, first: int, last: int) -> DataFrame:
    return spark.range(first, last, 1, 1).selectExpr("id", "id % 3 AS part")


def seen(tmp_path: Path) -> list[int]:
    return sorted(row["id"] for row in rows_of(tmp_path / "out"))


def dying(work: Callable[..., Any], after: int) -> Callable[..., Any]:
    """`work`, which is done `after` times and then the process dies."""
    left = after

    def perhaps(*arguments: Any) -> Any:
        nonlocal left
        if left == 0:
            raise Crash
        left -= 1
        return work(*arguments)

    return perhaps


def test_a_batch_is_there_once_however_often_it_comes(
    spark: SparkSession, files: ExactFiles, tmp_path: Path
) -> None:
    files.write(batch(spark, 0, 9), 0)
    files.write(batch(spark, 0, 9), 0)
    assert files.write(batch(spark, 9, 12), 1) == ["part=0", "part=1", "part=2"]
    assert seen(tmp_path) == list(range(12))
    names = sorted(path.name[:10] for path in (tmp_path / "out" / "part=0").iterdir())
    assert names == ["000000000-", "000000001-"]
    files.close()
    again = reopened(tmp_path)
    again.write(batch(spark, 9, 12), 1)
    assert seen(tmp_path) == list(range(12))
    with pytest.raises(OldCheckpoint, match="the checkpoint is older than the files"):
        again.write(batch(spark, 0, 9), 0)
    again.close()


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_a_crash_amid_the_moves_is_made_good_at_the_next_start(
    spark: SparkSession, files: ExactFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    files.write(batch(spark, 0, 9), 0)
    with monkeypatch.context() as patched:
        # one replace is the plan's own, and one that of the number of the last batch
        patched.setattr(os, "replace", dying(os.replace, 2 + moved))
        with pytest.raises(Crash):
            files.write(batch(spark, 9, 18), 1)
    visible = seen(tmp_path)
    assert len(visible) == len(set(visible)) == 9 + 3 * moved
    files.close()
    again = reopened(tmp_path)
    assert seen(tmp_path) == list(range(18))
    again.write(batch(spark, 9, 18), 1)  # as Spark replays it
    again.write(batch(spark, 18, 21), 2)
    again.close()
    assert seen(tmp_path) == list(range(21))
    assert not (tmp_path / "checkpoint" / "files" / "staging").exists()


def test_a_crash_before_the_plan_leaves_nothing_to_see(
    spark: SparkSession, files: ExactFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(durable, "replace_text", dying(durable.replace_text, 0))
        with pytest.raises(Crash):
            files.write(batch(spark, 0, 9), 0)
    files.close()
    assert seen(tmp_path) == []
    again = reopened(tmp_path)
    again.write(batch(spark, 0, 9), 0)
    again.close()
    assert seen(tmp_path) == list(range(9))


def test_a_batch_without_rows_leaves_no_file(spark: SparkSession, tmp_path: Path) -> None:
    files = ExactFiles(tmp_path / "out", tmp_path / "checkpoint", "parquet")
    files.open()
    files.write(spark.range(0), 0)
    files.write(spark.range(0, 3, 1, 1), 1)
    files.close()
    assert len(list((tmp_path / "out").glob("[!.]*"))) == 1


def test_two_processes_do_not_write_to_one_folder(files: ExactFiles, tmp_path: Path) -> None:
    other = ExactFiles(tmp_path / "out", tmp_path / "another", "parquet")
    with pytest.raises(StartError, match=r"^--output: another process writes to "):
        other.open()


def test_a_plan_that_cannot_be_read_is_an_error(files: ExactFiles, tmp_path: Path) -> None:
    files.close()
    (tmp_path / "checkpoint" / "files" / "batch.json").write_text("{")
    with pytest.raises(StartError, match=r"batch.json' cannot be read"):
        reopened(tmp_path)


def test_a_checkpoint_that_was_set_back_is_refused(tmp_path: Path) -> None:
    """As from a backup: Spark's part and ours are equally old, so that no batch would be known."""
    plan = tmp_path / "checkpoint" / "files" / "batch.json"
    plan.parent.mkdir(parents=True)

    def open_at(batch: int) -> None:
        plan.write_text(json.dumps({"name": "abc", "batch": batch, "staged": "x", "moves": []}))
        files = ExactFiles(tmp_path / "out", tmp_path / "checkpoint", "parquet")
        files.open()
        files.close()

    open_at(3)
    open_at(5)
    open_at(5)
    with pytest.raises(StartError, match=r"^--checkpoint: '.*' is 1 batches older than the files"):
        open_at(4)
    (tmp_path / "out" / ".last_batch").write_text("{")
    with pytest.raises(StartError, match=r"^--output: '.*last_batch' cannot be read"):
        open_at(5)


def test_names_keep_what_tells_the_format() -> None:
    assert exact_files.format_suffix("part-00000-1b-2c.c000.snappy.parquet") == ".snappy.parquet"
    assert exact_files.format_suffix("part-00000-1b-2c-c000.json") == ".json"


# ---- merging


def compactor(files: ExactFiles) -> Compactor:
    made = Compactor(files, "id BIGINT", ["id"], 3, 1 << 20)
    assert made.open()
    return made


def written(spark: SparkSession, files: ExactFiles, batches: int) -> None:
    for number in range(batches):
        files.write(batch(spark, number * 9, number * 9 + 9), number)


def test_small_files_become_one(spark: SparkSession, files: ExactFiles, tmp_path: Path) -> None:
    written(spark, files, 4)
    merging = compactor(files)
    for _ in range(3):
        assert merging.run(spark, (), datetime.now(UTC))
    assert not merging.run(spark, (), datetime.now(UTC))
    assert [len(list((tmp_path / "out" / f"part={part}").iterdir())) for part in range(3)] == [1, 1, 1]
    assert seen(tmp_path) == list(range(36))
    files.write(batch(spark, 27, 36), 3)  # replayed: what it has written is no longer under its name
    files.write(batch(spark, 36, 45), 4)
    assert seen(tmp_path) == list(range(45))


@pytest.mark.parametrize("step", ["exchange", "remove_tree"])
def test_a_crash_while_merging_is_not_seen(
    spark: SparkSession, files: ExactFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    written(spark, files, 3)
    merging = compactor(files)
    with monkeypatch.context() as patched:
        patched.setattr(durable, step, dying(getattr(durable, step), 0))
        with pytest.raises(Crash):
            merging.run(spark, (), datetime.now(UTC))
    assert seen(tmp_path) == list(range(27))
    files.close()
    again = reopened(tmp_path)
    assert seen(tmp_path) == list(range(27))
    assert not (tmp_path / "checkpoint" / "files" / "staging").exists()
    again.close()


def test_whoever_lists_while_files_are_merged_sees_each_row_once(
    spark: SparkSession, files: ExactFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names and sizes of a listing at every change of the file system."""
    written(spark, files, 3)
    listings = []
    folder = tmp_path / "out" / "part=0"

    def looking(work: Callable[..., Any]) -> Callable[..., Any]:
        def look(*arguments: Any) -> Any:
            listings.append(seen(tmp_path))
            done = work(*arguments)
            listings.append(seen(tmp_path))
            return done

        return look

    with monkeypatch.context() as patched:
        patched.setattr(durable, "exchange", looking(durable.exchange))
        patched.setattr(durable, "remove_tree", looking(durable.remove_tree))
        patched.setattr(os, "replace", looking(os.replace))
        compactor(files).run(spark, (), datetime.now(UTC))
    assert len(list(folder.iterdir())) == 1
    assert len(listings) >= 6
    assert all(listing == list(range(27)) for listing in listings)
