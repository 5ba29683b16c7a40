"""An nsqd that knows one scripted nsqlookupd."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nsquark.nsqd.cluster import lookup_peer
from tests.nsqd.api import Api, running
from tests.nsqd.lookupds import ScriptedLookupd, identified, lookupds


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once."""
    for delay in ("FIRST_DELAY", "LONGEST_DELAY", "LONGEST_REST"):
        monkeypatch.setattr(lookup_peer, delay, 0.01)


@pytest.fixture
async def lookupd() -> AsyncIterator[ScriptedLookupd]:
    async with lookupds(1) as (lookupd,):
        yield lookupd


@pytest.fixture
async def api(tmp_path: Path, lookupd: ScriptedLookupd) -> AsyncIterator[Api]:
    """An nsqd that knows one lookupd, and is known to it."""
    async with running(tmp_path, lookupd_tcp_address=[lookupd.address], broadcast_address="nsqd1") as api:
        await identified(api)
        yield api
