"""Finding nsqds through nsqlookupd: what is asked, what is understood, and what follows."""

from __future__ import annotations

import asyncio
import json
from types import TracebackType

import pytest

from nsquark.client import Config, Consumer
from nsquark.client.config import Reconnect
from nsquark.client.consumer.discovery import Discovery, lookup_url, parse_producers
from nsquark.client.events import DiscoveryFailed, Event, NothingListed
from nsquark.errors import ConnectFailed, ConnectionLost, UsageError
from tests.client.scripted import ScriptedNsqd
from tests.daemon import Nsqd, Nsqlookupd, until

pytestmark = pytest.mark.usefixtures("tidy")

BARE = "X-Nsq-Content-Type: nsq; version=1.0\r\n"


def config(**more: object) -> Config:
    fields = {"lookupd_poll_interval": 0.05, "reconnect": Reconnect(first=0.01, cap=0.05), **more}
    return Config(max_in_flight=4, **fields)  # type: ignore[arg-type]


class ScriptedLookupd:
    """An HTTP server that answers every request with what the test put there, and keeps the requests."""

    def __init__(self, *nsqds: ScriptedNsqd) -> None:
        self.nsqds = list(nsqds)
        self.answer: bytes | None = None  # in place of the list
        self.status = "200 OK"
        self.headers = BARE
        self.requests: list[str] = []
        self.address = ""

    async def __aenter__(self) -> ScriptedLookupd:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
        body = self.answer
        if body is None:
            body = json.dumps({"channels": [], "producers": [producer(nsqd) for nsqd in self.nsqds]}).encode()
        writer.write(
            f"HTTP/1.1 {self.status}\r\n{self.headers}Content-Length: {len(body)}\r\n\r\n".encode() + body
        )
        writer.close()


def producer(nsqd: ScriptedNsqd) -> dict[str, object]:
    host, _, port = nsqd.address.rpartition(":")
    return {"broadcast_address": host, "tcp_port": int(port), "http_port": 1, "version": "1.3.0"}


# ---- words


@pytest.mark.parametrize(
    ("lookupd", "url"),
    [
        ("lk:4161", "http://lk:4161/lookup?topic=t%23ephemeral"),
        ("http://lk:4161/", "http://lk:4161/lookup?topic=t%23ephemeral"),
        ("https://lk:4161/nsq/find", "https://lk:4161/nsq/find?topic=t%23ephemeral"),
        ("lk:4161/?zone=a", "http://lk:4161/lookup?zone=a&topic=t%23ephemeral"),
        ("[::1]:4161", "http://[::1]:4161/lookup?topic=t%23ephemeral"),
    ],
)
def test_the_url(lookupd: str, url: str) -> None:
    assert lookup_url(lookupd, "t#ephemeral") == url


@pytest.mark.parametrize("lookupd", ["lk", "http://lk/", "ftp://lk:21", ":4161", "lk:many", ""])
def test_an_address_without_a_port_is_refused(lookupd: str) -> None:
    with pytest.raises(UsageError, match="nsqlookupd"):
        lookup_url(lookupd, "t")


@pytest.mark.parametrize(
    ("body", "bare", "addresses"),
    [
        (b'{"producers":[{"broadcast_address":"a","tcp_port":4150}]}', True, ["a:4150"]),
        (b'{"producers":[{"broadcast_address":"::1","tcp_port":4150}]}', True, ["[::1]:4150"]),
        (b'{"data":{"producers":[{"broadcast_address":"a","tcp_port":1}]}}', False, ["a:1"]),
        (b'{"status_code":200,"status_txt":"OK","data":null}', False, []),
        (b'{"producers":null}', True, []),
        (b"", True, []),
    ],
)
def test_an_answer_is_understood(body: bytes, bare: bool, addresses: list[str]) -> None:
    assert parse_producers(body, bare) == addresses


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b'{"producers":[1]}',
        b'{"producers":[{}]}',
        b"5",
        b'{"producers":[{"broadcast_address":"a","tcp_port":Infinity}]}',
        b"[" * 100_000,
    ],
)
def test_an_answer_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(ConnectionLost):
        parse_producers(body, True)


# ---- asking


