"""/config: options are told, and some can be changed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.nsqd.api import Api, running

MAX_MSG = 100


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running(tmp_path, max_msg_size=MAX_MSG, max_req_timeout=60.0) as api:
        yield api


def error(message: str) -> bytes:
    return b'{"message":"%b"}' % message.encode()


@pytest.fixture
def log_levels() -> Iterator[None]:
    """Leaves logging as it was."""
    loggers = [logging.getLogger(), logging.getLogger("nsquark")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.mark.parametrize(
    ("option", "value", "content_type"),
    [
        ("max_msg_size", b"100", "application/json; charset=utf-8"),
        ("max_req_timeout", b"60000000000", "application/json; charset=utf-8"),
        ("snappy", b"true", "application/json; charset=utf-8"),
        ("log_level", b"2", "application/json; charset=utf-8"),
        ("tls_required", b"0", "application/json; charset=utf-8"),
        ("tls_min_version", b"769", "application/json; charset=utf-8"),
        ("nsqlookupd_tcp_addresses", b"[]", "application/json; charset=utf-8"),
        ("tcp_address", b"127.0.0.1:0", "text/plain; charset=utf-8"),
        ("log_prefix", b"[nsqd] ", "text/plain; charset=utf-8"),
    ],
)
async def test_options_are_told(api: Api, option: str, value: bytes, content_type: str) -> None:
    answer = await api.get(f"/config/{option}?ignored=%zz")
    assert (answer.status, answer.body) == (200, value)
    assert answer.headers["Content-Type"] == content_type


async def test_an_empty_text_has_no_type(api: Api) -> None:
    answer = await api.get("/config/statsd_address")
    assert (answer.status, answer.body) == (200, b"")
    assert "Content-Type" not in answer.headers


@pytest.mark.parametrize("option", ["nothing", "node_id", "max-msg-size", "version", "config", "warnings"])
async def test_unknown_options_are_invalid(api: Api, option: str) -> None:
    for answer in (await api.get(f"/config/{option}"), await api.put(f"/config/{option}", b"1")):
        assert (answer.status, answer.body) == (400, error("INVALID_OPTION"))


async def test_most_options_cannot_be_changed(api: Api) -> None:
    answer = await api.put("/config/max_msg_size", b"1")
    assert (answer.status, answer.body) == (400, error("INVALID_OPTION"))


@pytest.mark.usefixtures("log_levels")
async def test_the_log_level_can_be_changed(api: Api) -> None:
    for word, number, level in [(b"DEBUG", b"1", logging.DEBUG), (b"fatal", b"5", logging.CRITICAL)]:
        answer = await api.put("/config/log_level", word)
        assert (answer.status, answer.body) == (200, number)
        assert logging.getLogger("nsquark.http").getEffectiveLevel() == level
    for word in (b'"info"', b"info\n", b"chatty", b"2"):
        answer = await api.put("/config/log_level", word)
        assert (answer.status, answer.body) == (400, error("INVALID_VALUE"))


async def test_the_lookupds_can_be_changed(api: Api) -> None:
    answer = await api.put("/config/nsqlookupd_tcp_addresses", b'["a:1", "b:2"]')
    assert (answer.status, answer.body) == (200, b'["a:1","b:2"]')
    assert api.broker.options.lookupd_tcp_address == ["a:1", "b:2"]
    for value in (b"a:1", b'"a:1"', b"[1]", b"{}", b"[", b"\xff"):
        answer = await api.put("/config/nsqlookupd_tcp_addresses", value)
        assert (answer.status, answer.body) == (400, error("INVALID_VALUE"))
    assert (await api.put("/config/nsqlookupd_tcp_addresses", b"null")).body == b"[]"


async def test_brackets_without_end_are_no_lookupds(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        answer = await api.put("/config/nsqlookupd_tcp_addresses", b"[" * 100_000)
        assert (answer.status, answer.body) == (400, error("INVALID_VALUE"))


@pytest.mark.parametrize("body", [b"", b"x" * (MAX_MSG + 1)])
@pytest.mark.parametrize("option", ["log_level", "nothing"])
async def test_values_of_no_or_too_great_length_are_invalid(api: Api, option: str, body: bytes) -> None:
    answer = await api.put(f"/config/{option}", body)
    assert (answer.status, answer.body) == (413, error("INVALID_VALUE"))
