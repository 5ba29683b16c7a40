"""`--http-auth`: the HTTP API demands what a TCP client must have."""

from __future__ import annotations

import asyncio
import json
import struct
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
    nsqd: Nsqd, method: str, path: str, secret: str = "", scheme: str = "Bearer", body: bytes = b""
) -> tuple[int, object, bytes]:
    """The status, the body (as JSON, if it is) and the head."""
    authorization = f"Authorization: {scheme} {secret}\r\n" if secret else ""
    body = body or (b"info" if method == "PUT" else b"body")
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


async def test_reports_of_a_channel_need_its_subscribers_and_those_of_the_node_need_everything(
    guarded: Nsqd,
) -> None:
    for path in ("/topic/create?topic=events", "/channel/create?topic=events&channel=people"):
        assert await status_of(guarded, "POST", path, "all") == 200
    here = "topic=events&channel=people"
    # 400: it may, and what it sends is no report
    for secret, tell, ask_here, ask_topic, ask_all in [
        ("all", 400, 200, 200, 200),
        ("reader", 400, 200, 403, 403),
        ("publisher", 403, 403, 403, 403),
        ("two halves", 400, 200, 200, 403),
    ]:
        assert await status_of(guarded, "POST", f"/channel/report?{here}", secret) == tell, secret
        assert await status_of(guarded, "GET", f"/channel/reports?{here}", secret) == ask_here, secret
        assert await status_of(guarded, "GET", "/channel/reports?topic=events", secret) == ask_topic, secret
        assert await status_of(guarded, "GET", "/channel/reports", secret) == ask_all, secret
        assert await status_of(guarded, "GET", "/channel/reports?channel=people", secret) == ask_all, secret


async def test_a_grant_for_one_channel_reads_the_log_through_it_and_nothing_else(guarded: Nsqd) -> None:
    for path in ("/topic/create?topic=events", "/topic/create?topic=others"):
        assert await status_of(guarded, "POST", path, "all") == 200
    assert await status_of(guarded, "POST", "/pub?topic=events", "all") == 200
    for route in ("/log/range", "/log/read", "/topic/peek"):
        for query, reader, publisher, two_halves in [
            ("topic=events&through=people", 200, 403, 200),  # a channel that is not there yet
            ("topic=events", 403, 403, 200),
            ("topic=events&through=", 403, 403, 200),
            ("topic=events&through=people2", 403, 403, 200),
            ("topic=events&through=people&channel=others", 403, 403, None),
            ("topic=events&through=others&channel=people", 403, 403, None),
            ("topic=others&through=people", 403, 403, 200),
            ("through=people", 400, 400, 400),
        ]:
            path = f"{route}?{query}"
            assert await status_of(guarded, "GET", path, "reader") == reader, path
            assert await status_of(guarded, "GET", path, "publisher") == publisher, path
            if two_halves is not None:
                assert await status_of(guarded, "GET", path, "two halves") == two_halves, path
    # what the parameter does not open
    for method, path in [
        ("GET", "/channel/reports?topic=events&through=people"),
        ("GET", "/channel/reports?through=people"),
        ("GET", "/channel/peek?topic=events&channel=others&through=people"),
        ("POST", "/channel/seek?topic=events&channel=others&to=latest&through=people"),
        ("POST", "/channel/commit?topic=events&channel=others&to=0&through=people"),
        ("POST", "/channel/lease?topic=events&channel=others&owner=me&through=people"),
        ("POST", "/channel/hold_timeout?topic=events&channel=others&to=0&through=people"),
        ("POST", "/topic/retention?topic=events&bytes=0&through=people"),
        ("POST", "/topic/empty?topic=events&through=people"),
        ("POST", "/pub?topic=events&through=people"),
    ]:
        assert await status_of(guarded, method, path, "reader") == 403, path
    # everything that a streaming query does
    here = "topic=events&channel=people"
    for method, path in [
        ("GET", "/log/range?topic=events&through=people"),
        ("POST", f"/channel/lease?{here}&owner=me"),
        ("POST", f"/channel/create?{here}&from=earliest"),
        ("GET", f"/log/range?{here}&commit=0&moves=0"),
        ("GET", "/log/read?topic=events&through=people"),
        ("POST", f"/channel/commit?{here}&to=1"),
        ("POST", f"/channel/hold_timeout?{here}&to=1h"),
        ("GET", "/topic/retention?topic=events"),
    ]:
        assert await status_of(guarded, method, path, "reader") == 200, path


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


async def staged(nsqd: Nsqd, what: str, secret: str, body: bytes = b'{"partitions":[]}') -> int:
    return (await ask(nsqd, "POST", f"/staged/{what}", secret, body=body))[0]


ONE = struct.pack(">ii", 1, 1) + b"x"
PARTITION = {"partition": 0, "attempt": "a", "messages": 1}
STAGED_ONE = json.dumps({"partitions": [PARTITION]}).encode()
HOME = "home=a&home_url=http://127.0.0.1:1"


async def test_an_application_belongs_to_those_who_may_publish_to_all_of_its_topics(
    guarded: Nsqd, auth_server: AuthServer
) -> None:
    auth_server.secrets["other publisher"] = [entry("^others$", ["^$"], "publish")]

    async def others_are_refused() -> None:
        for secret in ("reader", "other publisher"):
            for what in (
                "put?app=nightly&batch=1&partition=1&attempt=b&seq=0&topic=others",
                f"prepare?app=nightly&batch=1&{HOME}",
                "publish?app=nightly&batch=1",
                "abort?app=nightly&batch=1",
            ):
                body = ONE if what.startswith("put") else STAGED_ONE
                assert await staged(guarded, what, secret, body) == 403, (secret, what)
                if not what.startswith("put"):  # nor may they with a batch of nothing, which drops the rest
                    assert await staged(guarded, what, secret) == 403, (secret, what)

    put = "put?app=nightly&batch=1&partition=0&attempt=a&seq=0&topic=events"
    assert await staged(guarded, put, "publisher", ONE) == 200
    await others_are_refused()
    guarded.kill()
    guarded.restart()  # what is staged must be read before it is known whose it is
    await others_are_refused()
    assert await staged(guarded, f"prepare?app=nightly&batch=1&{HOME}", "publisher", STAGED_ONE) == 200
    assert await staged(guarded, "publish?app=nightly&batch=1", "publisher", STAGED_ONE) == 200
    await others_are_refused()  # by what it has published
    guarded.kill()
    guarded.restart()
    await others_are_refused()
    topics = (await ask(guarded, "GET", "/stats?format=json&topic=events", "all"))[1]["topics"]  # type: ignore[index]
    assert [each["depth"] for each in topics] == [1]
    assert await staged(guarded, put.replace("batch=1", "batch=2"), "publisher", ONE) == 200
    assert await staged(guarded, "abort?app=nightly&batch=2", "publisher") == 200


async def test_a_new_application_needs_a_client_that_may_publish(guarded: Nsqd) -> None:
    for what in (f"prepare?app=new&batch=1&{HOME}", "publish?app=new&batch=1", "abort?app=new&batch=1"):
        assert await staged(guarded, what, "reader") == 403, what
    assert (await ask(guarded, "GET", "/staged", "all"))[1]["apps"] == []  # type: ignore[index]
    for what in (f"prepare?app=new&batch=1&{HOME}", "publish?app=new&batch=1", "abort?app=new&batch=1"):
        assert await staged(guarded, what, "publisher") == 200, what
