"""What pages and `/api` show is what nsqd's `/stats` says, while messages flow."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from tests.daemon import Nsqd, identify, until
from tests.nsqadmin.served import Admin, Cluster

COUNTS = {
    "Depth": "depth",
    "In flight": "in_flight_count",
    "Deferred": "deferred_count",
    "Requeued": "requeue_count",
    "Timed out": "timeout_count",
    "Messages": "message_count",
    "Clients": "client_count",
}


async def stats(nsqd: Nsqd) -> dict[str, int]:
    """The channel `archive` of one nsqd, as that nsqd tells."""
    _, body = await nsqd.http("GET", "/stats?format=json&topic=orders&channel=archive")
    channel: dict[str, int] = json.loads(body)["topics"][0]["channels"][0]
    return {key: channel[key] for key in COUNTS.values()}


def row(page: bytes, nsqd: Nsqd) -> dict[str, int]:
    """The same, as the channel's page shows it in the row of that nsqd."""
    text = page.decode()
    [found] = re.findall(rf'<tr role="row" data-key="127.0.0.1:{nsqd.http_port}">(.*?)</tr>', text, re.S)
    cells = dict(re.findall(r'data-label="([^"]*)">([^<]*)</td>', found))
    return {key: int(cells[label].replace(",", "")) for label, key in COUNTS.items()}


@asynccontextmanager
async def traffic(daemons: Cluster) -> AsyncIterator[None]:
    """Publishers and a consumer that finishes, requeues and holds messages, on two nsqds."""

    async def publish(nsqd: Nsqd) -> None:
        while True:
            await nsqd.post("/mpub?topic=orders", b"one\ntwo\nthree")

    async def consume(nsqd: Nsqd) -> None:
        async with await nsqd.connect() as client:
            client.send(identify(client_id="worker", heartbeat_interval=60000))
            await client.answer()
            await client.sub("orders", "archive", rdy=10)
            while True:
                client.fin(await client.message())

    tasks = [asyncio.ensure_future(each(nsqd)) for each in (publish, consume) for nsqd in daemons.nsqds[:2]]
    try:
        yield
        for task in tasks:
            assert not task.done(), task
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


def between(low: dict[str, int], shown: dict[str, int], high: dict[str, int]) -> bool:
    """Counts that only grow lie between what nsqd said before and what it said afterwards."""
    growing = ("message_count", "requeue_count", "timeout_count")
    return all(low[key] <= shown[key] <= high[key] for key in growing)


async def test_a_channels_page_shows_what_every_nsqd_says_while_messages_flow(
    daemons: Cluster, admin: Admin
) -> None:
    nsqds = daemons.nsqds[:2]
    async with traffic(daemons):
        await until(lambda: _moving(nsqds))
        for _ in range(10):
            before = [await stats(nsqd) for nsqd in nsqds]
            page = (await admin.get("/topics/orders/archive")).body
            told: dict[str, Any] = await admin.json("/api/topics/orders/archive")
            after = [await stats(nsqd) for nsqd in nsqds]
            records = {record["node"]: record for record in told["nodes"]}
            for nsqd, low, high in zip(nsqds, before, after, strict=True):
                assert between(low, row(page, nsqd), high)
                assert between(low, records[f"127.0.0.1:{nsqd.http_port}"], high)
            for key in COUNTS.values():
                assert told[key] == sum(record[key] for record in told["nodes"])
    # The messages rest, so nsqd, the page and /api must agree in every figure.
    now = [await _settled(nsqd) for nsqd in nsqds]
    page = (await admin.get("/topics/orders/archive")).body
    told = await admin.json("/api/topics/orders/archive")
    records = {record["node"]: record for record in told["nodes"]}
    for nsqd, expected in zip(nsqds, now, strict=True):
        assert row(page, nsqd) == expected
        record = records[f"127.0.0.1:{nsqd.http_port}"]
        assert {key: record[key] for key in COUNTS.values()} == expected


async def _moving(nsqds: list[Nsqd]) -> bool:
    return all([(await stats(nsqd))["message_count"] > 20 for nsqd in nsqds])


async def _settled(nsqd: Nsqd) -> dict[str, int]:
    """The channel once its consumer has gone and nothing of it is in flight."""
    found: dict[str, int] = {}

    async def settled() -> bool:
        before = await stats(nsqd)
        found.update(await stats(nsqd))
        return before == found and not found["client_count"] and not found["in_flight_count"]

    await until(settled)
    return found
