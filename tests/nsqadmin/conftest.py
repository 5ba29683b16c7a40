"""A cluster of real daemons per test, and an nsqadmin that finds it through its nsqlookupds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.nsqadmin.served import Admin, Cluster, cluster, serving


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as running:
        yield running


@pytest.fixture
async def admin(daemons: Cluster) -> AsyncIterator[Admin]:
    await daemons.fill()
    async with serving(*daemons.flags) as running:
        yield running
