"""`/config`: which clients may use it, what it tells, what it changes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from tests.daemon import Nsqlookupd
from tests.nsqadmin.served import Admin, free_address, serving

NSQD = f"--nsqd-http-address={free_address()}"


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    loggers = logging.getLogger(), logging.getLogger("nsquark")
    levels = [each.level for each in loggers]
    async with serving(NSQD, "--http-client-secret=sesame", "--admin-user=ann") as running:
        yield running
    for each, level in zip(loggers, levels, strict=True):
        each.setLevel(level)  # a PUT of log_level has changed it for the process


@pytest.mark.parametrize(
    ("key", "body"),
    [
        ("nsqlookupd_http_addresses", b"[]"),
        ("nsqd_http_addresses", f'["{NSQD.partition("=")[2]}"]'.encode()),
        ("admin_users", b'["ann"]'),
        ("proxy_graphite", b"false"),
        ("statsd_interval", b"60000000000"),
        ("http_client_connect_timeout", b"2000000000"),
        ("log_level", b"2"),
        ("statsd_prefix", b"nsq.%s"),
        ("graphite_url", b""),
    ],
    ids=lambda value: (
        value if isinstance(value, str) else ""
    ),  # a port would name the test differently each time
)
async def test_every_option_can_be_read(admin: Admin, key: str, body: bytes) -> None:
    answer = await admin.get(f"/config/{key}")
    assert (answer.status, answer.body) == (200, body)


async def test_text_has_a_type_unless_it_is_empty(admin: Admin) -> None:
    assert (await admin.get("/config/statsd_prefix")).headers["content-type"] == "text/plain; charset=utf-8"
    assert "content-type" not in (await admin.get("/config/graphite_url")).headers


@pytest.mark.parametrize("key", ["nope", "lookupd_http_address", "config", "http_client_secret", "warnings"])
async def test_what_is_no_option_or_a_secret_is_refused(admin: Admin, key: str) -> None:
    for method, body in (("GET", b""), ("PUT", b"x")):
        answer = await admin.ask(method, f"/config/{key}", body)
        assert (answer.status, answer.json) == (400, {"message": "INVALID_OPTION"})


async def test_the_nsqlookupds_can_be_replaced(admin: Admin, nsqlookupd: Nsqlookupd) -> None:
    await nsqlookupd.post("/topic/create?topic=t")
    assert (await admin.get("/api/topics")).status == 502
    body = [nsqlookupd.http_address]
    answer = await admin.ask("PUT", "/config/nsqlookupd_http_addresses", body)
    assert (answer.status, answer.json) == (200, body)
    assert (await admin.json("/api/topics"))["topics"] == ["t"]


async def test_the_log_level_is_a_bare_word(admin: Admin) -> None:
    answer = await admin.ask("PUT", "/config/log_level", b"WARN")
    assert (answer.status, answer.body) == (200, b"3")
    assert (await admin.get("/config/log_level")).body == b"3"


@pytest.mark.parametrize(
    ("key", "body", "status"),
    [
        ("log_level", b'"debug"', 400),
        ("log_level", b"", 413),
        ("log_level", b"x" * ((1 << 20) + 1), 413),
        ("nsqlookupd_http_addresses", b"a:1", 400),
        ("nsqlookupd_http_addresses", b"[1]", 400),
        ("nsqlookupd_http_addresses", b'{"a":1}', 400),
    ],
)
async def test_a_value_that_does_not_fit_is_refused(admin: Admin, key: str, body: bytes, status: int) -> None:
    answer = await admin.ask("PUT", f"/config/{key}", body)
    assert (answer.status, answer.json) == (status, {"message": "INVALID_VALUE"})


async def test_only_the_network_may(admin: Admin) -> None:
    async with serving(NSQD, "--allow-config-from-cidr=10.0.0.0/8") as other:
        for method in ("GET", "PUT"):
            answer = await other.ask(method, "/config/log_level", b"debug", X_Forwarded_For="10.0.0.1")
            assert (answer.status, answer.json) == (403, {"message": "FORBIDDEN"})
    async with serving(NSQD, "--allow-config-from-cidr=") as everybody:
        assert (await everybody.get("/config/log_level")).status == 200
