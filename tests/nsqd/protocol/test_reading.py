"""The ways from a socket to a topic: the short one of publishers that go on, and the long one."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from nsquark import kernel
from nsquark.errors import ProtocolError
from nsquark.nsqd import server
from nsquark.nsqd.protocol.commands import ERRORS_AT_ONCE
from nsquark.nsqd.protocol.connection import Connection
from tests import daemon
from tests.daemon import PATIENCE, Client, until
from tests.nsqd.api import Api, running
from tests.nsqd.harness import Clock, Harness, Publisher, Reader

OK = b"\0\0\0\x06\0\0\0\0OK"


def pub(body: bytes, topic: str = "t") -> bytes:
    return daemon.pub(topic, body)


def mpub(*bodies: bytes) -> bytes:
    return daemon.mpub("t", bodies)


async def oks(client: Client, number: int) -> None:
    for _ in range(number):
        await client.ok()


@pytest.mark.skipif(sys.platform != "linux", reason="epoll is Linux's")
def test_sockets_are_polled_wherever_the_kernel_is_compiled() -> None:
    assert (server.new_poll(bytearray(256 << 10)) is not None) == kernel.COMPILED


@pytest.fixture(params=["poll", "transport"])
async def api(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Api]:
    """nsqd reading with a Poll, where there is one, and with the event loop's transports."""
    if request.param == "transport":
        monkeypatch.setattr(server, "new_poll", lambda shared: None)
    async with running(tmp_path, max_msg_size=1000) as api:
        yield api


async def test_the_same_again_and_again_then_something_else(api: Api) -> None:
    client = await api.client()
    for number in range(5):
        client.send(pub(b"%d" % number))
        await client.ok()
    for number in range(3):
        client.send(mpub(b"a%d" % number, b"b"))
        await client.ok()
    client.send(mpub(b"x") + mpub(b"y", b"z"))
    await oks(client, 2)
    client.send(pub(b"other", "u") + pub(b"more"))
    await oks(client, 2)
    client.send(pub(b"more") + b"NOP\n" + pub(b"more"))
    await oks(client, 2)
    topics = {each["topic_name"]: each for each in (await api.stats())["topics"]}
    assert {name: each["message_count"] for name, each in topics.items()} == {"t": 17, "u": 1}
    assert topics["t"]["message_bytes"] == 5 + 3 * 3 + 3 + 3 * 4
    [producer] = (await api.stats())["producers"]
    assert {each["topic"]: each["count"] for each in producer["pub_counts"]} == {"t": 17, "u": 1}


async def test_a_command_in_two_pieces_on_the_short_way(api: Api) -> None:
    client = await api.client()
    for command in (pub(b"x" * 500), mpub(b"x" * 500, b"y")):
        client.send(command)
        await client.ok()
        for cut in (1, 6, 9, 200):
            client.send(command[:cut])
            await api.stats()  # it has had time to come
            client.send(command[cut:])
            await client.ok()
    assert (await api.topic("t"))["message_count"] == 5 * (1 + 2)


async def test_an_mpub_that_claims_too_much_is_answered_when_its_messages_are_there(api: Api) -> None:
    """As NSQ does: it goes by the sizes inside. On the short way, too."""
    client = await api.client()
    whole = mpub(b"one", b"two")
    head, body = whole[:7], whole[11:]
    for _ in range(3):
        client.send(whole)
        await client.ok()
        client.send(head + (len(body) + 50).to_bytes(4, "big") + body)
        await client.ok()
    assert (await api.topic("t"))["message_count"] == 12


async def test_fins_among_other_commands_and_in_pieces(api: Api) -> None:
    client = await api.client()
    client.send(mpub(*[b"%d" % number for number in range(12)]))
    await client.ok()
    await client.sub("t", "ch", 20)
    fins = [b"FIN " + (await client.message()).id + b"\n" for _ in range(12)]
    client.send(fins[0] + fins[1])
    client.send(fins[2] + b"TOUCH " + fins[3][4:] + fins[3] + b"FIN 0000000000000000\n" + fins[5] + fins[4])
    assert await client.error() == b"E_FIN_FAILED FIN 0000000000000000 failed ID not in flight"
    client.send(fins[6] + fins[7][:9])
    await api.stats()  # it has had time to come
    client.send(fins[7][9:] + fins[8])
    client.send(b"DPUB t 60000\n")
    await api.stats()
    client.send((len(fins[9])).to_bytes(4, "big") + fins[9])  # a body that looks like one is none
    await client.ok()
    [topic] = (await api.stats())["topics"]
    [channel] = topic["channels"]
    assert (channel["in_flight_count"], channel["deferred_count"], channel["depth"]) == (3, 1, 0)
    [consumer] = channel["clients"]
    assert (consumer["finish_count"], consumer["in_flight_count"]) == (9, 3)
    client.send(b"".join(fins[9:]) + b"CLS\n" + fins[0])
    assert (await client.frame())[1] == b"CLOSE_WAIT"
    assert await client.error() == b"E_FIN_FAILED FIN " + fins[0][4:-1] + b" failed ID not in flight"


