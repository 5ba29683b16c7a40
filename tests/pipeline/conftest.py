"""The nsqds of the tests of the data source serve these, too; the session has the command's settings."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import broker, other
from tests.spark.session import new_session

__all__ = ["broker", "other", "spark"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One JVM for all modules that use it: they are of the xdist group `pipeline`."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java")
    settings = {"spark__sql__parquet__outputTimestampType": "TIMESTAMP_MICROS"}
    session = new_session("tests", folder=tmp_path_factory.mktemp("spark"), **settings)
    yield session
    session.stop()
