"""A data directory as a real nsqd leaves it, made once; every test gets a copy."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.daemon import Nsqd

SMALL_SEGMENTS = "--max-bytes-per-file=4096"


async def fill(nsqd: Nsqd) -> None:
    """Two topics: `orders` with channels, deferred messages and several segments; `idle` without channels."""
    await nsqd.post("/topic/create?topic=orders")
    for channel in ("archive", "billing"):
        await nsqd.post(f"/channel/create?topic=orders&channel={channel}")
    async with await nsqd.connect() as producer, await nsqd.connect() as consumer:
        for number in range(20):
            await producer.mpub(
                "orders", [b"order %d of %d " % (each, number) + b"x" * 60 for each in range(10)]
            )
        await producer.dpub("orders", 3_600_000, b"much later")
        await producer.mpub("idle", [b"waits"] * 5)
        await consumer.sub("orders", "billing", rdy=150)
        messages = [await consumer.message() for _ in range(150)]
        for message in messages[100:]:
            consumer.fin(message)
        consumer.req(messages[0], 3_600_000)
        await consumer.caught_up()
    body = b"\0\0\0\x01\0\0\0\x06staged"
    await nsqd.post("/staged/put?app=nightly&batch=1&partition=0&attempt=a1&seq=0&topic=orders", body)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "data"
    with Nsqd(path, SMALL_SEGMENTS).start() as nsqd:
        asyncio.run(fill(nsqd))
        nsqd.stop()
    return path


@pytest.fixture
def data_path(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "data"))
