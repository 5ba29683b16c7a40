"""TLS and compression of nsqd: its start, the upgrade step by step, HTTPS, certificates that change."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from nsquark.wire.compression import IDENTIFIER, Deflate
from tests.daemon import PATIENCE, RESPONSE, Client, Nsqd, identify, pub, until
from tests.security.certificates import Authority
from tests.security.upgraded import compress_with, connect, negotiate

OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"


# ---- the start


def refusal(tmp_path: Path, *flags: str) -> str:
    """What nsqd says when it does not start."""
    command = Nsqd(tmp_path, "--https-address=127.0.0.1:0", *flags).command()
    ended = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 1
    return ended.stderr.decode().rpartition("FATAL: ")[2].strip()


def test_what_is_wrong_with_the_files_is_told_in_nsqs_order(tmp_path: Path, authority: Authority) -> None:
    begins = "failed to instantiate nsqd - "
    no_ca = tmp_path / "no_ca.pem"
    no_ca.write_text("nothing")
    cert, key = authority.folder / "server.pem", authority.folder / "server.key"
    other_key = authority.folder / "client.key"
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        subprocess.run(
            ["openssl", "pkcs8", "-topk8", "-in", key, "-passout", "pass:x"], capture_output=True, check=True
        ).stdout
    )
    for flags, reason in [
        (["--tls-cert=/no/where"], "failed to build TLS config - open /no/where: no such file or directory"),
        ([f"--tls-cert={cert}"], "failed to build TLS config - open : no such file or directory"),
        ([f"--tls-cert={no_ca}", f"--tls-key={key}"], "failed to build TLS config - no certificate reads: "),
        (
            [f"--tls-cert={cert}", f"--tls-key={no_ca}"],
            "failed to build TLS config - the key does not read: ",
        ),
        (
            [f"--tls-cert={cert}", f"--tls-key={encrypted}"],
            "failed to build TLS config - the key is encrypted",
        ),
        ([f"--tls-cert={cert}", f"--tls-key={other_key}"], "failed to build TLS config - tls: "),
        (
            [f"--tls-cert={cert}", f"--tls-key={key}", f"--tls-root-ca-file={no_ca}"],
            "failed to build TLS config - no certificate reads: ",
        ),
        (["--tls-required"], "cannot require TLS client connections without TLS key and cert"),
        (
            ["--tls-client-auth-policy=require", f"--tls-root-ca-file={no_ca}"],
            "cannot require TLS client connections without TLS key and cert",
        ),
        (
            [f"--tls-root-ca-file={no_ca}", "--auth-http-request-method=put"],
            "failed to build client TLS config - failed to append certs from pem",
        ),
        (
            ["--tls-root-ca-file=/no"],
            "failed to build client TLS config - open /no: no such file or directory",
        ),
        (["--http-auth"], "--http-auth needs --auth-http-address"),
    ]:
        assert refusal(tmp_path, *flags).startswith(begins + reason), flags


@pytest.mark.parametrize(
    ("minimum", "offered", "granted"),
    [
        ("tls1.0", "TLSv1_2", "TLS1.2"),
        ("tls1.0", "TLSv1", "TLS1.0"),
        ("tls1.1", "TLSv1_1", "TLS1.1"),
        ("tls1.2", "TLSv1_2", "TLS1.2"),
        ("tls1.3", "TLSv1_3", "TLS1.3"),
        ("tls1.1", "TLSv1", ""),
        ("tls1.2", "TLSv1_1", ""),
        ("tls1.3", "TLSv1_2", ""),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_the_lowest_version(
    start: Callable[..., Nsqd],
    tls_flags: list[str],
    authority: Authority,
    minimum: str,
    offered: str,
    granted: str,
) -> None:
    nsqd = start(*tls_flags, f"--tls-min-version={minimum}")
    context = authority.client_context()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion[offered]
    async with await nsqd.connect() as client:
        await negotiate(client, tls_v1=True)
        if not granted:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await client.writer.start_tls(context, server_hostname="localhost")
            nsqd.wait_for_line("E_IDENTIFY_FAILED IDENTIFY failed tls: ")
            return
        await client.writer.start_tls(context, server_hostname="localhost")
        await client.ok()
        await client.pub("events", b"x")
        (told,) = json.loads((await nsqd.http("GET", "/stats?format=json"))[1])["producers"]
        assert told["tls_version"] == granted


# ---- the upgrade, step by step


async def test_what_was_published_before_is_answered_before(
    start: Callable[..., Nsqd], tls_flags: list[str], authority: Authority
) -> None:
    """In clear, then comes the JSON, then the handshake; with --sync-every=1 answers take their time."""
    nsqd = start(*tls_flags, "--sync-every=1")
    for _ in range(5):
        async with await nsqd.connect() as client:
            client.send(pub("events", b"x") * 3 + identify(feature_negotiation=True, tls_v1=True))
            for _ in range(3):
                await client.ok()
            assert (await client.answer()).data.startswith(b'{"max_rdy_count"')
            await client.writer.start_tls(authority.client_context(), server_hostname="localhost")
            await client.ok()
            await client.pub("events", b"y")


async def test_what_came_behind_an_identify_is_lost(start: Callable[..., Nsqd]) -> None:
    nsqd = start()
    async with await nsqd.connect() as client:
        client.send(identify(feature_negotiation=True, deflate=True) + pub("events", b"lost"))
        assert json.loads((await client.answer()).data)["deflate"] is True
        compress_with(client, Deflate())
        await client.ok()
        await client.pub("events", b"x")
    _, answer = await nsqd.http("GET", "/stats?format=json")
    assert json.loads(answer)["topics"][0]["message_count"] == 1


@pytest.mark.parametrize("layer", ["tls_v1", "snappy", "deflate"])
async def test_a_second_upgrade_is_refused(
    start: Callable[..., Nsqd], tls_flags: list[str], authority: Authority, layer: str
) -> None:
    nsqd = start(*tls_flags)
    async with await connect(nsqd, authority.client_context()) as client:
        assert (await negotiate(client))["tls_v1"] is False  # which asks for none, and is answered
        client.send(identify(feature_negotiation=True, **{layer: True}))
        assert await client.error() == b"E_IDENTIFY_FAILED IDENTIFY failed the connection is upgraded already"
        await client.closed()


@pytest.mark.parametrize(
    ("flags", "asked", "answered"),
    [
        ([], {"tls_v1": True}, {"tls_v1": False}),
        (["--snappy=false"], {"snappy": True, "deflate": True}, {"snappy": False, "deflate": True}),
        (["--deflate=false"], {"snappy": True, "deflate": True}, {"snappy": True, "deflate": False}),
        ([], {"deflate": True, "deflate_level": 9}, {"deflate_level": 6, "max_deflate_level": 6}),
        (["--max-deflate-level=9"], {"deflate": True, "deflate_level": 9}, {"deflate_level": 9}),
        ([], {"deflate": True, "deflate_level": 1}, {"deflate_level": 1}),
        ([], {"deflate": True, "deflate_level": -3}, {"deflate_level": 6}),
        ([], {"deflate_level": 2}, {"deflate": False, "deflate_level": 6}),
        (["--max-deflate-level=4"], {}, {"deflate": False, "deflate_level": 4}),
    ],
)
async def test_what_is_asked_for_and_granted(
    start: Callable[..., Nsqd], flags: list[str], asked: dict[str, object], answered: dict[str, object]
) -> None:
    async with await start(*flags).connect() as client:
        assert answered.items() <= (await negotiate(client, **asked)).items()


async def test_without_negotiation_nothing_is_upgraded(start: Callable[..., Nsqd]) -> None:
    async with await start().connect() as client:
        client.send(identify(snappy=True, deflate=True, tls_v1=True))
        await client.ok()
        await client.pub("events", b"x")


async def raw_after_identify(client: Client, **asked: object) -> asyncio.StreamReader:
    await negotiate(client, **asked)
    return client.reader


async def test_snappy_begins_with_its_identifier_and_small_things_are_stored(
    start: Callable[..., Nsqd],
) -> None:
    async with await start().connect() as client:
        reader = await raw_after_identify(client, snappy=True)
        assert await reader.readexactly(len(IDENTIFIER) + 8 + len(OK)) == (
            IDENTIFIER + b"\x01\x0e\x00\x00" + bytes.fromhex("26982bcf") + OK
        )


async def test_deflate_is_raw_and_flushed(start: Callable[..., Nsqd]) -> None:
    async with await start().connect() as client:
        reader = await raw_after_identify(client, deflate=True)
        inflater = zlib.decompressobj(-15)
        said = b""
        while not said.endswith(b"\x00\x00\xff\xff"):
            said += await reader.read(100)
        assert inflater.decompress(said) == OK


async def test_no_heartbeat_comes_in_the_middle(
    start: Callable[..., Nsqd], tls_flags: list[str], authority: Authority
) -> None:
    nsqd = start(*tls_flags)
    async with await nsqd.connect() as client:
        await negotiate(client, tls_v1=True, heartbeat_interval=1000)
        await asyncio.sleep(1.5)
        await client.writer.start_tls(authority.client_context(), server_hostname="localhost")
        await client.ok()
        await until(lambda: heard(client), within=3)


async def heard(client: Client) -> bool:
    return await client._read_frame() == (RESPONSE, b"_heartbeat_")


async def test_a_failed_handshake_is_told_in_clear(start: Callable[..., Nsqd], tls_flags: list[str]) -> None:
    nsqd = start(*tls_flags)
    error = b"E_IDENTIFY_FAILED IDENTIFY failed tls: first record does not look like a TLS handshake"
    async with await nsqd.connect() as client:
        await negotiate(client, tls_v1=True)
        client.send(pub("events", b"x"))
        assert await client.error() == error
        await client.closed()
    async with await nsqd.connect() as client:
        await negotiate(client, tls_v1=True)
        client.send(b"\x16\x03\x01\x00\x05hello")
        alert = await client.reader.readexactly(7)
        assert alert[:1] == b"\x15"
        assert (await client.error()).startswith(b"E_IDENTIFY_FAILED IDENTIFY failed tls: ")
        await client.closed()
    async with await nsqd.connect() as client:
        await negotiate(client, tls_v1=True)
        client.half_close()
        assert await client.error() == b"E_IDENTIFY_FAILED IDENTIFY failed EOF"


async def test_the_end_is_announced_in_tls(
    start: Callable[..., Nsqd], tls_flags: list[str], authority: Authority
) -> None:
    """A close_notify: a client can tell the end from a connection that was cut."""
    nsqd = start(*tls_flags)
    async with await connect(nsqd, authority.client_context()) as client:
        client.send(b"WHAT\n")
        assert await client.error() == b"E_INVALID invalid command WHAT"
        assert await client.reader.read() == b""


async def test_a_client_that_says_goodbye_is_let_go(
    start: Callable[..., Nsqd], tls_flags: list[str], authority: Authority
) -> None:
    nsqd = start(*tls_flags)
    client = await connect(nsqd, authority.client_context())
    await client.sub("events", "people")
    client.close()
    nsqd.wait_for_line("exiting ioloop")


async def test_messages_cut_anywhere_come_through(
    start: Callable[..., Nsqd], tls_flags: list[str], authority: Authority
) -> None:
    nsqd = start(*tls_flags)
    for compression in ("snappy", "deflate"):
        async with await connect(nsqd, authority.client_context(), compression) as client:
            everything = b"".join(pub("events", b"%d" % n * 50) for n in range(20))
            for at in range(0, len(everything), 7):
                client.send(everything[at : at + 7])
            for _ in range(20):
                await client.ok()


# ---- HTTPS


async def https(nsqd: Nsqd, context: ssl.SSLContext | None, request: bytes, host: str = "localhost") -> bytes:
    port = int(nsqd.wait_for_line("HTTPS: listening on").rpartition(":")[2])
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname=host if context else None
        )
        try:
            writer.write(request)
            return await reader.read()
        finally:
            writer.close()


async def test_https_serves_what_http_does(
    start: Callable[..., Nsqd], tls_flags: list[str], authority: Authority
) -> None:
    nsqd = start(*tls_flags, "--tls-required")
    context = authority.client_context()
    body = b"x" * 300_000
    request = b"POST /pub?topic=events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    end = b"GET /stats?format=json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = await https(nsqd, context, request * 3 + end)
    assert answer.count(b"HTTP/1.1 200 OK") == 4
    assert json.loads(answer.rpartition(b"\r\n\r\n")[2])["topics"][0]["message_count"] == 3


async def test_a_log_is_read_through_tls(
    start: Callable[..., Nsqd], authority: Authority, tls_flags: list[str]
) -> None:
    """Large answers are written by threads, which must not go past the encryption."""
    nsqd = start(*tls_flags)
    async with await nsqd.connect() as client:
        for number in range(4):
            await client.mpub("t", [b"%d" % number * 1000] * 600)
    _, plain = await nsqd.http("GET", "/log/read?topic=t&max_bytes=100000000")
    request = b"GET /log/read?topic=t&max_bytes=100000000 HTTP/1.1\r\nHost: nsqd\r\nConnection: close\r\n\r\n"
    answer = await https(nsqd, authority.client_context(), request)
    assert answer.partition(b"\r\n\r\n")[2] == plain
    assert len(plain) > 2_400_000
    bare = await https(nsqd, authority.client_context(), request.replace(b"?", b"?index=0&", 1))
    assert bare.partition(b"\r\n\r\n")[2] == plain[: -4 * 2400]


async def test_https_wants_the_certificates_that_tcp_wants(
    start: Callable[..., Nsqd], tls_flags: list[str], authority: Authority
) -> None:
    nsqd = start(
        *tls_flags, "--tls-client-auth-policy=require-verify", f"--tls-root-ca-file={authority.file}"
    )
    ping = b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    shown = (authority.folder / "client.pem", authority.folder / "client.key")
    assert (await https(nsqd, authority.client_context(shown), ping)).endswith(b"OK")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await https(nsqd, authority.client_context(), ping)
    nsqd.wait_for_line("HTTPS: no TLS with 127.0.0.1:[0-9]+: tls: peer did not return a certificate")


async def test_plain_http_at_the_https_port_is_told_so(
    start: Callable[..., Nsqd], tls_flags: list[str]
) -> None:
    answer = await https(start(*tls_flags), None, b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 400 Bad Request\r\n")


# ---- certificates that change


async def test_a_hangup_brings_new_certificates_and_drops_nobody(
    start: Callable[..., Nsqd], tmp_path: Path
) -> None:
    first = Authority(tmp_path / "certificates")
    cert, key = first.sign("server")
    nsqd = start(f"--tls-cert={cert}", f"--tls-key={key}", "--https-address=127.0.0.1:0")
    old = await connect(nsqd, first.client_context())
    await old.pub("events", b"x")

    good = cert.read_bytes()
    cert.write_text("damaged")
    nsqd.process.send_signal(signal.SIGHUP)
    nsqd.wait_for_line("ERROR: TLS: the certificates stay as they are")
    cert.write_bytes(good)
    async with await connect(nsqd, first.client_context()) as client:
        await client.pub("events", b"x")

    second = Authority(tmp_path / "certificates", "other")
    second.sign("server")
    nsqd.process.send_signal(signal.SIGHUP)
    nsqd.wait_for_line("INFO: TLS: certificates read again")
    async with await connect(nsqd, second.client_context()) as client:
        await client.pub("events", b"x")
    with pytest.raises(ssl.SSLCertVerificationError):
        await connect(nsqd, first.client_context())
    await old.pub("events", b"x")
    old.close()
    assert nsqd.stop() == 0


async def test_a_stop_ends_handshakes_and_layers(
    start: Callable[..., Nsqd], tls_flags: list[str], authority: Authority
) -> None:
    nsqd = start(*tls_flags)
    client = await connect(nsqd, authority.client_context(), "deflate")
    await client.pub("events", b"x")
    half = await nsqd.connect()
    await negotiate(half, tls_v1=True)
    half.send(b"\x16\x03\x01")
    assert nsqd.stop(within=5) == 0
    assert await half.reader.read() == b""
    half.close()
