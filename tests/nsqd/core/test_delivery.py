"""A channel's way of messages to its consumers, and of their FINs back."""

from __future__ import annotations

import random
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark.log import Run
from nsquark.nsqd.core.answers import AnswerQueue
from nsquark.nsqd.core.channel import Channel
from nsquark.nsqd.core.consumer import Consumer
from tests.nsqd.harness import SECOND, Clock, Harness, Publisher, Reader

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


def consumer_at(fd: int, waiting: int = 0, closing: bool = False) -> tuple[Consumer, list[bytes]]:
    sent: list[bytes] = []
    answers = AnswerQueue(sent.append, lambda: None)
    answers.fd = fd
    answers.transport = cast(Any, Transport(waiting, closing))
    connection = cast(Any, None)
    return Consumer(connection, lambda frames: sent.append(bytes(frames)), 1000, 0, answers), sent


@pytest.mark.parametrize("frames", [b"one", memoryview(b"xonex")[1:4]])
def test_what_is_sent_alone_goes_past_the_transport(sockets: Any, frames: Any) -> None:
    consumer, sent = consumer_at(sockets[0].fileno())
    consumer.put(frames, True)
    assert (sockets[1].recv(100), sent) == (b"one", [])


@pytest.mark.parametrize(
    "why_not", [{"waiting": 1}, {"closing": True}, {"fd": -1}, {"alone": False}, {"answers": False}], ids=str
)
def test_everything_else_goes_through_the_transport(sockets: Any, why_not: dict[str, Any]) -> None:
    usual = {"fd": sockets[0].fileno(), "waiting": 0, "closing": False, "alone": True, "answers": True}
    how = {**usual, **why_not}
    consumer, sent = consumer_at(how["fd"], how["waiting"], how["closing"])
    if not how["answers"]:
        consumer.answers = None
    consumer.put(b"one", how["alone"])
    assert sent == [b"one"]
    with pytest.raises(BlockingIOError):
        sockets[1].recv(100)


@pytest.mark.parametrize("alone", [True, False])
def test_what_is_sent_alone_through_layers_does_not_wait(sockets: Any, alone: bool) -> None:
    consumer, sent = consumer_at(sockets[0].fileno())
    at_once: list[bytes] = []
    assert consumer.answers is not None
    consumer.answers.write_through(cast(Any, sent.append), cast(Any, at_once.append))
    consumer.put(b"one", alone)
    assert (at_once, sent) == (([b"one"], []) if alone else ([], [b"one"]))
    with pytest.raises(BlockingIOError):
        sockets[1].recv(100)


def test_what_the_socket_does_not_take_is_the_transport_s(sockets: Any) -> None:
    consumer, sent = consumer_at(sockets[0].fileno())
    data = random.Random(1).randbytes(3 << 20)
    consumer.put(data, True)
    consumer.put(b"more", True)  # nothing of it is taken
    assert sent[1:] == [b"more"]
    got = b""
    while len(got) + len(sent[0]) < len(data):
        got += sockets[1].recv(1 << 20)
    assert got
    assert got + sent[0] == data


def test_a_broken_socket_is_the_transport_s(sockets: Any) -> None:
    sockets[1].close()
    consumer, sent = consumer_at(sockets[0].fileno())
    consumer.put(b"one", True)
    assert sent == [b"one"]


# ---- FIN


class Rig:
    """A channel with a consumer that is sent any ids, and what follows from that for others."""

    def __init__(self, path: Path) -> None:
        self.harness = Harness(path, Clock())
        self.topic = self.harness.topic("t")
        self.topic.publish([b"x"] * 60, 0.0, Publisher())
        self.topic.commit()
        self.channel: Channel = self.topic.channel("c")
        self.channel.seek(self.topic.pumped)
        self.reader = Reader(1000)
        self.consumer = self.reader.consumer
        self.channel.add_consumer(self.consumer)
        self.consumer.ready_count = 5
        self.begin()

    def begin(self) -> None:
        """What was to be delivered and journaled is."""
        self.harness.turn.run()
        self.topic.journal.flush()

    def send(self, first: int, count: int, position: int) -> None:
        run = Run(position, count, first, b"")
        self.channel.send_run(self.consumer, run, run.frames, 1, 1000, True)

    def flights(self) -> list[tuple[int, int, int]]:
        return [(each.first, each.end, each.position) for each in self.consumer.flights]

    def delivers_soon(self) -> bool:
        return self.channel in self.harness.turn._channels

    def finished(self) -> list[tuple[int, int]]:
        """The ranges that the journal learns of now."""
        block = self.topic.journal.block()[12:]
        assert len(block) % 17 == 0
        records = [block[at : at + 17] for at in range(0, len(block), 17)]
        assert all(each[:5] == b"F" + self.channel.number.to_bytes(4, "big") for each in records)
        starts = [(int.from_bytes(each[5:13], "big"), int.from_bytes(each[13:], "big")) for each in records]
        return [(start, start + count) for start, count in starts]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.harness.close()


