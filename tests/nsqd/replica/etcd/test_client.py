"""The client against a real etcd, and against servers that are none."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from nsquark.errors import UsageError
from nsquark.http.client.single_request import request
from nsquark.nsqd.replica.etcd.client import (
    EtcdClient,
    EtcdError,
    EtcdRefused,
    EtcdUnavailable,
    LeaseNotFound,
)
from nsquark.nsqd.replica.etcd.transactions import Answer, Delete, LeasedBy, ModifiedAt, Put, Transaction
from tests.nsqd.replica.etcd_process import etcd, why_not
from tests.security.certificates import Authority

needs_etcd = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
PATIENT = 30.0  # no test waits for it: a busy machine may


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with etcd(tmp_path_factory.mktemp("etcd") / "data") as found:
        yield found


@asynccontextmanager
async def client_of(*endpoints: str, **more: object) -> AsyncIterator[EtcdClient]:
    client = EtcdClient(endpoints, **{"timeout": PATIENT} | more)  # type: ignore[arg-type]
    try:
        yield client
    finally:
        client.close()


async def once(client: EtcdClient, key: bytes, value: bytes) -> Answer:
    return await client.commit(Transaction((ModifiedAt(key, 0),), (Put(key, value),), key))


@needs_etcd
async def test_a_transaction_is_committed_once_and_a_refusal_reads_the_keys(endpoint: str) -> None:
    async with client_of(endpoint) as client:
        first = await once(client, b"once/\xff\0", b"one")
        assert first.succeeded
        assert first.found == ()
        second = await once(client, b"once/\xff\0", b"two")
        assert not second.succeeded
        assert [(each.key, each.value, each.revision) for each in second.found] == [
            (b"once/\xff\0", b"one", first.revision)
        ]
        assert (await client.range(b"once/")).found == second.found
        assert (await client.range(b"nothing/")).found == ()


@needs_etcd
async def test_a_delete_compares_like_a_put(endpoint: str) -> None:
    async with client_of(endpoint) as client:
        put = await once(client, b"gone", b"x")
        refused = await client.commit(Transaction((ModifiedAt(b"gone", 1),), (Delete(b"gone"),), b"gone"))
        assert not refused.succeeded
        delete = Transaction((ModifiedAt(b"gone", put.revision),), (Delete(b"gone"),), b"gone")
        assert (await client.commit(delete)).succeeded
        assert (await client.range(b"gone")).found == ()


@needs_etcd
async def test_a_key_ends_with_its_lease(endpoint: str) -> None:
    async with client_of(endpoint) as client:
        lease = await client.grant(60)
        assert (await client.commit(Transaction((), (Put(b"leased", b"x", lease),), b"leased"))).succeeded
        assert (await client.range(b"leased")).found[0].lease == lease
        mine = Transaction((LeasedBy(b"leased", lease),), (Put(b"leased", b"y", lease),), b"leased")
        assert (await client.commit(mine)).succeeded
        assert await client.keep_alive(lease)
        assert await client.revoke(lease)
        assert (await client.range(b"leased")).found == ()
        assert not await client.keep_alive(lease)
        assert not await client.revoke(lease)
        assert not (await client.commit(mine)).succeeded
        with pytest.raises(LeaseNotFound):
            await client.commit(Transaction((), (Put(b"leased", b"x", lease),), b"leased"))


@needs_etcd
async def test_an_endpoint_that_is_dead_or_silent_is_passed_over(endpoint: str) -> None:
    async with silent() as mute, client_of("127.0.0.1:1", mute, endpoint, timeout=3.0) as client:
        assert (await client.range(b"any")).revision > 0
        assert client._first == 2  # the one that answered is asked first now


@needs_etcd
async def test_a_restarted_etcd_is_found_again(tmp_path: Path) -> None:
    with etcd(tmp_path / "data") as first:
        async with client_of(first) as client:
            put = await once(client, b"kept", b"x")
            assert put.succeeded
    port = urlsplit(first).port or 0
    with etcd(tmp_path / "data", port=port) as again:
        async with client_of(again) as client:
            assert (await client.range(b"kept")).found[0].revision == put.revision


@needs_etcd
async def test_a_user_and_a_token_that_has_ended(tmp_path: Path) -> None:
    with etcd(tmp_path / "data") as url:
        for path, document in (
            ("user/add", {"name": "root", "password": "secret"}),
            ("role/add", {"name": "root"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/add", {"name": "guest", "password": "guest"}),
            ("enable", {}),
        ):
            answer = await request("POST", f"{url}/v3/auth/{path}", body=json.dumps(document).encode())
            assert answer.status == 200, answer.body
        async with client_of(url, username="root", password="secret") as client:
            assert (await once(client, b"a", b"b")).succeeded
            client._token = "ended.1"
            assert len((await client.range(b"a")).found) == 1
        async with client_of(url) as client:
            with pytest.raises(EtcdRefused, match="user name is empty"):
                await client.range(b"a")
        async with client_of(url, username="root", password="wrong") as client:
            with pytest.raises(EtcdRefused, match="authentication failed"):
                await client.range(b"a")
        async with client_of(url, username="guest", password="guest") as client:
            with pytest.raises(EtcdRefused, match="may not read and write"):
                await client.range(b"a")


@needs_etcd
async def test_tls_with_a_certificate_of_the_client(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.sign("server")
    flags = ["--cert-file", str(certificate), "--key-file", str(key)]
    flags += ["--client-cert-auth", "--trusted-ca-file", str(authority.file)]
    with etcd(tmp_path / "data", *flags, scheme="https") as url:
        context = authority.client_context(authority.sign("client"))
        async with client_of(url.removeprefix("https://"), tls=context) as client:
            assert (await client.range(b"a")).revision > 0
        async with client_of(url) as client:
            with pytest.raises(EtcdUnavailable, match="certificate"):
                await client.range(b"a")


# ---- servers that are no etcd


@asynccontextmanager
async def answering(reply: bytes | None) -> AsyncIterator[str]:
    """A server that gives every request the same answer, or none."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if reply is None:
            await reader.read()
        else:
            writer.write(reply)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def silent() -> AsyncIterator[str]:
    async with answering(None) as address:
        yield address


