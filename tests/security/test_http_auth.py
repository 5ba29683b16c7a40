"""`--http-auth`: the HTTP API demands what a TCP client must have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from tests.daemon import PATIENCE, Nsqd
from tests.security.auth_server import AuthServer, entry
from tests.security.certificates import Authority

SECRETS = {
    "all": [entry()],
    "publisher": [entry("^events$", ["^$"], "publish")],
    "reader": [entry("^events$", ["^people$"], "subscribe")],
    "almost all": [entry("[a-z0-9]"), entry(".*", [".+"])],
    "two halves": [entry(".*", [".*"], "publish"), entry(".*", [".*"], "subscribe")],
    "nothing": [],
}
PUBLISHING = [
    ("POST", "/pub?topic=events"),
    ("POST", "/mpub?topic=events"),
    *(("POST", f"/topic/{verb}?topic=events") for verb in ("create", "pause", "unpause", "empty", "delete")),
]
SUBSCRIBING = [
    *(
        ("POST", f"/channel/{verb}?topic=events&channel=people")
        for verb in ("create", "pause", "unpause", "empty", "delete")
    ),
]
LOOKING = [("GET", "/info"), ("GET", "/stats?format=json"), ("GET", "/config/log_level")]
EVERYTHING = [("PUT", "/config/log_level")]
UNAUTHORIZED = (403, {"message": "UNAUTHORIZED"})


@pytest.fixture
def guarded(start: Callable[..., Nsqd], auth_server: AuthServer) -> Nsqd:
    auth_server.secrets.update(SECRETS)
    return start(f"--auth-http-address={auth_server.address}", "--http-auth")


async def ask(
    nsqd: Nsqd, method: str, path: str, secret: str = "", scheme: str = "Bearer"
) -> tuple[int, object, bytes]:
    """The status, the body (as JSON, if it is) and the head."""
    authorization = f"Authorization: {scheme} {secret}\r\n" if secret else ""
    body = b"info" if method == "PUT" else b"body"
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", nsqd.http_port)
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: x\r\n{authorization}Connection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    try:
        shown = json.loads(answer)
    except ValueError:
        shown = answer
    return int(head.split(b" ")[1]), shown, head


async def status_of(nsqd: Nsqd, method: str, path: str, secret: str) -> int:
    return (await ask(nsqd, method, path, secret))[0]


@pytest.mark.parametrize(("method", "path"), [*PUBLISHING, *SUBSCRIBING, *LOOKING, *EVERYTHING])
async def test_without_a_secret_or_with_a_wrong_one(guarded: Nsqd, method: str, path: str) -> None:
    await ask(guarded, "POST", "/topic/create?topic=events", "all")
    before = (await ask(guarded, "GET", "/stats?format=json", "all"))[1]["topics"]  # type: ignore[index]
    status, body, head = await ask(guarded, method, path)
    assert (status, body) == (401, {"message": "AUTH_FIRST"})
    assert b"\r\nWWW-Authenticate: Bearer\r\n" in head
    for secret in ("wr0ng", "nothing"):
        status, body, head = await ask(guarded, method, path, secret)
        assert (status, body) == (401, {"message": "AUTH_FAILED"})
        assert b"\r\nWWW-Authenticate: Bearer\r\n" in head
    assert (await ask(guarded, method, path, "all", scheme="Basic"))[0] == 401
    after = (await ask(guarded, "GET", "/stats?format=json", "all"))[1]["topics"]  # type: ignore[index]
    assert after == before
    assert not [line for line in guarded.lines if "wr0ng" in line]


async def test_ping_is_open(guarded: Nsqd) -> None:
    assert (await ask(guarded, "GET", "/ping"))[:2] == (200, b"OK")


async def test_who_may_do_what(guarded: Nsqd) -> None:
    for secret, allowed in [
        ("all", [*PUBLISHING[:-1], *SUBSCRIBING, PUBLISHING[-1], *LOOKING, *EVERYTHING]),
        ("two halves", [*PUBLISHING[:-1], *SUBSCRIBING, PUBLISHING[-1], *LOOKING]),
        ("publisher", [*PUBLISHING, *LOOKING]),
        ("reader", [*SUBSCRIBING, *LOOKING]),
        ("almost all", LOOKING),
    ]:
        if secret == "reader":
            await ask(guarded, "POST", "/topic/create?topic=events", "all")
        for method, path in allowed:
            assert await status_of(guarded, method, path, secret) == 200, (secret, path)
        if secret == "almost all":
            assert await status_of(guarded, "PUT", "/config/log_level", secret) == 403
            continue
        for method, path in {*PUBLISHING, *SUBSCRIBING, *EVERYTHING} - set(allowed):
            assert (await ask(guarded, method, path, secret))[:2] == UNAUTHORIZED, (secret, path)


async def test_a_topic_that_is_not_named_is_nobodys(guarded: Nsqd) -> None:
    for method, path in [("POST", "/pub"), ("POST", "/channel/create")]:
        assert (await ask(guarded, method, path, "all"))[:2] == (400, {"message": "MISSING_ARG_TOPIC"})
    assert (await ask(guarded, "POST", "/pub?topic=others", "publisher"))[:2] == UNAUTHORIZED
    other = "/channel/create?topic=events&channel=others"
    assert (await ask(guarded, "POST", other, "reader"))[:2] == UNAUTHORIZED


async def test_an_answer_is_remembered(guarded: Nsqd, auth_server: AuthServer) -> None:
    assert await status_of(guarded, "POST", "/pub?topic=events", "all") == 200
    await asyncio.gather(*(ask(guarded, "POST", "/pub?topic=events", "all") for _ in range(20)))
    assert auth_server.asked == [
        ("GET", {"secret": "all", "remote_ip": "127.0.0.1", "tls": "false", "common_name": ""})
    ]


async def test_an_answer_is_remembered_for_its_time(guarded: Nsqd, auth_server: AuthServer) -> None:
    auth_server.ttl = 1
    assert await status_of(guarded, "POST", "/pub?topic=events", "all") == 200
    auth_server.secrets["all"] = []
    await asyncio.sleep(1.1)
    assert await status_of(guarded, "POST", "/pub?topic=events", "all") == 401


async def test_pipelined_requests_are_answered_in_order(guarded: Nsqd) -> None:
    request = (
        b"POST /pub?topic=%b HTTP/1.1\r\nHost: x\r\nAuthorization: bearer publisher\r\n"
        b"Content-Length: 1\r\n\r\nx"
    )
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", guarded.http_port)
        for topic in (b"events", b"others", b"events"):
            writer.write(request % topic)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
    statuses = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 403, 200]


async def test_over_https_the_certificate_counts(
    start: Callable[..., Nsqd], tls_flags: list[str], auth_server: AuthServer, authority: Authority
) -> None:
    auth_server.secrets.update(SECRETS)
    nsqd = start(
        f"--auth-http-address={auth_server.address}",
        "--http-auth",
        *tls_flags,
        "--tls-client-auth-policy=require",
    )
    port = int(nsqd.wait_for_line("HTTPS: listening on").rpartition(":")[2])
    shown = (authority.folder / "client.pem", authority.folder / "client.key")
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=authority.client_context(shown), server_hostname="localhost"
        )
        writer.write(
            b"POST /pub?topic=events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer publisher\r\n"
            b"Connection: close\r\nContent-Length: 1\r\n\r\nx"
        )
        assert (await reader.read()).endswith(b"OK")
        writer.close()
    assert auth_server.asked[0][1] == {
        "secret": "publisher",
        "remote_ip": "127.0.0.1",
        "tls": "true",
        "common_name": "a client",
    }


async def test_without_the_flag_http_is_open(start: Callable[..., Nsqd], auth_server: AuthServer) -> None:
    """As in NSQ."""
    nsqd = start(f"--auth-http-address={auth_server.address}")
    assert await status_of(nsqd, "POST", "/pub?topic=events", "") == 200
    assert not auth_server.asked