def fin(*ids: int) -> bytes:
    return b"".join(b"FIN %016x\n" % each for each in ids)


def test_fins_in_order_move_the_beginning_of_the_first_flight(rig: Rig) -> None:
    consumer, channel = rig.consumer, rig.channel
    rig.send(100, 3, 20)
    rig.send(200, 2, 30)
    assert rig.harness.timers.waiting == {channel: 2000}
    assert (consumer.room(), consumer.message_count, channel.in_flight_count) == (0, 5, 5)
    assert not channel.listed
    assert channel.finish(consumer, 100, 102) == []
    assert channel.listed  # there is room: new messages are of interest
    assert not rig.delivers_soon()  # but there are none
    assert rig.flights() == [(102, 103, 22), (200, 202, 30)]
    assert list(channel.ready) == [consumer]
    rig.topic.pumped += 1
    assert channel.finish(consumer, 102, 103) == []
    assert rig.delivers_soon()
    assert rig.flights() == [(200, 202, 30)]
    assert (consumer.finish_count, consumer.in_flight_count, channel.in_flight_count) == (3, 2, 2)
    assert rig.finished() == [(20, 23)]


def test_fins_go_on_from_flight_to_flight(rig: Rig) -> None:
    rig.send(100, 2, 20)
    rig.send(102, 2, 40)
    assert rig.channel.finish(rig.consumer, 100, 103) == []
    assert rig.flights() == [(103, 104, 41)]
    assert rig.channel.finish(rig.consumer, 103, 106) == [104, 105]
    assert rig.flights() == []
    assert rig.finished() == [(20, 22), (40, 42)]


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
    rig: Rig, data: bytes, taken: int, left: list[tuple[int, int, int]]
) -> None:
    rig.send(100, 3, 20)
    rig.send(200, 2, 30)
    assert rig.channel.finish_read(rig.consumer, data + fin(100, 200), len(data)) == 21 * taken
    assert rig.flights() == left
    assert (rig.consumer.finish_count, rig.channel.in_flight_count) == (taken, 5 - taken)


def test_a_read_is_not_looked_at_behind_its_end(rig: Rig) -> None:
    rig.send(100, 3, 20)
    assert rig.channel.finish_read(rig.consumer, bytearray(fin(100, 101)), 1000) == 42
    assert rig.channel.finish_read(rig.consumer, memoryview(fin(102)), 20) == 0


@pytest.mark.parametrize(
    ("first", "end", "missing", "left"),
    [
        (101, 102, [], [(100, 101, 20), (102, 103, 22)]),
        (99, 101, [99], [(101, 103, 21)]),
        (102, 105, [103, 104], [(100, 102, 20)]),
        (99, 104, [99, 103], []),
        (2**64 - 1, 2**64, [2**64 - 1], [(100, 103, 20)]),
        (0, 1, [0], [(100, 103, 20)]),
    ],
)
def test_fins_out_of_order_are_taken_from_where_they_are(
    rig: Rig, first: int, end: int, missing: list[int], left: list[tuple[int, int, int]]
) -> None:
    rig.send(100, 3, 20)
    assert rig.channel.finish(rig.consumer, first, end) == missing
    assert rig.flights() == left
    assert rig.consumer.in_flight_count == rig.channel.in_flight_count == sum(b - a for a, b, _ in left)


def test_the_last_of_all_ids_is_finished_like_others(rig: Rig) -> None:
    rig.send(2**64 - 2, 2, 20)
    assert rig.flights() == [(2**64 - 2, 2**64, 20)]
    assert rig.channel.finish(rig.consumer, 2**64 - 2, 2**64) == []
    assert rig.flights() == []
    rig.send(2**64 - 3, 3, 20)
    assert rig.channel.finish(rig.consumer, 2**64 - 1, 2**64) == []
    assert rig.flights() == [(2**64 - 3, 2**64 - 1, 20)]


def test_a_consumer_without_room_is_not_ready(rig: Rig) -> None:
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


def test_a_message_timeout_longer_than_time_itself_is_a_deadline(rig: Rig) -> None:
    rig.consumer.msg_timeout_ns = 2**63 - 1
    rig.send(100, 1, 20)
    [flight] = rig.consumer.flights
    assert flight.deadline == 2**63 + 999


# ---- sharing out