async def test_all_are_asked_and_their_answers_united() -> None:
    async with ScriptedNsqd() as a, ScriptedNsqd() as b, ScriptedNsqd() as c:
        async with ScriptedLookupd(a, b) as one, ScriptedLookupd(b, c) as two:
            discovery = Discovery([one.address, two.address, one.address], "t", config(auth_secret="s"))
            found, failed = await discovery.poll()
            assert (sorted(found), failed) == (sorted(n.address for n in (a, b, c)), {})
            assert [len(lookupd.requests) for lookupd in (one, two)] == [1, 1]
            assert "GET /lookup?topic=t HTTP/1.1" in one.requests[0]
            assert "Accept: application/vnd.nsq; version=1.0" in one.requests[0]
            assert "Authorization: Bearer s" in one.requests[0]


async def test_the_secret_can_be_kept_from_nsqlookupd() -> None:
    async with ScriptedLookupd() as lookupd:
        await Discovery(lookupd.address, "t", config(auth_secret="s", lookupd_authorization=False)).poll()
        assert "Authorization" not in lookupd.requests[0]


async def test_what_one_said_holds_while_it_cannot_be_asked() -> None:
    async with ScriptedNsqd() as a, ScriptedNsqd() as b, ScriptedLookupd(b) as two:
        async with ScriptedLookupd(a) as one:
            discovery = Discovery([one.address, two.address], "t", config())
            await discovery.poll()
        found, failed = await discovery.poll()
        assert sorted(found) == sorted([a.address, b.address])
        assert list(failed) == [one.address]
        two.status = "500 Internal Server Error"
        assert len((await discovery.poll())[1]) == 2


async def test_an_unknown_topic_has_no_nsqds() -> None:
    async with ScriptedLookupd() as lookupd:
        lookupd.status, lookupd.answer = "404 Not Found", b'{"message":"TOPIC_NOT_FOUND"}'
        assert await Discovery(lookupd.address, "t", config()).poll() == ([], {})
        lookupd.answer = b'{"message":"NOT_FOUND"}'
        assert list((await Discovery(lookupd.address, "t", config()).poll())[1]) == [lookupd.address]


async def test_the_envelope_of_old_versions_is_opened() -> None:
    async with ScriptedNsqd() as nsqd, ScriptedLookupd() as lookupd:
        lookupd.headers = ""
        data = {"producers": [producer(nsqd)]}
        lookupd.answer = json.dumps({"status_code": 200, "status_txt": "OK", "data": data}).encode()
        assert (await Discovery(lookupd.address, "t", config()).poll())[0] == [nsqd.address]


async def test_lookupds_can_be_added_and_removed_but_not_the_last() -> None:
    discovery = Discovery("a:1", "t", config())
    discovery.add("b:1")
    discovery.remove("http://a:1/")
    with pytest.raises(UsageError, match="is not among"):
        discovery.remove("a:1")
    with pytest.raises(UsageError, match="the last"):
        discovery.remove("b:1")


# ---- consuming


async def test_a_consumer_follows_what_is_listed() -> None:
    async with ScriptedNsqd() as one, ScriptedNsqd() as two, ScriptedLookupd(one) as lookupd:
        async with Consumer("t", "ch", lookupd=lookupd.address, config=config()) as consumer:
            first = await one.peer()
            lookupd.nsqds.append(two)
            await two.peer()
            assert consumer.stats().discovery_age is not None
            # a connection that lives is kept, listed or not
            lookupd.nsqds.remove(one)
            polls = len(lookupd.requests)
            await until(lambda: len(lookupd.requests) > polls + 2)
            assert not first.closed.is_set()
            # one that is lost is not looked for where it is not listed
            first.drop()
            await until(lambda: len(consumer.stats().connections) == 1)
            polls = len(lookupd.requests)
            await until(lambda: len(lookupd.requests) > polls + 2)
            assert len(one.peers) == 1


async def test_losing_a_connection_asks_again_at_once() -> None:
    async with ScriptedNsqd() as nsqd, ScriptedLookupd(nsqd) as lookupd:
        async with Consumer("t", "ch", lookupd=lookupd.address, config=config(lookupd_poll_interval=300)):
            (await nsqd.peer()).drop()
            await nsqd.peer()
            assert len(lookupd.requests) == 2