def ok(document: object) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


async def test_no_endpoint_is_told_with_all_reasons() -> None:
    async with answering(b"hello\r\n") as other, client_of("127.0.0.1:1", other) as client:
        with pytest.raises(EtcdUnavailable, match=r"127.0.0.1:1: no connection.*; http://127"):
            await client.range(b"a")


async def test_a_silent_endpoint_ends_in_time() -> None:
    async with silent() as address, client_of(address, timeout=0.05) as client:
        with pytest.raises(EtcdUnavailable):
            await client.range(b"a")


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"header": {"revision": "x"}},
        {"header": {"revision": float("inf")}},
        {"header": {"revision": "1"}, "kvs": {}},
        {"header": {"revision": "1"}, "kvs": [{"key": "?"}]},
        {"header": {"revision": "1"}, "kvs": [{"key": base64.b64encode(b"a").decode(), "lease": []}]},
    ],
)
async def test_an_answer_that_is_not_readable_is_an_error(document: object) -> None:
    async with answering(ok(document)) as address, client_of(address) as client:
        with pytest.raises(EtcdError, match="etcd: "):
            await client.range(b"a")


@pytest.mark.parametrize("document", [[], "x", {"error": "etcdserver: no leader", "code": 14}])
async def test_what_another_endpoint_may_know_is_unavailable(document: object) -> None:
    async with answering(ok(document)) as address, client_of(address) as client:
        with pytest.raises(EtcdUnavailable):
            await client.range(b"a")


async def test_a_server_that_is_no_etcd_is_told_as_such() -> None:
    """Such as nsqd, which answers in JSON, too."""
    body = b'{"message":"NOT_FOUND"}'
    reply = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    async with answering(reply) as address, client_of(address) as client:
        with pytest.raises(EtcdRefused, match="404, and no error of etcd"):
            await client.range(b"a")


async def test_an_answer_without_end_is_cut_off() -> None:
    endless = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + bytes(5 << 20)
    async with answering(endless) as address, client_of(address) as client:
        with pytest.raises(EtcdUnavailable, match="more than"):
            await client.range(b"a")


@pytest.mark.parametrize("text", ["", "host", "host:port", "ftp://host:1", "http://u@host:1", "host:1/x"])
async def test_an_endpoint_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        EtcdClient([text])


async def test_no_endpoint_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one"):
        EtcdClient([])