@settings(max_examples=60)
@given(st.integers(0, 2**64).map(random.Random))
def test_messages_are_shared_in_proportion_to_room(draw: random.Random) -> None:
    rooms = [draw.choice([1, 2, 5, 30]) for _ in range(draw.randint(1, 6))]
    number = draw.randint(len(rooms), max(len(rooms), sum(rooms)))
    with tempfile.TemporaryDirectory() as path:
        harness = Harness(Path(path), Clock(), mem_queue_size=draw.choice([0, 5, 10_000]))
        topic = harness.topic("t")
        channel = topic.channel("c")
        topic.publish([b"x"] * number, 0.0, Publisher())
        topic.commit()
        readers = [Reader() for _ in rooms]
        for reader, room in zip(readers, rooms, strict=True):
            channel.add_consumer(reader.consumer)
            channel.set_ready(reader.consumer, room)
        harness.turn.run()
        got = [len(reader.got) for reader in readers]
        assert sum(got) == number, (got, rooms)
        for mine, room in zip(got, rooms, strict=True):
            # The share, rounded up, and perhaps one of those that this has left over.
            assert mine <= -(-number * room // sum(rooms)) + 1, (got, rooms)
        harness.close()


def test_room_as_large_as_can_be_is_shared_too(tmp_path: Path) -> None:
    """RDY can be as high as --max-rdy-count, and that as high as 2**63 - 1."""
    harness = Harness(tmp_path, Clock())
    topic = harness.topic("t")
    channel = topic.channel("c")
    readers = [Reader() for _ in range(3)]
    for reader, room in zip(readers, ((1 << 63) - 1, (1 << 63) - 1, 10), strict=True):
        channel.add_consumer(reader.consumer)
        channel.set_ready(reader.consumer, room)
    topic.publish([b"x"] * 51, 0.0, Publisher())
    topic.commit()
    harness.turn.run()
    assert [len(reader.got) for reader in readers] == [26, 25, 0]
    harness.close()


def test_what_is_in_order_is_sent_as_one_run_a_consumer(tmp_path: Path) -> None:
    harness = Harness(tmp_path, Clock())
    topic = harness.topic("t")
    channel = topic.channel("c")
    readers = [Reader() for _ in range(3)]
    for reader, room in zip(readers, (10, 20, 30), strict=True):
        channel.add_consumer(reader.consumer)
        channel.set_ready(reader.consumer, room)
    topic.publish([b"x"] * 12, 0.0, Publisher())
    topic.commit()
    harness.turn.run()
    assert [[(each.position, each.count) for each in reader.consumer.flights] for reader in readers] == [
        [(0, 2)],
        [(2, 4)],
        [(6, 6)],
    ]
    harness.close()


def test_requeued_and_old_messages_are_shared_like_new_ones(tmp_path: Path) -> None:
    """Wherever the next run comes from, there is one rule."""
    results = []
    for way in ("memory", "disk", "requeued"):
        (tmp_path / way).mkdir()
        harness = Harness(tmp_path / way, Clock(), mem_queue_size=0 if way == "disk" else 10_000)
        topic = harness.topic("t")
        channel = topic.channel("c")
        topic.publish([b"x"] * 30, 0.0, Publisher())
        topic.commit()
        if way == "requeued":
            first = Reader()
            channel.add_consumer(first.consumer)
            channel.set_ready(first.consumer, 30)
            harness.turn.run()
            channel.set_ready(first.consumer, 0)
            channel.remove_consumer(first.consumer)
        readers = [Reader() for _ in range(3)]
        for reader, room in zip(readers, (10, 20, 60), strict=True):
            channel.add_consumer(reader.consumer)
            channel.set_ready(reader.consumer, room)
        channel.deliver(harness.clock(), SECOND)
        results.append([len(reader.got) for reader in readers])
        harness.close()
    assert results == [[4, 7, 19]] * 3


# ---- a consumer that has left


def test_a_consumer_that_has_left_is_never_ready_again(rig: Rig) -> None:
    rig.send(100, 3, 20)
    rig.consumer.channel = None
    assert rig.consumer.room() == 0
    assert not rig.channel.offer(rig.consumer)
    rig.channel.release(rig.consumer, 3)  # what comes too late
    assert not rig.channel.ready


def test_what_was_read_for_a_consumer_that_has_left_is_for_others(rig: Rig) -> None:
    rig.channel.remove_consumer(rig.consumer)
    rig.send(10, 3, 20)
    assert (rig.flights(), rig.reader.got, rig.channel.in_flight_count) == ([], [], 0)
    other = Reader()
    rig.channel.add_consumer(other.consumer)
    rig.channel.set_ready(other.consumer, 5)
    rig.begin()
    assert [(attempts, body) for _, attempts, body in other.take()] == [(1, b"x")] * 3
    assert [(each.position, each.count) for each in other.consumer.flights] == [(20, 3)]


# ---- what the topic holds back


def test_nothing_is_delivered_that_the_topic_has_not_passed_on(tmp_path: Path) -> None:
    harness = Harness(tmp_path, Clock())
    topic = harness.topic("t")
    channel = topic.channel("c")
    reader = Reader()
    channel.add_consumer(reader.consumer)
    channel.set_ready(reader.consumer, 100)
    topic.publish([b"before"] * 3, 0.0, Publisher())
    topic.commit()
    harness.turn.run()
    for number, _, _ in reader.take():
        channel.requeue(reader.consumer, number, number + 1, 0, harness.clock())
    topic.pause()
    topic.publish([b"behind"] * 3, 0.0, Publisher())
    topic.commit()
    harness.turn.run()
    assert [body for _, _, body in reader.take()] == [b"before"] * 3
    harness.close()