async def test_a_node_that_is_not_listed_any_more_can_be_left() -> None:
    async with ScriptedNsqd() as one, ScriptedNsqd() as two, ScriptedLookupd(one, two) as lookupd:
        async with Consumer("t", "ch", lookupd=lookupd.address, config=config(drop_missing_after=2)):
            peer = await one.peer()
            await two.peer()
            lookupd.nsqds.remove(one)
            await peer.until("CLS")
            await peer.closed.wait()


async def test_a_filter_chooses() -> None:
    async with ScriptedNsqd() as one, ScriptedNsqd() as two, ScriptedLookupd(one, two) as lookupd:
        consumer = Consumer(
            "t",
            "ch",
            lookupd=lookupd.address,
            config=config(),
            discovery_filter=lambda addresses: [each for each in addresses if each == two.address],
        )
        async with consumer:
            await two.peer()
            await until(lambda: len(lookupd.requests) > 3)
            assert not one.peers


async def test_trouble_with_a_lookupd_is_reported_and_survived() -> None:
    events: list[Event] = []
    async with ScriptedNsqd() as nsqd, ScriptedLookupd(nsqd) as lookupd:
        lookupd.answer = b"<html>"
        consumer = Consumer("t", "ch", lookupd=lookupd.address, config=config(), on_event=events.append)
        async with consumer:
            await until(lambda: events)
            assert isinstance(events[0], DiscoveryFailed)
            lookupd.answer = None
            await nsqd.peer()


async def test_fail_fast_wants_one_lookupd_that_answers() -> None:
    async with ScriptedLookupd() as gone:
        pass
    with pytest.raises(ConnectFailed):
        await Consumer("t", "ch", lookupd=gone.address, config=config(), fail_fast=True).start()
    async with ScriptedLookupd() as lookupd:
        both = [gone.address, lookupd.address]
        async with Consumer("t", "ch", lookupd=both, config=config(), fail_fast=True):
            pass


async def test_an_nsqd_both_given_and_found_is_connected_to_once() -> None:
    async with ScriptedNsqd() as nsqd, ScriptedLookupd(nsqd) as lookupd:
        settings = config()
        async with Consumer("t", "ch", nsqd=nsqd.address, lookupd=lookupd.address, config=settings):
            (await nsqd.peer()).drop()
            await nsqd.peer()
            await until(lambda: len(lookupd.requests) > 4)
            assert len(nsqd.peers) == 2


# ---- a topic that is not there yet


async def test_a_topic_that_nobody_has_is_told_once_and_found_soon(caplog: pytest.LogCaptureFixture) -> None:
    events: list[Event] = []
    settings = config(lookupd_poll_interval=300.0)
    async with ScriptedNsqd() as nsqd, ScriptedLookupd() as lookupd:
        consumer = Consumer("t", "ch", lookupd=lookupd.address, config=settings, on_event=events.append)
        async with consumer:
            await until(lambda: len(lookupd.requests) == 2)
            lookupd.nsqds.append(nsqd)
            await nsqd.peer()
    assert [each for each in events if isinstance(each, NothingListed)] == [NothingListed("t")]
    assert caplog.text.count(f"no nsqd has topic t yet, by nsqlookupd {lookupd.address}") == 1


def test_the_first_polls_follow_quickly_until_something_is_found() -> None:
    discovery = Discovery("a:1", "t", config(lookupd_poll_interval=60.0, lookupd_poll_jitter=0.0))
    assert [discovery.period(polls, False) for polls in (1, 2, 3, 6, 7, 5000)] == [1, 2, 4, 32, 60, 60]
    assert [discovery.period(polls, True) for polls in (1, 2)] == [60, 60]
    often = Discovery("a:1", "t", config(lookupd_poll_interval=0.05, lookupd_poll_jitter=0.0))
    assert often.period(1, False) == 0.05


async def test_the_tcp_port_of_an_nsqlookupd_gets_a_hint(nsqlookupd: Nsqlookupd, nsqd: Nsqd) -> None:
    for address in (nsqlookupd.tcp_address, nsqd.tcp_address):
        _, failed = await Discovery(address, "t", config()).poll()
        assert "this is a TCP port of NSQ" in str(failed[address])
