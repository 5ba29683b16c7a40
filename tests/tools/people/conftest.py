"""One nsqd for all tests of a module that do not need their own: topics are named by the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.daemon import Nsqd


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("shared"), "--retention-bytes=10000000").start() as running:
        yield running


@pytest.fixture
def fresh(nsqd: Nsqd) -> list[str]:
    """The flags that lead to an nsqd of the test's own, where positions begin at 0."""
    return ["--nsqd-http", nsqd.http_address, "--nsqd-tcp", nsqd.tcp_address]


@pytest.fixture
def at(shared: Nsqd) -> list[str]:
    """The flags that lead to the shared nsqd."""
    return ["--nsqd-http", shared.http_address, "--nsqd-tcp", shared.tcp_address]
