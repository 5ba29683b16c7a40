"""What a task does with its rows, called as Spark calls it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from nsquark.spark.tables import data_files
from nsquark.spark.tables.data_files import DataFile, FileWriter, digest_of
from tests.spark.tables.stores import object_store

SCHEMA = pa.schema([("offset", pa.int64()), ("nsqd", pa.string()), ("topic", pa.string())])


def rows(first: int, last: int, topic: str | None = "t", nsqd: str = "a:1") -> pa.RecordBatch:
    count = last - first
    values = {"offset": list(range(first, last)), "nsqd": [nsqd] * count, "topic": [topic] * count}
    return pa.record_batch(values, SCHEMA)


def writer(folder: Path, **more: object) -> FileWriter:
    in_files = pa.schema([each for each in SCHEMA if each.name != "topic"])
    return FileWriter(object_store(), str(folder), "000000003-abc", in_files, ["topic"], **more)


def written(writer: FileWriter, *batches: pa.RecordBatch) -> list[DataFile]:
    (reports,) = writer._write_partition(iter(batches))
    return [DataFile(**json.loads(report.as_py())) for report in reports["file"]]


def read(folder: Path) -> list[dict[str, object]]:
    table = ds.dataset(folder, format="parquet", partitioning="hive").to_table()
    return table.sort_by("offset").to_pylist()


def test_a_file_has_the_rows_of_one_partition(tmp_path: Path) -> None:
    mixed = pa.Table.from_batches([rows(0, 3), rows(3, 5, "a#ephemeral"), rows(5, 7, None)])
    files = written(writer(tmp_path), *mixed.combine_chunks().to_batches(), rows(7, 9))
    assert {file.partition["topic"]: file.rows for file in files} == {"t": 5, "a#ephemeral": 2, None: 2}
    topics = [row["topic"] for row in read(tmp_path)]
    assert topics == ["t"] * 3 + ["a#ephemeral"] * 2 + [None] * 2 + ["t"] * 2
    for file in files:
        assert file.path.rpartition("/")[2].startswith("000000003-abc-")
        assert file.bytes == (tmp_path / file.path).stat().st_size
        assert pq.read_metadata(tmp_path / file.path).num_rows == file.rows
    (plain,) = (file for file in files if file.partition["topic"] == "t")
    assert (plain.least, plain.greatest) == ({"offset": 0}, {"offset": 8})
    assert plain.extent == {"t a:1": [0, 8, 5]}


def test_few_files_are_open_and_few_rows_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_files, "_MAX_OPEN_FILES", 2)
    monkeypatch.setattr(data_files, "_MAX_PENDING_BYTES", 100)
    monkeypatch.setattr(data_files, "_FILE_BYTES", 1000)
    batches = [rows(number, number + 1, f"t{number % 5}") for number in range(200)]
    files = written(writer(tmp_path), *batches)
    assert len({file.path for file in files}) == len(files) > 5
    assert [row["offset"] for row in read(tmp_path)] == list(range(200))


def test_rows_can_be_counted_without_being_written(tmp_path: Path) -> None:
    batches = [rows(0, 10), rows(5, 9, "u"), rows(4, 8, nsqd="b:1")]
    counted = FileWriter(None, "", "", SCHEMA, ["topic"])
    digest = digest_of(written(counted, *batches))
    assert digest == digest_of(written(writer(tmp_path), *reversed(batches)))
    assert digest != digest_of(written(counted, *batches[:2], rows(4, 9, nsqd="b:1")))
    assert digest_of([]) == digest_of(written(counted))


def test_a_task_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "_ROW_GROUP_BYTES", 1)

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(0, 3)
        yield rows(0, 3, "u")
        raise OSError("the disk of the shuffle is gone")

    with pytest.raises(OSError, match="the disk of the shuffle"):
        list(writer(tmp_path)._write_partition(failing()))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_format_has_options(tmp_path: Path) -> None:
    (file,) = written(writer(tmp_path, format_options={"compression": "zstd"}), rows(0, 3))
    assert pq.read_metadata(tmp_path / file.path).row_group(0).column(0).compression == "ZSTD"
