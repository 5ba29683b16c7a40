"""Graphite behind nsqadmin, played by a scripted server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.http.web import Web, answer
from tests.nsqadmin.served import Admin, free_address, serving

NSQD = f"--nsqd-http-address={free_address()}"
RATE = "/api/graphite?metric=rate&target=sum%28x%29"


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with Web() as web:
        yield web


@pytest.fixture
async def admin(web: Web) -> AsyncIterator[Admin]:
    url = web.url.replace("//", "//user:p%40ss@") + "/graphite/"
    async with serving(NSQD, f"--graphite-url={url}", "--proxy-graphite", "--base-path=admin") as running:
        yield running


async def test_pictures_are_passed_on_below_the_path_of_graphite(admin: Admin, web: Web) -> None:
    web.answers["/graphite/render"] = answer(
        200, "Content-Type: image/png", "Set-Cookie: a=b", body=b"\x89PNG"
    )
    got = await admin.get("/admin/render?target[]=summarize(a,%22b%22)&from=-2h")
    assert (got.status, got.body, got.headers["content-type"]) == (200, b"\x89PNG", "image/png")
    assert "set-cookie" not in got.headers
    assert got.headers["content-security-policy"] == "sandbox"
    [asked] = web.got
    assert asked.target == "/graphite/render?target[]=summarize(a,%22b%22)&from=-2h"
    assert asked.headers["authorization"] == "Basic dXNlcjpwQHNz"
    assert asked.headers["x-forwarded-for"] == "127.0.0.1"


async def test_without_the_proxy_there_is_no_such_route() -> None:
    async with serving(NSQD, "--graphite-url=http://127.0.0.1:1") as admin:
        assert (await admin.get("/render")).status == 404


async def test_a_graphite_that_is_gone_is_an_upstream_error() -> None:
    async with serving(NSQD, f"--graphite-url=http://{free_address()}", "--proxy-graphite") as admin:
        answer = await admin.get("/render?target=x")
        assert (answer.status, answer.json["message"][:15]) == (502, "UPSTREAM_ERROR:")
        assert (await admin.get(RATE)).status == 500


@pytest.mark.parametrize(("value", "rate"), [(b"123", "2.05"), (b"0", "0.00"), (b"-1", "N/A")])
async def test_a_rate_is_the_first_datapoint_by_the_interval(
    admin: Admin, web: Web, value: bytes, rate: str
) -> None:
    web.answers["/graphite/render"] = answer(
        200, body=b'[{"target":"x","datapoints":[[%b,1],[7,2]]}]' % value
    )
    assert await admin.json("/admin" + RATE) == {"rate": rate}
    assert web.got[0].target == "/graphite/render?format=json&from=-120sec&target=sum%28x%29&until=-60sec"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"null", b'[{"datapoints":[[null,1]]}]', b'[{"datapoints":[]}]']
)
async def test_no_datapoint_is_an_internal_error(admin: Admin, web: Web, body: bytes) -> None:
    web.answers["/graphite/render"] = answer(200, body=body)
    got = await admin.get("/admin" + RATE)
    assert (got.status, got.json) == (500, {"message": "INTERNAL_ERROR"})


async def test_metric_and_target_are_required(admin: Admin) -> None:
    for query, code in (("", "METRIC"), ("?metric=depth&target=x", "METRIC"), ("?metric=rate", "TARGET")):
        got = await admin.get("/admin/api/graphite" + query)
        assert (got.status, got.json) == (400, {"message": f"INVALID_ARG_{code}"})
