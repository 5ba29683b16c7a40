"""Many sockets read at once: which connection gets what was read, and which is told of an end."""

from __future__ import annotations

import socket
import struct
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from nsquark import kernel
from nsquark.errors import PubFailed
from nsquark.nsqd.core.answers import AnswerQueue
from nsquark.nsqd.core.publish import PendingPublishes, PublishStream
from nsquark.nsqd.server import new_poll

SHARED = bytearray(256 << 10)
pytestmark = pytest.mark.skipif(new_poll(SHARED) is None, reason="there is no SocketPoll here")


def pub(body: bytes) -> bytes:
    return b"PUB t\n" + struct.pack(">I", len(body)) + body


class Client:
    """Both ends of a connection, and what its protocol was told."""

    def __init__(self, pending: Any = None) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.got: list[bytes] = []
        self.ends = 0
        self.errors: list[Exception] = []
        self.error: Exception | None = None
        self.own = bytearray(5)
        answers = AnswerQueue(lambda data: None, lambda: None)
        self.counts: dict[str, int] = {}
        self.stream = PublishStream(answers, 100, 1000, self.counts)
        if pending is not None:
            self.stream.follow(pending, "t", b"PUB t\n", PubFailed)

    def taken(self) -> int:
        self.stream.count_taken()
        return self.counts.get("t", 0)

    @property
    def fd(self) -> int:
        return self.ours.fileno()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.own

    def received(self, nbytes: int) -> None:
        if self.error is not None:
            raise self.error
        self.got.append(bytes(self.own[:nbytes]))

    def left(self, start: int, end: int) -> None:
        self.got.append(bytes(SHARED[start:end]))
        self.stream.forget()

    def ended(self) -> None:
        self.ends += 1

    def lost(self, error: int) -> None:
        self.errors.append(OSError(error, ""))

    def failed(self, error: Exception) -> None:
        self.errors.append(error)

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def poll() -> Iterator[Any]:
    poll = new_poll(SHARED)
    assert poll is not None
    yield poll
    poll.close()


@pytest.fixture
def writer() -> Any:
    writer = kernel.BatchWriter(0, 0)
    writer.use_ids(0, 99)
    return writer


@pytest.fixture
def pending(writer: Any) -> Any:
    return PendingPublishes(writer, lambda: None, lambda: None, 1 << 20, 1 << 20)


@pytest.fixture
def clients(pending: Any) -> Iterator[list[Client]]:
    clients = [Client(pending), Client(), Client(pending)]
    yield clients
    for client in clients:
        client.close()


def test_everybody_is_read_and_publishes_go_the_short_way(
    poll: Any, writer: Any, clients: list[Client]
) -> None:
    for client in clients:
        poll.add(client.fd, client, client.stream)
    for client in clients:
        client.theirs.send(pub(b"one"))
    poll.run()
    assert [client.got for client in clients] == [[], [b"PUB t"], []]
    assert (writer.count, clients[0].taken(), clients[1].taken()) == (2, 1, 0)
    assert clients[0].stream.heard > 0
    poll.run()  # it had no room for all of it
    assert clients[1].got == [b"PUB t", pub(b"one")[5:10]]
    clients[0].theirs.send(pub(b"two")[:7])
    poll.run()
    assert (clients[0].got, clients[0].stream.kept) == ([], pub(b"two")[:7])
    poll.run()
    clients[0].theirs.send(pub(b"two")[7:] + b"NOP\n")
    poll.run()
    assert (clients[0].got, clients[0].taken(), clients[0].stream.kept) == ([b"NOP\n"], 2, b"")


def test_a_beginning_is_not_a_sign_of_life(poll: Any, clients: list[Client]) -> None:
    client = clients[0]
    poll.add(client.fd, client, client.stream)
    client.theirs.send(pub(b"one")[:9])
    poll.run()
    assert (client.stream.kept, client.stream.heard) == (pub(b"one")[:9], 0)


