"""Finding a group's members by its name: nsqlookupds list nodes, and nodes tell their group."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nsquark.client import Config, Producer
from nsquark.client.events import DiscoveryFailed, Event
from nsquark.client.producer.group import GroupMembers
from nsquark.errors import ConnectFailed, PublishTimeout
from tests.client.producer.group.members import CONFIG, Member

pytestmark = pytest.mark.usefixtures("tidy")


class Node:
    """An HTTP server that answers each path with a document, and writes down what it was asked."""

    def __init__(self, **documents: Any) -> None:
        self.documents = documents
        self.asked: list[str] = []
        self.headers: list[str] = []
        self.address = ""

    @property
    def listed(self) -> dict[str, object]:
        """The node as an nsqlookupd lists it."""
        return {
            "broadcast_address": "127.0.0.1",
            "http_port": int(self.address.rpartition(":")[2]),
            "tcp_port": 1,
        }

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split()[1]
        self.asked.append(path)
        self.headers.append(head)
        document = self.documents.get(path.strip("/"))
        status = "404 Not Found" if document is None else "200 OK"
        body = json.dumps(document or {"message": "NOT_FOUND"}).encode()
        writer.write(f"HTTP/1.1 {status}\r\nX-Nsq-Content-Type: nsq; version=1.0\r\n".encode())
        writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()


@asynccontextmanager
async def node(**documents: Any) -> AsyncIterator[Node]:
    made = Node(**documents)
    async with await asyncio.start_server(made.answer, "127.0.0.1", 0) as server:
        made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield made


def in_group(group: str, *members: Member, http: str = "") -> dict[str, object]:
    told = [{"member": "m", "tcp_address": each.address, "http_address": http} for each in members]
    return {"group": group, "state": "in-sync", "primary": None, "members": told}


def lookupd(*nodes: Node) -> dict[str, object]:
    return {"producers": [each.listed for each in nodes]}


def members(*lookupds: str, events: list[Event] | None = None, config: Config = CONFIG) -> GroupMembers:
    told = events if events is not None else []
    return GroupMembers((), "orders", lookupds, config, told.append)


async def test_a_producer_finds_a_group_by_its_name() -> None:
    async with Member() as a, Member() as b, Member() as other:
        await b.lead()
        await other.lead()
        async with (
            node(replica=in_group("orders", a, b)) as first,
            node(replica=in_group("clicks", other)) as second,
            node() as gos,
            node(nodes=lookupd(gos, second, first)) as directory,
            Producer(group="orders", lookupd=directory.address, config=CONFIG) as producer,
        ):
            await producer.publish("t", b"1")
            await b.stop()
            waiting = asyncio.create_task(producer.publish("t", b"2"))
            await a.lead()
            await waiting
            assert (b.publishes(), a.publishes(), other.publishes()) == ([b"1"], [b"2"], [])


async def test_a_member_that_no_nsqlookupd_lists_is_asked_once_it_is_known() -> None:
    async with Member() as a, Member() as b, node() as standby:
        async with node(replica=in_group("orders", a, http=standby.address)) as primary:
            async with node(nodes=lookupd(primary)) as directory:
                found = members(directory.address)
                await found.refresh()
                assert found.addresses == [a.address]
                assert not standby.asked
                directory.documents["nodes"] = {"producers": []}
                primary.documents.clear()
                standby.documents["replica"] = in_group("orders", a, b)
                await found.refresh()
                assert found.addresses == [a.address, b.address]


async def test_a_lost_nsqlookupd_leaves_what_is_known() -> None:
    events: list[Event] = []
    async with Member() as a, node(replica=in_group("orders", a)) as primary:
        async with node(nodes=lookupd(primary)) as directory:
            found = members(directory.address, "127.0.0.1:1", events=events)
            await found.refresh()
        assert [each.lookupd for each in events if isinstance(each, DiscoveryFailed)] == ["127.0.0.1:1"]
        await found.refresh()
        assert found.addresses == [a.address]
        assert len(primary.asked) == 2


async def test_nodes_of_other_groups_are_not_asked_again_soon() -> None:
    async with node() as gos, node(replica={"state": "primary", "followers": []}) as single:
        async with node(nodes=lookupd(gos, single)) as directory:
            found = members(directory.address)
            for _ in range(3):
                await found.refresh()
            assert (len(directory.asked), gos.asked, single.asked) == (3, ["/replica"], ["/replica"])


async def test_nodes_get_the_secret() -> None:
    config = Config(auth_secret="s3cret")
    async with node() as gos, node(nodes=lookupd(gos)) as directory:
        await members(directory.address, config=config).refresh()
        assert "Authorization: Bearer s3cret" in gos.headers[0]
        assert "Authorization: Bearer s3cret" in directory.headers[0]
        await members(
            directory.address, config=Config(auth_secret="s", lookupd_authorization=False)
        ).refresh()
        assert "Authorization" not in directory.headers[1]


@pytest.mark.parametrize(
    "answer",
    [
        {"group": "orders"},
        {"group": "orders", "members": [7, {}, {"tcp_address": 5}, {"tcp_address": "no port"}], "primary": 3},
    ],
)
async def test_an_answer_without_addresses_is_no_failure(answer: dict[str, object]) -> None:
    async with node(replica=answer) as strange, node(nodes=lookupd(strange)) as directory:
        found = members(directory.address)
        await found.refresh()
        assert found.addresses == []


async def test_a_group_that_nobody_knows_is_named_in_the_error() -> None:
    async with node(nodes={"producers": [{"broadcast_address": 7}]}) as directory:
        async with Producer(group="orders", lookupd=[directory.address], config=CONFIG) as producer:
            with pytest.raises(PublishTimeout, match=f"'orders'.*no node that {directory.address} list"):
                await producer.publish("t", b"x", timeout=0.2)
            with pytest.raises(ConnectFailed, match="'orders' has no primary"):
                await producer.ping(0.1)
