"""The lock files: what `make run` installs is a part of what `make setup` does, in the same versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import locks

ROOT = Path(__file__).parents[2]


def locked(file: str) -> list[str]:
    return [line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("file", ["requirements.lock", "requirements-spark.lock"])
def test_a_part_is_what_pyproject_asks_for_in_the_versions_of_the_whole(file: str) -> None:
    versions = dict(line.split("==") for line in locked("requirements-dev.lock"))
    wanted = [line.split("==")[0] for line in locks.lock_lines(locks.LOCKS[file][1])]
    assert locked(file) == [f"{name}=={versions[name]}" for name in wanted], "run `make lock`"


def test_running_needs_no_tools_and_no_spark() -> None:
    names = {line.partition("==")[0] for line in locked("requirements.lock")}
    assert {"click", "uvloop", "starlette", "Cython"} <= names
    assert names.isdisjoint({"pyspark", "pyarrow", "pytest", "mypy", "ruff", "schemathesis"})


def test_a_closure_follows_extras_and_leaves_out_what_is_for_others() -> None:
    assert "uvloop" in locks.closure(["nsquark"])
    assert "pyspark" not in locks.closure(["nsquark"])
    assert {"pyspark", "py4j", "pyarrow"} <= locks.closure(["nsquark[spark]"])
