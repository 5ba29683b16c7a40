"""Which of transport and Poll reads a socket."""

from __future__ import annotations

from typing import Any

import pytest

from nsquark.nsqd.protocol.socket_reading import SocketReading


class Transport:
    def __init__(self) -> None:
        self.reading, self.closing = True, False

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing


class Poll:
    def __init__(self, full: bool = False) -> None:
        self.full = full
        self.members: set[int] = set()

    def add(self, fd: int, protocol: object, source: object) -> None:
        if self.full:
            raise OSError(28, "epoll_ctl")
        assert fd not in self.members
        self.members.add(fd)

    def remove(self, fd: int, protocol: object) -> None:
        self.members.remove(fd)


class Named:
    """A connection, as far as a line of the log goes."""

    class session:
        remote_address = "here:1"


def reading(transport: Transport, poll: Poll | None) -> SocketReading:
    unknown: Any = (Named(), transport, poll, 7, object())
    return SocketReading(*unknown)


def test_without_a_poll_the_transport_reads() -> None:
    transport = Transport()
    socket = reading(transport, None)
    socket.join_poll()
    assert transport.reading
    socket.pause()
    socket.pause()
    assert not transport.reading
    socket.resume()
    socket.resume()
    assert transport.reading


def test_with_a_poll_the_transport_rests() -> None:
    transport, poll = Transport(), Poll()
    socket = reading(transport, poll)
    assert transport.reading
    socket.join_poll()
    socket.join_poll()
    assert (transport.reading, poll.members) == (False, {7})
    socket.pause()
    assert (transport.reading, poll.members) == (False, set())
    socket.resume()
    assert (transport.reading, poll.members) == (False, {7})


def test_a_full_poll_leaves_it_to_the_transport() -> None:
    transport, poll = Transport(), Poll(full=True)
    socket = reading(transport, poll)
    socket.join_poll()
    assert transport.reading
    socket.pause()
    poll.full = False
    socket.resume()
    assert (transport.reading, poll.members) == (False, {7})


def test_a_poll_that_has_left_does_not_come_back() -> None:
    transport, poll = Transport(), Poll()
    socket = reading(transport, poll)
    socket.join_poll()
    poll.members.clear()
    socket.left_by_poll()
    assert not transport.reading
    socket.resume()
    assert (transport.reading, poll.members) == (True, set())


def test_layers_are_read_by_no_poll() -> None:
    transport, layers, poll = Transport(), Transport(), Poll()
    socket = reading(transport, poll)
    socket.join_poll()
    socket.pause()
    layers.reading = False
    over: Any = layers
    socket.read_through(over)
    socket.resume()
    assert (transport.reading, layers.reading, poll.members) == (False, True, set())


@pytest.mark.parametrize("paused", [False, True])
def test_a_transport_that_closes_is_left_alone(paused: bool) -> None:
    transport, poll = Transport(), Poll()
    socket = reading(transport, poll)
    if paused:
        socket.pause()
    transport.closing = True
    socket.join_poll()
    socket.resume()
    assert not poll.members
    assert transport.reading is not paused


def test_a_connection_that_is_gone_is_in_no_poll() -> None:
    transport, poll = Transport(), Poll()
    socket = reading(transport, poll)
    socket.join_poll()
    socket.let_go()
    assert not poll.members