@pytest.mark.parametrize("command", [b"FIN", b"TOUCH"])
async def test_a_read_full_of_errors_is_not_answered_in_one_go(
    api: Api, command: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[int] = []  # errors, and 0 for every turn of the loop
    fail = Connection.fail

    def noted(connection: Connection, error: ProtocolError) -> None:
        said.append(1)
        fail(connection, error)

    monkeypatch.setattr(Connection, "fail", noted)
    monkeypatch.setattr("nsquark.nsqd.protocol.reading.PARSE_NS", 0)  # every command takes too long
    loop = asyncio.get_running_loop()

    def turn() -> None:
        said.append(0)
        if sum(said) < 1000:
            loop.call_soon(turn)

    client = await api.client()
    await client.sub("t", "ch")
    turn()
    client.send(b"".join(b"%b %016x\n" % (command, 2 * number) for number in range(1000)))
    for number in range(1000):
        assert (b"%016x" % (2 * number)) in await client.error()
    longest = max(map(len, "".join(map(str, said)).split("0")))
    assert longest <= ERRORS_AT_ONCE


async def test_fins_with_a_piece_of_a_command_behind_are_a_sign_of_life(api: Api) -> None:
    client = await api.client()
    client.send(pub(b"1"))
    await client.ok()
    await client.sub("t", "ch", 1)
    message = await client.message()
    [connection] = api.broker.connections
    before = connection.heard_at
    client.send(b"FIN " + message.id + b"\nNO")
    consumer = connection.session.consumer
    assert consumer is not None
    await until(lambda: consumer.finish_count == 1)
    assert connection.heard_at > before


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (b"PUB t\n\0\0\0\0", b"E_BAD_MESSAGE PUB invalid message body size 0"),
        (b"PUB t\n\0\0\x04\0", b"E_BAD_MESSAGE PUB message too big 1024 > 1000"),
        (b"MPUB t\n\0\0\0\x04\0\0\0\0", b"E_BAD_BODY MPUB invalid message count 0"),
        (b"NONSENSE\n", b"E_INVALID invalid command NONSENSE"),
    ],
)
async def test_an_error_after_publishes_comes_behind_their_answers(
    api: Api, bad: bytes, error: bytes
) -> None:
    client = await api.client()
    client.send(pub(b"one"))
    await client.ok()
    client.send(pub(b"two") + bad)
    await client.ok()
    assert await client.error() == error
    await client.closed()
    assert (await api.topic("t"))["message_count"] == 2


async def test_a_publisher_of_a_topic_that_is_deleted_and_comes_again(api: Api) -> None:
    client = await api.client()
    for _ in range(3):
        for _ in range(3):
            client.send(pub(b"one"))
            await client.ok()
        assert (await api.topic("t"))["message_count"] == 3
        await api.done("/topic/delete?topic=t")


@pytest.mark.parametrize("make", [pub, mpub])
async def test_a_stream_may_be_cut_anywhere(api: Api, make: Callable[[bytes], bytes]) -> None:
    client = await api.client()
    draw = random.Random(make.__name__)
    bodies = [b"%d".ljust(draw.choice([1, 5, 100, 998]), b".") % number for number in range(2000)]
    stream = b"".join(map(make, bodies))
    at = 0
    while at < len(stream):
        size = draw.choice([1, 3, 10, 1000, 70_000, 200_000])
        client.send(stream[at : at + size])
        at += size
        if draw.random() < 0.5:
            await api.stats()  # it has had time to come
    await oks(client, len(bodies))
    consumer = await api.client()
    await consumer.sub("t", "c", len(bodies))
    assert [(await consumer.message()).body for _ in bodies] == bodies


@pytest.mark.parametrize(
    ("beginning", "error"),
    [
        (pub(b"xyz")[:6], b"E_BAD_MESSAGE PUB failed to read message body size"),
        (pub(b"xyz")[:11], b"E_BAD_MESSAGE PUB failed to read message body"),
        (mpub(b"xyz")[:9], b"E_BAD_BODY MPUB failed to read body size"),
        (mpub(b"xyz")[:13], b"E_BAD_BODY MPUB failed to read message count"),
        (mpub(b"xyz")[:-1], b"E_BAD_MESSAGE MPUB failed to read message body"),
    ],
)
async def test_an_end_within_a_command(api: Api, beginning: bytes, error: bytes) -> None:
    client = await api.client()
    command = (pub if beginning.startswith(b"P") else mpub)(b"one")
    for _ in range(3):
        client.send(command)
        await client.ok()
    client.send(command + beginning)
    await client.ok()
    client.half_close()
    assert await client.error() == error


async def test_a_publisher_may_close_its_half(api: Api) -> None:
    client = await api.client()
    client.send(pub(b"one"))
    await client.ok()
    client.send(pub(b"two") * 100)
    client.half_close()
    await oks(client, 100)
    await client.closed()
    assert (await api.topic("t"))["message_count"] == 101


