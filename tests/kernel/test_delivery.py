"""The short way of messages to their takers and of FINs back, on each twin."""

from __future__ import annotations

import importlib
import random
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark import kernel
from nsquark.kernel import pure_delivery, pure_intake, pure_log

from ..nsqd.harness import Clock, Harness, Publisher, Reader

TWINS: list[tuple[Any, Any, Any]] = [(pure_intake, pure_log, pure_delivery)]
if kernel.COMPILED:
    names = ("fast_intake", "fast_log", "fast_delivery")
    TWINS.append(tuple(importlib.import_module(f"nsquark.kernel.{name}") for name in names))  # type: ignore[arg-type]

each_twin = pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin[2].__name__.rpartition(".")[2])


# ---- past the transport


class Transport:
    def __init__(self, waiting: int, closing: bool) -> None:
        self.waiting = waiting
        self.closing = closing

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def is_closing(self) -> bool:
        return self.closing


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        yield ours, theirs


def taker(twin: Any, fd: int, waiting: int = 0, closing: bool = False) -> tuple[Any, list[bytes]]:
    sent: list[bytes] = []
    answers = twin[0].AnswerQueue()
    answers.fd = fd
    answers.transport = Transport(waiting, closing)
    return twin[2].Taker(lambda frames: sent.append(bytes(frames)), answers, 1000, 0), sent


@each_twin
@pytest.mark.parametrize("frames", [b"one", memoryview(b"xonex")[1:4]])
def test_what_is_sent_alone_goes_past_the_transport(twin: Any, sockets: Any, frames: Any) -> None:
    consumer, sent = taker(twin, sockets[0].fileno())
    consumer.put(frames, True)
    assert (sockets[1].recv(100), sent) == (b"one", [])


@each_twin
@pytest.mark.parametrize(
    "why_not", [{"waiting": 1}, {"closing": True}, {"fd": -1}, {"alone": False}, {"answers": False}], ids=str
)
def test_everything_else_goes_through_the_transport(twin: Any, sockets: Any, why_not: dict[str, Any]) -> None:
    usual = {"fd": sockets[0].fileno(), "waiting": 0, "closing": False, "alone": True, "answers": True}
    how = {**usual, **why_not}
    consumer, sent = taker(twin, how["fd"], how["waiting"], how["closing"])
    if not how["answers"]:
        consumer.answers = None
    consumer.put(b"one", how["alone"])
    assert sent == [b"one"]
    with pytest.raises(BlockingIOError):
        sockets[1].recv(100)


@each_twin
def test_what_the_socket_does_not_take_is_the_transport_s(twin: Any, sockets: Any) -> None:
    consumer, sent = taker(twin, sockets[0].fileno())
    data = random.Random(1).randbytes(3 << 20)
    consumer.put(data, True)
    consumer.put(b"more", True)  # nothing of it is taken
    assert sent[1:] == [b"more"]
    got = b""
    while len(got) + len(sent[0]) < len(data):
        got += sockets[1].recv(1 << 20)
    assert got
    assert got + sent[0] == data


@each_twin
def test_a_broken_socket_is_the_transport_s(twin: Any, sockets: Any) -> None:
    sockets[1].close()
    consumer, sent = taker(twin, sockets[0].fileno())
    consumer.put(b"one", True)
    assert sent == [b"one"]


# ---- FIN


class Rig:
    """A channel that is nothing but an Outlet: says what it is asked for."""

    def __init__(self, twin: Any) -> None:
        _, log, delivery = twin
        calls = self.calls = []

        class Topic(log.Committer):  # type: ignore[misc]
            def journaled(self) -> None:
                calls.append("journaled")

            def channel_ready(self, channel: object) -> None:
                calls.append("ready")

            def list_channel(self, channel: Any) -> None:
                channel.listed = True
                calls.append("listed")

            def wake_channel(self, channel: object, when: int) -> None:
                calls.append(f"wake at {when}")

        class Channel(delivery.Outlet):  # type: ignore[misc]
            def finish_pieces(self, consumer: object, first: int, end: int) -> list[int]:
                calls.append(f"finish {first} to {end}")
                return [first]

            def not_sent(self, run: Any, attempts: int) -> None:
                calls.append(f"{run.count} not sent, delivered {attempts} times")

        topic = Topic(lambda: 0, log.Tally(), (), 100)
        self.channel = Channel(topic, 7, log.Tally(), 1000)
        self.channel.cursor = log.LogCursor(log.LogEnd(1, 1, 1), 50)
        self.channel.again = self.channel.skipped = type("Nothing", (), {"count": 0})
        self.channel.journal = log.Records()
        topic.pumped = 50
        self.consumer, self.sent = taker(twin, -1)
        self.consumer.ready_count = 5
        self.consumer.outlet = self.channel
        self.Run = log.Run

    def send(self, first: int, count: int, position: int) -> None:
        run = self.Run(position, count, first, b"frames")
        self.channel.take_off(self.consumer, run, run.frames, 1, 1000, True)

    def flights(self) -> list[tuple[int, int, int]]:
        return [(each.first, each.end, each.position) for each in self.consumer.flights]

    def told(self) -> list[str]:
        told = self.calls[:]
        self.calls.clear()
        return told