def test_only_those_in_it_are_read(poll: Any, writer: Any, clients: list[Client]) -> None:
    first, second, third = clients
    poll.add(first.fd, first, first.stream)
    third.theirs.send(pub(b"one"))
    first.theirs.send(pub(b"one"))
    poll.remove(first.fd, second)  # one that has never been in it
    poll.remove(first.fd, first)
    poll.remove(first.fd, first)
    poll.remove(999, first)
    poll.run()
    assert writer.count == 0
    poll.add(first.fd, first, first.stream)
    poll.run()
    assert writer.count == 1


@pytest.mark.parametrize("number", [0, 1])
def test_an_end_is_told_once(poll: Any, clients: list[Client], number: int) -> None:
    client = clients[number]
    poll.add(client.fd, client, client.stream)
    client.theirs.close()
    poll.run()
    poll.run()
    assert (client.ends, client.got) == (1, [])


def test_an_error_is_that_connections_alone(poll: Any, writer: Any, clients: list[Client]) -> None:
    for client in clients:
        poll.add(client.fd, client, client.stream)
        client.theirs.send(pub(b"one"))
    clients[1].error = RuntimeError("never mind")
    poll.run()
    assert [len(client.errors) for client in clients] == [0, 1, 0]
    assert writer.count == 2
    poll.run()
    assert len(clients[1].errors) == 1


def test_a_descriptor_that_comes_again_is_the_new_ones(poll: Any, writer: Any, pending: Any) -> None:
    old = Client(pending)
    fd = old.fd
    poll.add(fd, old, old.stream)
    old.close()  # without a word to the poll
    new = Client(pending)
    try:
        assert new.fd == fd
        poll.add(fd, new, new.stream)
        poll.remove(fd, old)
        new.theirs.send(pub(b"one"))
        poll.run()
        assert (new.taken(), old.taken()) == (1, 0)
    finally:
        new.close()


# ---- large bodies

BODY = bytes(range(250)) * 4000


@pytest.fixture
def large(pending: Any, poll: Any) -> Iterator[Client]:
    client = Client(pending)
    client.stream = PublishStream(
        AnswerQueue(lambda data: None, lambda: None), 1 << 20, 1 << 20, client.counts
    )
    client.stream.follow(pending, "t", b"PUB t\n", PubFailed)
    poll.add(client.fd, client, client.stream)
    yield client
    client.close()


def send_all(client: Client, poll: Any, data: bytes) -> None:
    """Send everything, having the poll read whatever there is."""
    client.theirs.setblocking(False)
    while data:
        try:
            data = data[client.theirs.send(data) :]
        except BlockingIOError:
            poll.run()
    for _ in range(20):
        poll.run()


def bodies_in(writer: Any) -> list[bytes]:
    data, found = writer.take(), []
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at + 8 : at + 12], "big")
        assert kernel.crc32c(data, at + 8, at + length) == int.from_bytes(data[at + 4 : at + 8], "big")
        frames = data[at + 48 : at + length]
        begin = 0
        for end in kernel.frame_ends(frames):
            found.append(frames[begin + 34 : end])
            begin = end
        at += length
    return found


def test_large_bodies_arrive_as_they_were_sent_whatever_is_between_them(
    poll: Any, writer: Any, large: Client
) -> None:
    sent = [BODY, BODY, b"small", BODY[1:], BODY[1:], BODY[:300_000], b"", BODY[2:202_002], BODY[5:202_005]]
    sent = [each for each in sent if each]
    send_all(large, poll, b"".join(pub(each) for each in sent))
    assert bodies_in(writer) == sent
    assert (large.got, large.taken()) == ([], len(sent))


@pytest.mark.parametrize("behind", [b"NOP\n", b"P", b"PUB u\n\0\0\0\5other", pub(b"x") + b"FIN"])
def test_what_follows_large_bodies_is_handed_on(poll: Any, writer: Any, large: Client, behind: bytes) -> None:
    send_all(large, poll, pub(BODY) + pub(BODY) + behind)
    others = behind.removeprefix(pub(b"x"))
    assert bodies_in(writer) == [BODY, BODY] + [b"x"] * (others != behind)
    kept = large.stream.kept
    assert b"".join(large.got) + kept == others


