"""What a client without TLS, certificate, secret or permission gets, for each command; nothing happens."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.daemon import RESPONSE, Client, Closed, Frame, Nsqd, dpub, identify, mpub, pub, sized, until
from tests.security.auth_server import AuthServer, entry
from tests.security.certificates import Authority
from tests.security.upgraded import auth, connect, negotiate

ID = b"0123456789abcdef"
COMMANDS = {
    "PUB": pub("events", b"body"),
    "MPUB": mpub("events", [b"one", b"two"]),
    "DPUB": dpub("events", 10, b"body"),
    "SUB": b"SUB events people\n",
    "AUTH": auth("secret"),
    "RDY": b"RDY 1\n",
    "FIN": b"FIN %b\n" % ID,
    "REQ": b"REQ %b 0\n" % ID,
    "TOUCH": b"TOUCH %b\n" % ID,
    "CLS": b"CLS\n",
    "NOP": b"NOP\n",
    "WHAT": b"WHAT\n",
}
GUARDED = ["PUB", "MPUB", "DPUB", "SUB"]


async def last_error(client: Client) -> bytes:
    error = await client.error()
    await client.closed()
    return error


async def topics(nsqd: Nsqd) -> dict[str, int]:
    """How many messages each topic has had."""
    _, answer = await nsqd.http("GET", "/stats?format=json")
    return {topic["topic_name"]: topic["message_count"] for topic in json.loads(answer)["topics"]}


# ---- without TLS


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("command", COMMANDS)
async def test_without_tls_nothing_but_identify_is_allowed(
    start: Callable[..., Nsqd], tls_flags: list[str], command: str, in_pieces: bool
) -> None:
    nsqd = start(*tls_flags, "--tls-required=tcp-https")
    async with await nsqd.connect() as client:
        assert (await negotiate(client))["tls_v1"] is False
        if in_pieces:
            client.send(COMMANDS[command][:-1])
            await asyncio.sleep(0.01)
            client.send(COMMANDS[command][-1:])
        else:
            client.send(COMMANDS[command])
        error = await last_error(client)
    assert error == f"E_INVALID cannot {command} in current state (TLS required)".encode()
    assert await topics(nsqd) == {}


async def test_with_tls_required_every_plain_request_is_answered_403(
    start: Callable[..., Nsqd], tls_flags: list[str]
) -> None:
    nsqd = start(*tls_flags, "--tls-required")
    port = nsqd.wait_for_line("HTTPS: listening on").rpartition(":")[2]
    for method, path in [("GET", "/ping"), ("POST", "/pub?topic=t"), ("PUT", "/nowhere"), ("OPTIONS", "/")]:
        status, body = await nsqd.http(method, path, b"body")
        assert (status, body) == (403, b'{"message": "TLS_REQUIRED", "https_port": %b}' % port.encode())


async def test_without_an_https_listener_its_port_is_0(
    start: Callable[..., Nsqd], tls_flags: list[str]
) -> None:
    nsqd = start(*tls_flags, "--tls-required", "--https-address=")
    assert await nsqd.http("GET", "/ping") == (403, b'{"message": "TLS_REQUIRED", "https_port": 0}')


async def test_a_client_auth_policy_makes_tls_required(
    start: Callable[..., Nsqd], tls_flags: list[str]
) -> None:
    nsqd = start(*tls_flags, "--tls-client-auth-policy=require")
    assert (await nsqd.http("GET", "/ping"))[0] == 403
    async with await nsqd.connect() as client:
        client.send(b"NOP\n")
        assert await last_error(client) == b"E_INVALID cannot NOP in current state (TLS required)"


# ---- without the right certificate


@pytest.mark.parametrize(
    ("policy", "shown", "reason"),
    [
        ("require", "none", b"tls: peer did not return a certificate"),
        ("require-verify", "none", b"tls: peer did not return a certificate"),
        ("require-verify", "stranger", b"tls: certificate verify failed"),
    ],
)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_without_the_right_certificate_there_is_no_tls(
    start: Callable[..., Nsqd],
    tls_flags: list[str],
    authority: Authority,
    tmp_path: Path,
    policy: str,
    shown: str,
    reason: bytes,
    version: ssl.TLSVersion,
) -> None:
    nsqd = start(*tls_flags, f"--tls-client-auth-policy={policy}", f"--tls-root-ca-file={authority.file}")
    stranger = Authority(tmp_path / "strangers").sign("stranger")
    context = authority.client_context(stranger if shown == "stranger" else None)
    context.maximum_version = version
    async with await nsqd.connect() as client:
        await negotiate(client, tls_v1=True)
        with pytest.raises((ssl.SSLError, Closed, ConnectionError)):
            await publish_over_tls(client, context)
    nsqd.wait_for_line(f"E_IDENTIFY_FAILED IDENTIFY failed {reason.decode()}")
    assert not [line for line in nsqd.lines if "TOPIC(" in line]


async def publish_over_tls(client: Client, context: ssl.SSLContext) -> None:
    """With TLS 1.3 the client believes itself ready before its certificate is looked at."""
    await client.writer.start_tls(context, server_hostname="localhost")
    client.send(pub("events", b"body"))
    await client.ok()


async def test_require_takes_any_certificate(
    start: Callable[..., Nsqd],
    tls_flags: list[str],
    authority: Authority,
    auth_server: AuthServer,
    tmp_path: Path,
) -> None:
    auth_server.secrets["x"] = [entry()]
    nsqd = start(*tls_flags, "--tls-client-auth-policy=require", f"--auth-http-address={auth_server.address}")
    stranger = Authority(tmp_path / "strangers").sign("stranger", "a stranger")
    async with await connect(nsqd, authority.client_context(stranger), secret="x") as client:
        await client.pub("events", b"body")
    assert auth_server.asked[0][1]["common_name"] == "a stranger"


# ---- without the right secret


@pytest.fixture
def guarded(start: Callable[..., Nsqd], auth_server: AuthServer) -> Nsqd:
    return start(f"--auth-http-address={auth_server.address}")


@pytest.mark.parametrize("command", GUARDED)
async def test_without_auth_it_is_asked_for_first(guarded: Nsqd, command: str) -> None:
    async with await guarded.connect() as client:
        assert (await negotiate(client))["auth_required"] is True
        client.send(COMMANDS[command])
        assert await last_error(client) == f"E_AUTH_FIRST AUTH required before {command}".encode()
    assert await topics(guarded) == {}


@pytest.mark.parametrize("command", ["PUB", "DPUB"])
async def test_publishing_is_refused_after_its_body_has_come(guarded: Nsqd, command: str) -> None:
    """And MPUB and SUB before: a body that is announced too large is the first thing wrong with a PUB."""
    line = COMMANDS[command].partition(b"\n")[0]
    async with await guarded.connect() as client:
        client.send(line + b"\n" + b"\x7f\xff\xff\xff")
        assert (await last_error(client)).startswith(f"E_BAD_MESSAGE {command} message too big".encode())
    async with await guarded.connect() as client:
        client.send(b"MPUB events\n" + b"\x7f\xff\xff\xff")
        assert await last_error(client) == b"E_AUTH_FIRST AUTH required before MPUB"


@pytest.mark.parametrize("name", ["bad topic", "no:topic"])
async def test_a_bad_name_is_told_before_that(guarded: Nsqd, name: str) -> None:
    async with await guarded.connect() as client:
        client.send(b"PUB %b\n" % name.replace(" ", "$").encode() + sized(b"x"))
        assert (await last_error(client)).startswith(b"E_BAD_TOPIC PUB topic name")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no json",
        b"[]",
        b'{"authorizations": []}',
        b'{"ttl": 0, "authorizations": []}',
        b'{"ttl": -1}',
        b'{"ttl": 1.5}',
        b'{"ttl": true}',
        b'{"ttl": 10, "authorizations": [{"topic": "t", "channels": ["c"], "permissions": ["read"]}]}',
        b'{"ttl": 10, "authorizations": [{"topic": "(", "channels": [], "permissions": []}]}',
        b'{"ttl": 10, "authorizations": [{"topic": "t", "channels": ["(?<=x)"], "permissions": []}]}',
        b"[" * 100_000,
    ],
)
async def test_a_bad_answer_is_no_authorization(
    guarded: Nsqd, auth_server: AuthServer, answer: bytes
) -> None:
    auth_server.secrets["s3cret"] = answer
    async with await guarded.connect() as client:
        client.send(auth("s3cret") + COMMANDS["PUB"])
        assert await last_error(client) == b"E_AUTH_FAILED AUTH failed"
    assert await topics(guarded) == {}
    assert guarded.wait_for_line("AUTH: failed to query auth server http://")
    assert not [line for line in guarded.lines if "s3cret" in line]


async def test_a_wrong_secret_is_no_authorization(guarded: Nsqd) -> None:
    async with await guarded.connect() as client:
        client.send(auth("wrong") + COMMANDS["PUB"])
        assert await last_error(client) == b"E_AUTH_FAILED AUTH failed"
    assert await topics(guarded) == {}


async def test_an_empty_list_is_told_apart(guarded: Nsqd, auth_server: AuthServer) -> None:
    auth_server.secrets["secret"] = []
    async with await guarded.connect() as client:
        client.send(auth("secret") + COMMANDS["PUB"])
        assert await last_error(client) == b"E_UNAUTHORIZED AUTH no authorizations found"
    assert await topics(guarded) == {}


async def test_auth_comes_once(guarded: Nsqd, auth_server: AuthServer) -> None:
    auth_server.secrets["secret"] = [entry(), entry("x")]
    async with await guarded.connect() as client:
        client.send(auth("secret"))
        answer = b'{"identity":"who knows 6","identity_url":"http://who.example/","permission_count":2}'
        assert await client.answer() == Frame(RESPONSE, answer)
        client.send(auth("secret"))
        assert await last_error(client) == b"E_INVALID AUTH already set"


async def test_auth_where_there_is_none(nsqd: Nsqd) -> None:
    async with await nsqd.connect() as client:
        client.send(auth("secret"))
        assert await last_error(client) == b"E_AUTH_DISABLED AUTH disabled"


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (b"AUTH x\n", b"E_INVALID AUTH invalid number of parameters"),
        (b"AUTH\n\xff\xff\xff\xff", b"E_BAD_BODY AUTH invalid body size -1"),
        (b"AUTH\n\x7f\xff\xff\xff", b"E_BAD_BODY AUTH body too big 2147483647 > 5242880"),
    ],
)
async def test_auth_that_is_no_auth(guarded: Nsqd, command: bytes, error: bytes) -> None:
    async with await guarded.connect() as client:
        client.send(command)
        assert await last_error(client) == error


async def test_auth_comes_before_sub(guarded: Nsqd, auth_server: AuthServer) -> None:
    auth_server.secrets["secret"] = [entry()]
    async with await connect(guarded, secret="secret") as client:
        await client.sub("events", "people")
        client.send(auth("secret"))
        assert await last_error(client) == b"E_INVALID cannot AUTH in current state"


# ---- without the right permission


@pytest.mark.parametrize(
    ("granted", "allowed"),
    [
        (entry("^other$"), []),
        (entry("^events$", []), []),
        (entry("^events$", ["^people$"]), ["SUB"]),  # to publish, a pattern must match no channel at all
        (entry("^events$", ["^$"]), ["PUB", "MPUB", "DPUB"]),
        (entry("^events$", [".*"], "publish"), ["PUB", "MPUB", "DPUB"]),
        (entry("^events$", [".*"], "subscribe"), ["SUB"]),
        (entry("ven", ["x", "eopl"]), ["SUB"]),  # a search, not a match
        (entry("Events"), []),
        (entry("(?i)EVENTS$"), GUARDED),
        (entry(r"^\pL+$", [".*"]), GUARDED),  # RE2 has it, Python has not
        (entry("^events\\z"), GUARDED),
    ],
)
async def test_what_is_granted_is_allowed_and_nothing_else(
    guarded: Nsqd, auth_server: AuthServer, granted: dict[str, object], allowed: list[str]
) -> None:
    auth_server.secrets["secret"] = [granted]
    published = 0
    for command in GUARDED:
        async with await connect(guarded, secret="secret") as client:
            client.send(COMMANDS[command])
            if command in allowed:
                await client.ok()
                published += {"PUB": 1, "DPUB": 1, "MPUB": 2}.get(command, 0)
            else:
                channel = "people" if command == "SUB" else ""
                error = f'E_UNAUTHORIZED AUTH failed for {command} on "events" "{channel}"'
                assert await last_error(client) == error.encode()
    assert await topics(guarded) == ({"events": published} if allowed else {})


async def test_a_run_of_publishes_does_not_get_past(guarded: Nsqd, auth_server: AuthServer) -> None:
    """The short way for PUB after PUB: neither by another topic, nor by a body in pieces."""
    auth_server.secrets["secret"] = [entry("^events$")]
    async with await connect(guarded, secret="secret") as client:
        for _ in range(3):
            await client.pub("events", b"x")
        client.send(pub("events", b"x") * 10 + pub("others", b"y") * 10)
        for _ in range(10):
            await client.ok()
        assert await last_error(client) == b'E_UNAUTHORIZED AUTH failed for PUB on "others" ""'
    assert await topics(guarded) == {"events": 13}


# ---- asking: what happens meanwhile, which server, and when again


async def test_while_it_is_asked_the_connection_waits_and_others_do_not(
    guarded: Nsqd, auth_server: AuthServer
) -> None:
    auth_server.secrets["secret"] = [entry()]
    auth_server.silent = True
    waiting = await guarded.connect()
    waiting.send(identify() + auth("slow") + pub("events", b"x") * 1000)
    await waiting.ok()
    await until(lambda: auth_server.asked)
    auth_server.silent = False
    async with await connect(guarded, secret="secret") as client:
        await client.pub("others", b"x")
    assert await topics(guarded) == {"others": 1}
    waiting.abort()


async def test_what_was_sent_behind_auth_is_done_in_order(guarded: Nsqd, auth_server: AuthServer) -> None:
    auth_server.secrets["secret"] = [entry()]
    async with await guarded.connect() as client:
        client.send(
            identify() + auth("secret") + pub("events", b"a" * 100_000) + mpub("events", [b"b", b"c"])
        )
        client.send(dpub("events", 0, b"d") + b"SUB events people\nRDY 10\n")
        await client.ok()
        assert (await client.answer()).data.startswith(b'{"identity":')
        for _ in range(4):
            await client.ok()
        assert [(await client.message()).body for _ in range(4)] == [b"a" * 100_000, b"b", b"c", b"d"]


@pytest.mark.parametrize("command", GUARDED)
async def test_what_is_too_old_is_asked_again(guarded: Nsqd, auth_server: AuthServer, command: str) -> None:
    auth_server.secrets["secret"] = [entry()]
    auth_server.ttl = 1
    async with await connect(guarded, secret="secret") as client:
        await client.pub("warm", b"x")
        await client.pub("warm", b"x")  # on the short way
        assert len(auth_server.asked) == 1
        await asyncio.sleep(1.1)
        client.send(COMMANDS[command])
        await client.ok()
        assert len(auth_server.asked) == 2
        assert auth_server.asked[0] == auth_server.asked[1]


async def test_what_is_granted_no_more_is_not_done(guarded: Nsqd, auth_server: AuthServer) -> None:
    auth_server.secrets["secret"] = [entry()]
    auth_server.ttl = 1
    refused, failed = [await connect(guarded, secret="secret") for _ in range(2)]
    for client in (refused, failed):
        for _ in range(3):
            await client.pub("events", b"x")
    await asyncio.sleep(1.1)
    auth_server.secrets["secret"] = [entry("^others$")]
    refused.send(pub("events", b"x") * 10)
    assert await last_error(refused) == b'E_UNAUTHORIZED AUTH failed for PUB on "events" ""'
    del auth_server.secrets["secret"]
    failed.send(pub("events", b"x"))
    assert await last_error(failed) == b"E_AUTH_FAILED AUTH failed"
    assert await topics(guarded) == {"events": 6}


async def test_a_consumer_is_not_asked_again(guarded: Nsqd, auth_server: AuthServer) -> None:
    auth_server.secrets["secret"] = [entry()]
    auth_server.ttl = 1
    async with await connect(guarded, secret="secret") as client:
        await client.sub("events", "people", rdy=1)
        await asyncio.sleep(1.1)
        await guarded.post("/pub?topic=events", b"x")
        client.fin(await client.message())
        await client.caught_up()
    assert len(auth_server.asked) == 1


@pytest.mark.parametrize("method", ["get", "post"])
async def test_every_server_is_asked_until_one_answers(
    start: Callable[..., Nsqd], auth_server: AuthServer, method: str
) -> None:
    async with AuthServer({"s&1 ü": b"broken"}) as broken, AuthServer(silent=True) as silent:
        auth_server.secrets["s&1 ü"] = [entry()]
        nsqd = start(
            f"--auth-http-address={broken.address}",
            "--auth-http-address=127.0.0.1:1",
            f"--auth-http-address={silent.address}",
            f"--auth-http-address=http://{auth_server.address}/elsewhere",
            f"--auth-http-request-method={method}",
            "--http-client-request-timeout=1s",
        )
        connections = 0
        while not broken.asked:  # which is the first only by chance
            async with await connect(nsqd, secret="s&1 ü") as client:
                await client.pub("events", b"x")
            connections += 1
        assert len(auth_server.asked) == connections
    head = auth_server.heads[0]
    assert head.startswith("POST /elsewhere HTTP" if method == "post" else "GET /elsewhere?common_name=&")
    assert ("Content-Type: application/json" in head) is (method == "post")
    for asked in auth_server.asked:
        assert asked == (
            method.upper(),
            {"secret": "s&1 ü", "remote_ip": "127.0.0.1", "tls": "false", "common_name": ""},
        )


async def test_an_https_server_is_verified(start: Callable[..., Nsqd], authority: Authority) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.folder / "server.pem", authority.folder / "server.key")
    async with AuthServer({"secret": [entry()]}, tls=context) as server:
        address = f"--auth-http-address=https://{server.address}/auth"
        good = start(address, f"--tls-root-ca-file={authority.file}")
        async with await connect(good, secret="secret") as client:
            await client.pub("events", b"x")
        bad = start(address)
        async with await bad.connect() as client:
            client.send(auth("secret"))
            assert await last_error(client) == b"E_AUTH_FAILED AUTH failed"


async def test_a_server_that_wants_tls_says_where(start: Callable[..., Nsqd], authority: Authority) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.folder / "server.pem", authority.folder / "server.key")
    async with AuthServer({"secret": [entry()]}, tls=context) as secure:
        port = int(secure.address.rpartition(":")[2])
        body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % port
        async with AuthServer({"secret": body}, status=403) as plain:
            nsqd = start(f"--auth-http-address={plain.address}", f"--tls-root-ca-file={authority.file}")
            async with await connect(nsqd, secret="secret") as client:
                await client.pub("events", b"x")
    assert len(secure.asked) == 1
