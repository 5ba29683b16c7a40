"""A fresh nsqlookupd for each test."""

from collections.abc import AsyncIterator

import pytest

from tests.nsqlookupd.served import Lookupd, running


@pytest.fixture
async def lookupd() -> AsyncIterator[Lookupd]:
    async with running() as lookupd:
        yield lookupd
