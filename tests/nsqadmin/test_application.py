"""What is around the routes: base path, methods, errors, compression."""

from __future__ import annotations

import gzip

import pytest

from tests.daemon import Nsqd
from tests.nsqadmin.served import free_address, serving

NSQD = f"--nsqd-http-address={free_address()}"


async def test_ping_asks_nobody() -> None:
    async with serving(NSQD) as admin:
        answer = await admin.get("/ping")
        assert (answer.status, answer.body) == (200, b"OK")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert "date" in answer.headers
        assert "server" not in answer.headers


async def test_an_unknown_path_is_not_found() -> None:
    async with serving(NSQD) as admin:
        for path in ("/nope", "/api", "/api/nope", "/api/topics/a/b/c", "/render"):
            answer = await admin.get(path)
            assert (answer.status, answer.json) == (404, {"message": "NOT_FOUND"})


async def test_a_wrong_method_is_told_the_right_ones() -> None:
    async with serving(NSQD) as admin:
        answer = await admin.ask("PUT", "/api/topics/t")
        assert (answer.status, answer.json) == (405, {"message": "METHOD_NOT_ALLOWED"})
        assert answer.headers["allow"] == "DELETE, GET, OPTIONS, POST"
        answer = await admin.ask("OPTIONS", "/api/nodes")
        assert (answer.status, answer.body, answer.headers["allow"]) == (200, b"", "GET, OPTIONS")
        assert (await admin.ask("TRACE", "/api/nodes")).status == 405


@pytest.mark.parametrize(
    ("path", "location"),
    [("/ping/", "/ping"), ("/api/topics/?a=b", "/api/topics?a=b"), ("//evil.example/", "/evil.example")],
)
async def test_a_slash_at_the_end_leads_to_the_path_without_it(path: str, location: str) -> None:
    async with serving(NSQD) as admin:
        answer = await admin.get(path)
        assert (answer.status, answer.headers["location"]) == (301, location)
        answer = await admin.ask("POST", path)
        assert (answer.status, answer.headers["location"]) == (308, location)


@pytest.mark.parametrize("base", ["admin/nsq/", "/admin/nsq", "//admin//nsq"])
async def test_everything_is_under_the_base_path(base: str) -> None:
    async with serving(NSQD, f"--base-path={base}") as admin:
        assert (await admin.get("/admin/nsq/ping")).body == b"OK"
        answer = await admin.get("/admin/nsq/")
        assert (answer.status, answer.headers["location"]) == (301, "/admin/nsq")
        for path in ("/", "/ping", "/admin", "/admin/nsqping", "/api/topics", "/admin/nsq/nope"):
            assert (await admin.get(path)).json == {"message": "NOT_FOUND"}
        assert (await admin.get("/config/log_level")).status == 404


async def test_long_answers_are_compressed_for_those_who_ask(nsqd: Nsqd) -> None:
    for number in range(100):
        await nsqd.post(f"/topic/create?topic=a-rather-long-topic-name-{number}")
    async with serving(f"--nsqd-http-address={nsqd.http_address}") as admin:
        plain = await admin.get("/api/topics")
        packed = await admin.get("/api/topics", Accept_Encoding="gzip")
        assert "content-encoding" not in plain.headers
        assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "Accept-Encoding")
        assert gzip.decompress(packed.body) == plain.body
        assert len(packed.body) * 3 < len(plain.body)