def test_a_large_body_has_memory_for_what_has_come_of_it(poll: Any, large: Client) -> None:
    send_all(large, poll, pub(BODY) + pub(BODY))
    assert large.stream.expected == len(BODY)
    tracemalloc.start()
    try:
        send_all(large, poll, pub(BODY)[:100])
        assert large.stream.large is not None
        assert large.stream.large.have == 90
        held, _ = tracemalloc.get_traced_memory()
        assert held < 20_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("share", [100, 300_000, len(BODY)])
def test_an_end_within_a_large_body_is_told(poll: Any, large: Client, share: int) -> None:
    send_all(large, poll, pub(BODY) + pub(BODY)[:share])
    large.theirs.close()
    poll.run()
    assert (large.ends, large.got, large.errors) == (1, [], [])
    assert large.stream.forget() == pub(BODY)[:share]


def test_a_large_body_that_is_not_taken_is_left(poll: Any, pending: Any, large: Client) -> None:
    send_all(large, poll, pub(BODY)[:500_000])
    pending.open = False
    send_all(large, poll, pub(BODY)[500_000:])
    assert large.got == [b""]


def test_what_is_no_socket_is_refused(poll: Any, clients: list[Client]) -> None:
    with pytest.raises(ValueError, match="descriptor"):
        poll.add(-1, clients[0], clients[0].stream)
    with pytest.raises(OSError, match="epoll_ctl"):
        poll.add(9999, clients[0], clients[0].stream)


def test_a_closed_poll_does_nothing(poll: Any, clients: list[Client]) -> None:
    poll.add(clients[0].fd, clients[0], clients[0].stream)
    poll.close()
    poll.close()
    poll.remove(clients[0].fd, clients[0])
    poll.run()
    assert poll.fileno() == -1


def test_a_message_is_as_old_as_the_read_it_came_with(poll: Any, writer: Any, clients: list[Client]) -> None:
    """Not as the run: a connection that was read before has published by the clock of then."""
    short, long, _ = clients
    took: list[int] = []
    long.received = lambda nbytes: took.append(time.time_ns())  # type: ignore[method-assign]
    for client in (long, short):  # which is also the order in which they are read
        poll.add(client.fd, client, client.stream)
        client.theirs.send(pub(b"one"))
    poll.run()
    (published,) = struct.unpack_from(">q", writer.take(), 48 + 8)
    assert published >= took[0]


def test_nothing_is_not_taken_for_a_stream(poll: Any, clients: list[Client]) -> None:
    with pytest.raises(TypeError):
        poll.add(clients[0].fd, clients[0], None)


def test_a_buffer_must_have_room_behind_what_is_kept() -> None:
    with pytest.raises(ValueError, match="too small"):
        new_poll(bytearray(64 << 10))


def have_it_linger(poll: Any) -> None:
    """Show it a client that sends its next request much sooner when it is waited for."""
    now = 1
    while not poll.lingering.awake:
        poll.lingering.came(now, 1)
        now += 50_000


def test_it_stays_awake_for_a_moment_and_tells_what_came(poll: Any, clients: list[Client]) -> None:
    client, other = clients[0], clients[1]
    for each in (client, other):
        poll.add(each.fd, each, each.stream)
    client.theirs.send(pub(b"one"))
    assert not poll.linger()  # it has not been shown that this pays
    have_it_linger(poll)
    assert poll.linger()
    poll.run()
    assert client.taken() == 1
    assert not poll.linger()  # nothing comes, and it does not wait for long
    other.theirs.send(b"NOP\n")
    assert poll.linger()  # whoever it is from
    client.theirs.send(pub(b"two"))
    poll.run()
    client.theirs.send(pub(b"three"))
    assert not poll.linger()  # two had something: there is enough to do
    poll.close()
    assert not poll.linger()