@each_twin
def test_fins_in_order_move_the_beginning_of_the_first_flight(twin: Any) -> None:
    rig = Rig(twin)
    rig.send(100, 3, 20)
    rig.send(200, 2, 30)
    assert rig.told() == ["wake at 2000"]  # the second is not earlier
    consumer, channel = rig.consumer, rig.channel
    assert (consumer.free, consumer.message_count, channel.in_flight_count) == (0, 5, 5)
    assert channel.finish(consumer, 100, 102) == []
    assert rig.told() == ["journaled", "listed"]  # there is room: new messages are of interest
    assert rig.flights() == [(102, 103, 22), (200, 202, 30)]
    assert list(channel.ready) == [consumer]
    channel.topic.pumped = 51
    assert channel.finish(consumer, 102, 103) == []
    assert rig.told() == ["ready"]  # the journal is written anyway
    assert rig.flights() == [(200, 202, 30)]
    assert (consumer.finish_count, consumer.in_flight_count, channel.in_flight_count) == (3, 2, 2)
    assert channel.journal.block()[12:] == b"F" + bytes.fromhex("00000007 0000000000000014 00000003")


def fin(*ids: int) -> bytes:
    return b"".join(b"FIN %016x\n" % each for each in ids)


@each_twin
def test_fins_go_on_from_flight_to_flight(twin: Any) -> None:
    rig = Rig(twin)
    rig.send(100, 2, 20)
    rig.send(102, 2, 40)
    assert rig.channel.finish(rig.consumer, 100, 103) == []
    assert rig.flights() == [(103, 104, 41)]
    assert rig.channel.finish(rig.consumer, 103, 106) == [104]
    assert "finish 104 to 106" in rig.told()


@each_twin
@pytest.mark.parametrize(
    ("data", "taken", "left"),
    [
        (fin(100, 101, 102, 200, 201), 5, []),
        (fin(100, 101), 2, [(102, 103, 22), (200, 202, 30)]),
        (fin(100, 200), 1, [(101, 103, 21), (200, 202, 30)]),
        (fin(100, 101, 102, 103), 3, [(200, 202, 30)]),
        (fin(100) + fin(101)[:20], 1, [(101, 103, 21), (200, 202, 30)]),
        (fin(100) + b"TOUCH 0000000000000065\n", 1, [(101, 103, 21), (200, 202, 30)]),
        (fin(100).upper() + b"FIN 000000000000006G\n", 1, [(101, 103, 21), (200, 202, 30)]),
        (fin(101), 0, [(100, 103, 20), (200, 202, 30)]),
        (b"", 0, [(100, 103, 20), (200, 202, 30)]),
    ],
    ids=str,
)
def test_a_read_of_fins_is_taken_as_far_as_it_is_in_order(
    twin: Any, data: bytes, taken: int, left: list[tuple[int, int, int]]
) -> None:
    rig = Rig(twin)
    rig.send(100, 3, 20)
    rig.send(200, 2, 30)
    assert rig.channel.finish_read(rig.consumer, data + fin(100, 200), len(data)) == 21 * taken
    assert rig.flights() == left
    assert (rig.consumer.finish_count, rig.channel.in_flight_count) == (taken, 5 - taken)
    assert not [each for each in rig.calls if each.startswith("finish")]


@each_twin
@pytest.mark.parametrize(("first", "end"), [(101, 102), (99, 101), (2**64 - 1, 2**64)])
def test_all_other_fins_take_the_long_way(twin: Any, first: int, end: int) -> None:
    rig = Rig(twin)
    rig.send(100, 3, 20)
    rig.calls.clear()
    assert rig.channel.finish(rig.consumer, first, end) == [first]
    assert rig.told() == [f"finish {first} to {end}"]
    assert rig.flights() == [(100, 103, 20)]


