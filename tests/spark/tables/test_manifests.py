"""Manifests on a file system where nothing can be renamed, with a crash at each of their steps."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsquark.spark.errors import TableError
from nsquark.spark.tables import ManifestCommits, dataset, listed_files, manifest_commits
from nsquark.spark.tables.data_files import DataFile
from nsquark.spark.tables.exact_table import Batch, Committed
from nsquark.spark.tables.manifests import ManifestName, parse_name, uncovered
from tests.spark.tables.stores import Crash, object_store


@pytest.fixture(autouse=True)
def three_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_commits, "FANOUT", 3)


def commits(tmp_path: Path, calls_left: int = -1) -> ManifestCommits:
    return ManifestCommits(str(tmp_path), object_store(calls_left))


def commit(to: ManifestCommits, tmp_path: Path, number: int) -> None:
    """A batch with one row, as tasks and driver write it."""
    name = f"{number:09d}-{os.urandom(6).hex()}"
    to.begin("q", name)
    path = tmp_path / f"{name}-1.parquet"
    pq.write_table(pa.table({"number": [number]}), path)
    to.commit(Batch("q", number, f"d{number}", [DataFile(path.name, path.stat().st_size, 1, {}, {}, {}, {})]))


def seen(tmp_path: Path) -> list[int]:
    table = dataset(str(tmp_path)).to_table()
    return sorted(table["number"].to_pylist()) if table.num_rows else []


def test_files_count_when_a_manifest_names_them(tmp_path: Path) -> None:
    assert seen(tmp_path) == []
    assert commits(tmp_path).last("q") is None
    store = commits(tmp_path)
    for number in range(20):
        commit(store, tmp_path, number)
        assert seen(tmp_path) == list(range(number + 1))
        assert commits(tmp_path).last("q") == Committed(number, f"d{number}")
    assert len(listed_files(str(tmp_path), object_store())) == 20
    # nine, nine, and two: few manifests for any number of batches
    names = [parse_name(path.name) for path in (tmp_path / "_manifests" / "q").glob("*.ok")]
    assert sorted(name for name in names if name) == [(0, 8, 2), (9, 17, 2), (18, 18, 0), (19, 19, 0)]
    assert list((tmp_path / "_manifests" / "q").glob("*.begun")) == []


def test_a_crash_at_any_step_leaves_each_batch_once_or_not_at_all(tmp_path: Path) -> None:
    number, crashes = 0, 0
    for calls in range(1, 60):
        store = commits(tmp_path, calls)
        before = commits(tmp_path).last("q")
        number = before.number + 1 if before else 0
        try:
            store.last("q")
            while number < 1000:
                commit(store, tmp_path, number)
                number += 1
        except Crash:
            crashes += 1
        there = seen(tmp_path)
        assert there in (list(range(number)), list(range(number + 1)))
        after = commits(tmp_path).last("q")
        assert (after.number if after else -1) == len(there) - 1
    assert crashes == 59
    assert number > 200


def test_a_batch_that_another_driver_has_written_is_refused(tmp_path: Path) -> None:
    one, other = commits(tmp_path), commits(tmp_path)
    commit(one, tmp_path, 0)
    with pytest.raises(TableError, match="another driver has written batch 0"):
        commit(other, tmp_path, 0)
    assert seen(tmp_path) == [0]


def test_the_files_of_dead_batches_go_after_a_day(tmp_path: Path) -> None:
    store = commits(tmp_path)
    commit(store, tmp_path, 0)
    for name, age in (("000000001-aaaaaaaaaaaa", 2 * 86400), ("000000001-bbbbbbbbbbbb", 60)):
        store.begin("q", name)
        (tmp_path / f"{name}-1.parquet").write_bytes(b"half a file")
        path = tmp_path / "_manifests" / "q" / f"{name}.begun"
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    commits(tmp_path).last("q")
    left = sorted(path.name[:22] for path in tmp_path.glob("*.parquet"))
    assert left[1:] == ["000000001-bbbbbbbbbbbb"]
    assert seen(tmp_path) == [0]
    assert [path.name[:22] for path in (tmp_path / "_manifests" / "q").glob("*.begun")] == left[1:]


def test_a_manifest_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    commit(commits(tmp_path), tmp_path, 0)
    path = tmp_path / "_manifests" / "q" / "000000000-000000000.0.json"
    text = path.read_text()
    path.write_text(text.replace('"version":1', '"version":2'))
    with pytest.raises(TableError, match="a manifest of version 2"):
        seen(tmp_path)
    path.write_text(text[:-1])
    with pytest.raises(TableError, match="is no manifest"):
        seen(tmp_path)
    path.unlink()
    with pytest.raises(TableError, match="change faster than"):
        seen(tmp_path)


def test_a_location_that_no_file_system_has_is_one_line() -> None:
    with pytest.raises(TableError, match=r"^'nosuch://x/y' cannot be opened: ") as caught:
        listed_files("nosuch://x/y")
    assert "\n" not in str(caught.value)


def test_a_manifest_within_another_does_not_count() -> None:
    whole, one, next_one = ManifestName(0, 2, 1), ManifestName(2, 2, 0), ManifestName(3, 3, 0)
    assert uncovered([next_one, one, whole]) == [whole, next_one]
    assert uncovered([one, ManifestName(2, 2, 1)]) == [ManifestName(2, 2, 1)]
    assert parse_name("000000003-000000003.0.ok") == next_one
    assert parse_name("000000003-000000003.0.json") is None