async def test_who_does_not_read_its_answers_is_read_no_further_and_gets_all_of_them(api: Api) -> None:
    """More answers than the sockets hold, so that the short way is left and taken up again."""
    client = await api.client()
    client.send(pub(b"x"))
    await client.ok()
    many, rounds = 5000, 100
    for _ in range(rounds):
        client.send(pub(b"x") * many)
    sent = asyncio.ensure_future(client.writer.drain())
    left = many * rounds * len(OK)
    while left:
        left -= len(await client.reader.read(left))
    await sent
    assert (await api.topic("t"))["message_count"] == many * rounds + 1
    client.send(pub(b"x"))
    await client.ok()


async def test_who_the_poll_cannot_take_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        """A Poll without room."""

        def __init__(self, shared: bytearray) -> None:
            self._pipe = os.pipe()

        def fileno(self) -> int:
            return self._pipe[0]

        def add(self, *who: object) -> None:
            raise OSError(28, "epoll_ctl")

        def close(self) -> None:
            for fd in self._pipe:
                os.close(fd)

    monkeypatch.setattr(server, "new_poll", Full)
    async with running(tmp_path) as api:
        client = await api.client()
        for _ in range(3):
            client.send(pub(b"one"))
            await client.ok()
        assert (await api.topic("t"))["message_count"] == 3


def test_messages_are_shared_in_one_round_in_proportion_to_the_room(tmp_path: Path) -> None:
    harness = Harness(tmp_path, Clock())
    topic = harness.topic("t")
    channel = topic.channel("c")
    sent: list[int] = []
    readers = [Reader() for _ in range(3)]
    for number, (reader, ready) in enumerate(zip(readers, (100, 100, 200), strict=True)):
        take = reader.consumer.send
        reader.consumer.send = lambda frames, number=number, take=take: (sent.append(number), take(frames))[1]
        channel.add_consumer(reader.consumer)
        channel.set_ready(reader.consumer, ready)
    topic.publish([b"x"] * 81, 0, Publisher())
    harness.turn.run()
    assert [len(reader.take()) for reader in readers] == [21, 20, 40]
    assert sent == [0, 1, 2], "a write each"
    # fewer than there are consumers: the one that has waited longest
    for _ in range(3):
        topic.publish([b"x"], 0, Publisher())
        harness.turn.run()
    assert [len(reader.take()) for reader in readers] == [1, 1, 1]
    # all that they can take, and no more
    topic.publish([b"x"] * 400, 0, Publisher())
    harness.turn.run()
    assert [len(reader.take()) for reader in readers] == [78, 79, 159]
    assert channel.depth == 400 - 316


def test_what_does_not_divide_goes_to_each_in_turn(tmp_path: Path) -> None:
    harness = Harness(tmp_path, Clock())
    topic = harness.topic("t")
    channel = topic.channel("c")
    readers = [Reader() for _ in range(3)]
    for reader in readers:
        channel.add_consumer(reader.consumer)
        channel.set_ready(reader.consumer, 100)
    got = [0, 0, 0]
    for _ in range(3):
        topic.publish([b"x"] * 4, 0, Publisher())
        harness.turn.run()
        for number, reader in enumerate(readers):
            for message, _, _ in reader.take():
                got[number] += 1
                assert not channel.finish(reader.consumer, message, message + 1)
    assert got == [4, 4, 4]


def test_who_has_more_than_it_wants_does_not_change_the_shares_of_others(tmp_path: Path) -> None:
    harness = Harness(tmp_path, Clock())
    topic = harness.topic("t")
    channel = topic.channel("c")
    readers = [Reader() for _ in range(3)]
    for reader in readers:
        channel.add_consumer(reader.consumer)
    channel.set_ready(readers[0].consumer, 1000)
    topic.publish([b"x"] * 900, 0, Publisher())
    harness.turn.run()
    assert len(readers[0].take()) == 900
    channel.set_ready(readers[0].consumer, 1)
    for reader in readers[1:]:
        channel.set_ready(reader.consumer, 1000)
    topic.publish([b"x"] * 100, 0, Publisher())
    harness.turn.run()
    assert [len(reader.take()) for reader in readers] == [0, 50, 50]


async def test_what_was_published_is_stored_whatever_happens_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even what fails in failing must not keep a turn from its end."""
    if server.new_poll(bytearray(256 << 10)) is None:
        pytest.skip("there is no Poll here")
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))

    def broken(self: Connection, *what: object) -> None:
        raise RuntimeError("never mind")

    async with running(tmp_path) as api:
        good, bad = await api.client(), await api.client()
        await good.pub("t", b"one")
        await bad.pub("u", b"one")
        monkeypatch.setattr(Connection, "failed", broken)
        monkeypatch.setattr(Connection, "left", broken)
        bad.send(b"NOP\n")
        await until(lambda: errors)
        answer = await asyncio.wait_for(api.post("/pub?topic=t", b"two"), PATIENCE)
        assert (answer.status, len(errors)) == (200, 1)
        await good.pub("t", b"three")
