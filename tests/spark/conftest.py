"""nsqds for these tests, and the one Spark session of a test process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.broker import Broker
from tests.spark.session import new_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Modules that use it are of the xdist group `spark`, so that one process starts one JVM for them all."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java")
    session = new_session("tests", folder=tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data").start() as running:
        yield running


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "other").start() as running:
        yield running
