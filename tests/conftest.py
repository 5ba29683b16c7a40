"""What all tests share: the kernel is named in the header, and property tests are not timed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import nsquark.kernel
from tests.daemon import Nsqd, Nsqlookupd

# With two test processes on two cores a single example may wait its turn for longer than any deadline.
settings.register_profile("nsquark", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("nsquark")


def pytest_report_header() -> str:
    return f"nsquark kernel: {'compiled' if nsquark.kernel.COMPILED else 'pure'}"


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