@each_twin
def test_the_last_of_all_ids_is_finished_like_others(twin: Any) -> None:
    rig = Rig(twin)
    rig.send(2**64 - 2, 2, 20)
    assert rig.channel.finish(rig.consumer, 2**64 - 2, 2**64) == []
    assert rig.flights() == []


@each_twin
def test_a_consumer_without_room_is_not_ready(twin: Any) -> None:
    rig = Rig(twin)
    rig.send(100, 3, 20)
    rig.consumer.ready_count = 1
    rig.channel.finish(rig.consumer, 100, 102)
    assert not rig.channel.ready
    rig.channel.finish(rig.consumer, 102, 103)
    rig.consumer.writable = False
    rig.channel.ready.clear()
    rig.send(200, 1, 30)
    rig.channel.finish(rig.consumer, 200, 201)
    assert not rig.channel.ready


# ---- delivering


@pytest.mark.skipif(len(TWINS) < 2, reason="the compiled kernel is not in use")
@settings(max_examples=60)
@given(st.integers(0, 2**64).map(random.Random))
def test_what_is_in_order_is_shared_out_as_by_the_long_way(draw: random.Random) -> None:
    steps: list[Any] = []
    for _ in range(draw.randint(1, 25)):
        steps.append(
            draw.choice(
                [
                    (
                        "publish",
                        [draw.randbytes(draw.choice([1, 50, 6000])) for _ in range(draw.randint(1, 9))],
                        0.0,
                    ),
                    ("publish", [b"x"] * draw.randint(1, 20), 0.0),
                    ("publish", [b"later"], draw.choice([0.0, 1.0])),
                    ("rdy", draw.randrange(4), draw.choice([0, 1, 2, 5, 30])),
                    ("finish", draw.randrange(4), draw.randint(1, 5)),
                    ("requeue", draw.randrange(4)),
                    ("deaf", draw.randrange(4), draw.random() < 0.7),
                ]
            )
        )
    results = []
    for long_way in (False, True):
        with tempfile.TemporaryDirectory() as path:
            harness = Harness(Path(path), Clock(), max_bytes_per_file=20_000, mem_queue_size=20)
            topic = harness.topic("t")
            channel: Any = topic.channel("c")
            if long_way:
                channel.deliver = channel.deliver_rest
            readers = [Reader(sample_rate=0) for _ in range(4)]
            for reader in readers:
                channel.add_consumer(reader.consumer)
            seen: list[object] = []
            for name, *args in steps:
                if name == "publish":
                    topic.publish(args[0], args[1], Publisher())
                else:
                    reader = readers[args[0]]
                    flights = reader.consumer.flights
                    if name == "rdy":
                        channel.set_ready(reader.consumer, args[1])
                    elif name == "deaf":
                        reader.consumer.writable = args[1]
                        channel.has_room(reader.consumer)
                    elif flights and name == "finish":
                        first = flights[0].first
                        channel.finish(reader.consumer, first, min(first + args[1], flights[0].end))
                    elif flights:
                        channel.requeue(reader.consumer, flights[-1].first, 0, harness.clock())
                harness.pass_time(1000)
                seen.append([reader.take() for reader in readers])
                seen.append((channel.depth, channel.in_flight_count, topic.delivery_times.counts))
            results.append(seen)
            topic.close()
    assert results[0] == results[1]


# ---- a consumer that has left


@each_twin
def test_a_consumer_that_has_left_is_never_ready_again(twin: Any) -> None:
    rig = Rig(twin)
    rig.send(100, 3, 20)
    rig.consumer.outlet = None
    assert rig.consumer.free == 0
    assert not rig.channel.offer(rig.consumer)
    rig.channel.landed(rig.consumer, 3)  # what comes too late
    assert not rig.channel.ready


@each_twin
def test_what_was_read_for_a_consumer_that_has_left_is_for_others(twin: Any) -> None:
    rig = Rig(twin)
    rig.consumer.outlet = None
    rig.send(100, 3, 20)
    assert rig.told() == ["3 not sent, delivered 0 times"]
    assert (rig.flights(), rig.sent, rig.channel.in_flight_count) == ([], [], 0)
