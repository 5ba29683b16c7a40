"""What all tests share: the kernel is named in the header, and property tests are not timed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

import nsquark.kernel
from tests.daemon import Nsqd, Nsqlookupd

if TYPE_CHECKING:
    from tests.spark.cluster import Cluster

# With two test processes on two cores a single example may wait its turn for longer than any deadline.
settings.register_profile("nsquark", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("nsquark")


def pytest_report_header() -> str:
    return f"nsquark kernel: {'compiled' if nsquark.kernel.COMPILED else 'pure'}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, so that no process is left alone with it: groups, and what says so."""
    items.sort(key=lambda item: not any(map(item.get_closest_marker, ("xdist_group", "timeout"))))


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    """A running nsqd with data of its own."""
    with Nsqd(tmp_path / "data").start() as running:
        yield running


@pytest.fixture
def nsqlookupd() -> Iterator[Nsqlookupd]:
    """A running nsqlookupd."""
    with Nsqlookupd().start() as running:
        yield running


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Tests that use it are of the xdist group `cluster`, so that one process starts one for them all."""
    from tests.spark.cluster import cluster

    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
