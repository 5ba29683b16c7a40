"""nsqds that require TLS and a secret, and an nsqlookupd behind TLS, seen through nsqadmin."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.daemon import Nsqd, Nsqlookupd
from tests.nsqadmin.served import serving
from tests.security.auth_server import AuthServer, entry
from tests.security.certificates import Authority


class Guarded(NamedTuple):
    nsqd: Nsqd
    authority: Authority

    def flags(self, secret: str = "everything") -> list[str]:
        return [
            f"--nsqd-http-address={self.nsqd.http_address}",
            f"--http-client-tls-root-ca-file={self.authority.file}",
            f"--http-client-tls-cert={self.authority.folder / 'client.pem'}",
            f"--http-client-tls-key={self.authority.folder / 'client.key'}",
            f"--http-client-secret={secret}",
        ]


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    """An nsqd that lets no client in without a certificate and a secret."""
    authority = Authority(tmp_path / "certificates")
    certificate, key = authority.sign("server")
    authority.sign("client")
    async with AuthServer({"everything": [entry()], "little": [entry("^other$")]}) as auth:
        flags = (
            "--broadcast-address=127.0.0.1",
            f"--tls-cert={certificate}",
            f"--tls-key={key}",
            f"--tls-root-ca-file={authority.file}",
            "--tls-client-auth-policy=require-verify",
            "--tls-required=true",
            "--https-address=127.0.0.1:0",
            f"--auth-http-address={auth.address}",
            "--http-auth",
        )
        with Nsqd(tmp_path / "data", *flags).start() as nsqd:
            yield Guarded(nsqd, authority)


async def test_reads_and_actions_pass_with_certificate_and_secret(guarded: Guarded) -> None:
    async with serving(*guarded.flags()) as admin:
        assert await admin.json("/api/topics") == {"topics": [], "message": ""}
        nodes = (await admin.json("/api/nodes"))["nodes"]
        assert [node["http_port"] for node in nodes] == [guarded.nsqd.http_port]
        assert (await admin.get("/config/http_client_tls_cert")).status == 200
        assert (await admin.json(f"/api/nodes/{guarded.nsqd.http_address}"))["topics"] == []


async def test_a_wrong_secret_is_an_upstream_error_that_does_not_repeat_it(guarded: Guarded) -> None:
    for secret in ("wrong", "little"):
        async with serving(*guarded.flags(secret)) as admin:
            for path in ("/api/topics/t", "/api/topics", "/api/counter"):
                answer = await admin.get(path)
                if answer.status == 200:  # what any known secret may read
                    assert secret == "little"
                    continue
                assert answer.status == 502
                assert secret.encode() not in answer.body


async def test_without_a_certificate_nothing_is_read(guarded: Guarded) -> None:
    flags = [flag for flag in guarded.flags() if "tls-cert" not in flag and "tls-key" not in flag]
    async with serving(*flags) as admin:
        answer = await admin.get("/api/topics")
        assert answer.status == 502
        assert answer.json["message"].startswith("UPSTREAM_ERROR: failed to query any nsqd: ")


async def test_without_the_authority_the_nsqd_is_not_believed(guarded: Guarded) -> None:
    async with serving(f"--nsqd-http-address={guarded.nsqd.http_address}") as admin:
        answer = await admin.get("/api/topics")
        assert answer.status == 502
        assert "certificate" in answer.json["message"].lower()


@asynccontextmanager
async def tls_in_front_of(lookupd: Nsqlookupd, authority: Authority) -> AsyncIterator[str]:
    """An address that speaks TLS and passes everything on to an nsqlookupd."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", lookupd.http_port)
        await asyncio.gather(pass_on(reader, inner_writer), pass_on(inner_reader, writer))

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(*authority.sign("proxy"))
    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_an_nsqlookupd_is_asked_and_told_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.sign("client")
    tls = (
        f"--http-client-tls-root-ca-file={authority.file}",
        f"--http-client-tls-cert={tmp_path / 'client.pem'}",
        f"--http-client-tls-key={tmp_path / 'client.key'}",
    )
    with Nsqlookupd().start() as lookupd:
        async with tls_in_front_of(lookupd, authority) as address:
            async with serving(f"--lookupd-http-address={address}", *tls) as admin:
                await admin.done("POST", "/api/topics", {"topic": "orders"})
                assert await admin.json("/api/topics") == {"topics": ["orders"], "message": ""}
                assert address.encode() in (await admin.get("/lookup")).body
            async with serving(f"--lookupd-http-address={address}", tls[0]) as admin:  # shows no certificate
                assert (await admin.get("/api/topics")).status == 502
