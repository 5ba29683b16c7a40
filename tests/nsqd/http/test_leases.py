"""/channel/lease: which reader has it, and when it is free again."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.daemon import Nsqd, until


@pytest.fixture
async def path(nsqd: Nsqd) -> str:
    await nsqd.post("/topic/create?topic=t")
    return "/channel/lease?topic=t&channel=c&owner="


async def test_a_lease_has_one_owner(nsqd: Nsqd, path: str) -> None:
    assert json.loads(await nsqd.post(path + "one"))["owner"] == "one"
    await nsqd.post(path + "one")
    status, answer = await nsqd.http("POST", path + "two")
    assert (status, json.loads(answer)) == (409, {"message": "CHANNEL_LEASED", "owner": "one"})
    await nsqd.post("/channel/lease?topic=t&channel=d&owner=two")


async def test_a_held_lease_is_free_when_its_holder_goes(nsqd: Nsqd, path: str) -> None:
    host, _, port = nsqd.http_address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST %bone&hold_ms=60000 HTTP/1.1\r\nHost: nsqd\r\n\r\n" % path.encode())

    async def status() -> int:
        return (await nsqd.http("POST", path + "two"))[0]

    # the first that asks has it for a while, so ask as the holder
    await nsqd.post(path + "one")
    assert await status() == 409
    writer.transport.abort()

    async def free() -> bool:
        return await status() == 200

    await until(free, 5)


async def test_a_hold_ends_in_its_time_and_the_lease_stays(nsqd: Nsqd, path: str) -> None:
    assert json.loads(await nsqd.post(path + "one&hold_ms=20"))["lease_ms"] == 10_000
    assert (await nsqd.http("POST", path + "two"))[0] == 409


async def test_a_lease_lasts_as_long_as_its_owner_asked(nsqd: Nsqd, path: str) -> None:
    assert json.loads(await nsqd.post(path + "one&lease_ms=20"))["lease_ms"] == 20

    async def free() -> bool:
        return (await nsqd.http("POST", path + "two"))[0] == 200

    await until(free, 5)  # a lease without `lease_ms` would last longer


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("topic=t&channel=c", 400, "MISSING_ARG_OWNER"),
        ("topic=t&channel=c&owner=", 400, "INVALID_ARG_OWNER"),
        ("topic=t&channel=c&owner=" + "x" * 201, 400, "INVALID_ARG_OWNER"),
        ("topic=t&channel=c&owner=x&hold_ms=60001", 400, "INVALID_ARG_HOLD_MS"),
        ("topic=t&channel=c&owner=x&lease_ms=10001", 400, "INVALID_ARG_LEASE_MS"),
        ("topic=t&channel=!&owner=x", 400, "INVALID_ARG_CHANNEL"),
        ("topic=gone&channel=c&owner=x", 404, "TOPIC_NOT_FOUND"),
    ],
)
async def test_what_cannot_be_leased(nsqd: Nsqd, path: str, query: str, status: int, message: str) -> None:
    got, answer = await nsqd.http("POST", f"/channel/lease?{query}")
    assert (got, json.loads(answer)["message"]) == (status, message)
