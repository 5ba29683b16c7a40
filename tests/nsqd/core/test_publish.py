"""A connection that goes on publishing: what is taken of a read, which answers go out, when commits come."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import Any

import pytest

from nsquark import kernel
from nsquark.errors import PubFailed
from nsquark.nsqd.core.answers import AnswerQueue, settle_all
from nsquark.nsqd.core.publish import PendingPublishes, PublishStream
from tests.nsqd.harness import Publisher

OK = b"\0\0\0\x06\0\0\0\0OK"


def pub(body: bytes, topic: bytes = b"t") -> bytes:
    return b"PUB " + topic + b"\n" + struct.pack(">I", len(body)) + body


def mpub(*bodies: bytes, topic: bytes = b"t") -> bytes:
    content = struct.pack(">I", len(bodies)) + b"".join(
        struct.pack(">I", len(each)) + each for each in bodies
    )
    return b"MPUB " + topic + b"\n" + struct.pack(">I", len(content)) + content


class Rig:
    """A stream, what is pending for a topic, and the answers of a connection, without any of the three."""

    def __init__(self, *, large: int = 100, too_much: int = 1000, ids: int = 99, fd: int = -1) -> None:
        self.writer = kernel.BatchWriter(0, 5)
        self.writer.use_ids(5, ids)
        self.calls: list[str] = []
        self.written: list[bytes] = []
        self.waiting = 0  # bytes, in the transport
        self.pending = PendingPublishes(self.writer, self.published, self.commit, large, too_much)
        self.answers = AnswerQueue(self.write, lambda: self.calls.append("ended"))
        self.answers.transport = self  # type: ignore[assignment]
        self.answers.fd = fd
        self.counts: dict[str, int] = {}
        self.stream = PublishStream(self.answers, 20, 60, self.counts)

    def published(self) -> None:
        self.calls.append("published")

    def commit(self) -> None:
        self.calls.append("commit")
        self.pending.take_receipts()

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def follow(self, line: bytes) -> None:
        self.stream.follow(self.pending, "t", line, PubFailed)

    def taken(self) -> int:
        self.stream.count_taken()
        return self.counts.get("t", 0)

    def take(self, data: bytes, end: int = 9999) -> int:
        return self.stream.take(data, 0, end, 7, 8)

    def bodies(self) -> list[bytes]:
        data = self.writer.take()
        bodies, at = [], 48
        while at < len(data):
            if data[at : at + 4] == b"NQB1":
                at += 48
                continue
            (size,) = struct.unpack_from(">I", data, at)
            bodies.append(data[at + 34 : at + 4 + size])
            at += 4 + size
        return bodies


def test_pubs_are_taken_as_far_as_they_are_whole() -> None:
    one, two = pub(b"one"), pub(b"three")
    data = one + two
    for end in range(1, len(data)):
        rig = Rig()
        assert not rig.stream.following
        assert rig.take(data) == 0
        rig.follow(b"PUB t\n")
        assert rig.stream.following
        assert rig.take(data, end) == end
        whole = end >= len(one)
        assert (rig.writer.count, rig.taken(), len(rig.answers.queue)) == (whole, whole, whole)
        kept = data[len(one) * whole : end]
        assert rig.stream.kept == kept
        rest = kept + data[end:]
        assert rig.take(rest) == len(rest)
        assert (rig.stream.kept, rig.taken()) == (b"", 2)
        assert rig.bodies() == [b"one", b"three"]


def test_pubs_are_taken_up_to_something_else() -> None:
    rig = Rig(ids=3)
    rig.follow(b"PUB t\n")
    data = pub(b"one") + pub(b"three")
    others = [pub(b"x", b"u"), pub(b""), pub(b"x" * 21), mpub(b"x"), b"FIN 0123456789abcdef", b"PUB u"]
    for other in others:
        assert (rig.take(other), rig.stream.kept) == (0, b"")
    assert (rig.writer.count, rig.writer.size, rig.writer.ids_left, rig.calls) == (0, 0, 3, [])
    assert rig.take(data + others[0]) == len(data)
    assert rig.take(data[:13]) == 13
    assert (rig.writer.ids_left, rig.taken(), rig.writer.body_bytes) == (0, 3, 11)
    assert rig.take(data, 13) == 0, "there is no id for it"
    assert rig.take(data) == 0
    assert [answer.count for answer in rig.answers.queue] == [2, 1]
    assert list(rig.answers.queue) == rig.pending.receipts
    assert rig.bodies() == [b"one", b"three", b"one"]
    assert rig.writer.body_bytes == 0
    assert rig.take(b"PUB ") == 4
    assert rig.stream.forget() == b"PUB "
    assert (rig.stream.following, rig.stream.kept) == (False, b"")


def test_mpubs_are_taken_as_far_as_they_are_whole() -> None:
    one, two = mpub(b"one", b"three"), mpub(b"x" * 20, b"y")
    data = one + two
    for end in range(1, len(data)):
        rig = Rig()
        rig.follow(b"MPUB t\n")
        assert rig.take(data, end) == end
        kept = data[len(one) * (end >= len(one)) : end]
        assert rig.stream.kept == kept
        rest = kept + data[end:]
        assert rig.take(rest) == len(rest)
        assert (rig.stream.kept, rig.taken()) == (b"", 4)
        assert rig.bodies() == [b"one", b"three", b"x" * 20, b"y"]


def test_mpubs_are_taken_up_to_something_else() -> None:
    rig = Rig(ids=4)
    rig.follow(b"MPUB t\n")
    one, two = mpub(b"one", b"three"), mpub(b"x" * 20)
    bad = [mpub(), mpub(b""), mpub(b"x" * 21), mpub(*[b"x"] * 12), mpub(b"x", topic=b"u"), pub(b"x")]
    lies = [two[:8] + size + two[11:] for size in (b"\0\0\x1b", b"\xff\xff\xff")]
    for other in [*bad, *lies]:
        assert (rig.take(other), rig.stream.kept) == (0, b"")
    # An error is one as soon as it can be seen.
    assert rig.take(mpub()[:15]) == rig.take(mpub(b"x" * 21)[:19]) == rig.take(mpub(b"x", b"")[:24]) == 0
    assert rig.take(mpub(*[b"x"] * 12)[:11]) == 0
    assert (rig.writer.count, rig.writer.size, rig.calls) == (0, 0, [])
    assert rig.take(one + two + bad[0]) == len(one + two)
    assert (rig.writer.ids_left, rig.taken(), rig.writer.body_bytes) == (1, 3, 28)
    assert rig.take(one) == 0, "there are not ids enough"
    assert [answer.count for answer in rig.answers.queue] == [2]
    assert rig.bodies() == [b"one", b"three", b"x" * 20]


def test_the_beginning_of_a_large_command_is_not_kept() -> None:
    rig = Rig()
    rig.stream = PublishStream(rig.answers, 1 << 20, 1 << 20, rig.counts)
    rig.follow(b"PUB t\n")
    large = pub(b"x" * (1 << 17))
    assert rig.stream.take(large, 0, 64 << 10, 7, 8) == 64 << 10
    assert len(rig.stream.kept) == 64 << 10
    assert rig.stream.take(pub(b"one") + large, 0, 13 + (64 << 10) + 1, 7, 8) == 13
    assert rig.stream.kept == b""


def test_what_is_taken_lies_in_the_buffer() -> None:
    rig = Rig()
    rig.follow(b"PUB t\n")
    assert rig.stream.take(b"..." + pub(b"one"), 3, 99, 7, 8) == 13
    for start, end in ((-1, 4), (5, 4), (14, 99)):
        with pytest.raises(ValueError, match="not in the buffer"):
            rig.stream.take(pub(b"one"), start, end, 7, 8)


def test_a_closed_topic_takes_nothing() -> None:
    rig = Rig()
    rig.follow(b"PUB t\n")
    rig.pending.open = False
    assert rig.take(pub(b"one")) == 0
    assert rig.pending.receipts == []


def test_when_a_commit_comes() -> None:
    rig = Rig(too_much=500)
    first, second = Publisher(), Publisher()
    rig.pending.added(first, 10, 3)
    rig.pending.added(second, 10, 4)
    assert (rig.calls, rig.pending.since, rig.pending.receipts) == (["published"], 3, [first, second])
    rig.pending.consumers = 1
    rig.pending.added(first, 100, 5)
    assert rig.calls == ["published"], "a large one waits for more while there are consumers"
    rig.pending.consumers = 0
    rig.pending.added(first, 100, 5)
    assert rig.calls == ["published", "commit"]
    rig.follow(b"PUB t\n")
    for _ in range(64):
        assert rig.take(pub(b"x" * 20)) == 30
    assert rig.calls == ["published", "commit", "published", "commit"]


def test_answers_with_nothing_before_them_are_sent_at_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        rig = Rig(fd=ours.fileno())
        rig.follow(b"PUB t\n")
        rig.take(pub(b"one") * 3)
        settle_all(rig.pending.receipts)
        assert theirs.recv(100) == OK * 3
        assert (list(rig.answers.queue), rig.calls) == ([], ["published"])
        # one that others wait behind, and one for which the transport is not empty
        rig.pending.take_receipts()
        rig.take(pub(b"one"))
        rig.answers.queue.append(b"then")
        settle_all(rig.pending.receipts)
        assert rig.written == [OK + b"then"]
        rig.pending.take_receipts()
        rig.take(pub(b"one") * 2)
        rig.waiting = 1
        settle_all(rig.pending.receipts)
        assert rig.written[1:] == [OK * 2]
        assert list(rig.answers.queue) == []
        with pytest.raises(BlockingIOError):
            theirs.recv(100)


def test_what_a_socket_does_not_take_is_left_to_the_transport() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                ours.send(b"x" * 65536)
        rig = Rig(fd=ours.fileno())
        rig.follow(b"PUB t\n")
        rig.take(pub(b"one") * 2)
        settle_all(rig.pending.receipts)
        assert (rig.written, list(rig.answers.queue)) == ([OK * 2], [])
    closed, other = os.pipe()
    os.close(closed)
    rig.answers.fd = other
    rig.pending.take_receipts()
    rig.take(pub(b"one"))
    settle_all(rig.pending.receipts)
    assert rig.written == [OK * 2, OK]
    os.close(other)


def test_very_many_answers_are_left_to_the_transport() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        rig = Rig(fd=ours.fileno(), ids=513, large=10**6)
        rig.follow(b"PUB t\n")
        rig.take(pub(b"x") * 513, 10**6)
        settle_all(rig.pending.receipts)
        assert rig.written == [OK * 513]
        with pytest.raises(BlockingIOError):
            theirs.recv(100)


def test_all_receipts_are_settled_though_one_fails() -> None:
    class Broken(Publisher):
        def settle(self, reason: str | None) -> None:
            raise RuntimeError("never mind")

    first, last = Publisher(), Publisher()
    with pytest.raises(RuntimeError, match="never mind"):
        settle_all([first, Broken(), last])
    assert (first.settled, last.settled) == ([None], [None])


def test_a_publish_that_is_refused_ends_the_connection() -> None:
    rig = Rig()
    rig.follow(b"PUB t\n")
    rig.take(pub(b"one") * 2)
    rig.pending.receipts[0].settle("disk full")
    assert rig.calls == ["published", "ended"]
    (error,) = rig.written
    assert error[8:] == b"E_PUB_FAILED PUB failed disk full"


@pytest.mark.parametrize(("data", "heard"), [(b"", 0), (pub(b"one")[:9], 0), (pub(b"one"), 8)])
def test_a_whole_command_is_a_sign_of_life(data: bytes, heard: int) -> None:
    rig = Rig()
    rig.follow(b"PUB t\n")
    assert rig.take(data) == len(data)
    assert rig.stream.heard == heard


# ---- large bodies

LINE = b"PUB t\n"
LARGE = 200 << 10


def kept_large(rig: Rig, size: int = LARGE) -> None:
    """The stream keeps a large PUB, all of which has come."""
    rig.stream = PublishStream(rig.answers, 1 << 20, 1 << 20, rig.counts)
    rig.stream.follow(rig.pending, "t", LINE, PubFailed)
    command = pub(bytes(size))
    assert rig.stream.take(command, 0, 100_000, 7, 8, True) == 100_000
    assert rig.stream.large is not None
    rig.stream.large.put(command[100_000:])


def test_a_large_pub_is_committed_alone_and_at_once() -> None:
    rig = Rig(ids=2)
    rig.stream.follow(rig.pending, "t", LINE, PubFailed)
    rig.take(pub(b"one"))
    kept_large(rig)
    rig.calls.clear()
    assert rig.stream.take_large(9, 10)
    assert rig.calls == ["commit", "commit"]  # what was before it comes first
    assert (rig.stream.large, rig.taken(), rig.stream.heard, rig.stream.expected) == (None, 1, 10, LARGE)
    assert (rig.pending.since, len(rig.answers.queue)) == (9, 2)
    assert not rig.stream.take_large(9, 10)
    assert rig.stream.take(pub(b"one"), 0, 13, 7, 8, True) == 0  # there are no more ids
    assert rig.stream.forget() == b""
    assert rig.stream.expected == 0


@pytest.mark.parametrize("obstacle", ["ids", "closed", "refused", "forgotten"])
def test_a_large_pub_is_left_to_the_parser_where_something_is_in_its_way(obstacle: str) -> None:
    rig = Rig(ids=0 if obstacle == "ids" else 9)
    kept_large(rig)
    if obstacle == "closed":
        rig.pending.open = False
    elif obstacle == "refused":
        rig.answers.refused = True
    elif obstacle == "forgotten":
        rig.writer.add_bodies([b"x"], 7, 0)
        rest: list[bytes] = []
        rig.commit = lambda: rest.append(rig.stream.forget())  # type: ignore[method-assign]
        rig.pending = PendingPublishes(rig.writer, rig.published, rig.commit, 100, 1000)
        kept_large(rig)
        assert not rig.stream.take_large(9, 10)
        assert rest == [pub(bytes(LARGE))]
        return
    assert not rig.stream.take_large(9, 10)
    assert (rig.writer.size, rig.calls, rig.taken()) == (0, [], 0)
    assert rig.stream.forget() == pub(bytes(LARGE))


def test_a_smaller_body_is_not_expected_again() -> None:
    rig = Rig()
    kept_large(rig, 150_000)
    assert rig.stream.take_large(9, 10)
    assert rig.stream.expected == 0
    kept_large(rig)
    assert rig.stream.take_large(9, 10)
    assert rig.stream.take(pub(b"one"), 0, 13, 7, 8, True) == 13
    assert rig.stream.expected == 0


class Topics:
    """Several topics that a client may publish to, each with its own writer, and the stream that follows."""

    def __init__(self, names: str) -> None:
        self.rigs = {name: Rig() for name in names}
        first = self.rigs[names[0]]
        self.answers, self.stream, self.counts = first.answers, first.stream, first.counts

    def follow(self, name: str, command: bytes = b"PUB ") -> None:
        line = command + name.encode() + b"\n"
        self.stream.follow(self.rigs[name].pending, name, line, PubFailed, dict(self.rigs))

    def take(self, data: bytes) -> int:
        return self.stream.take(data, 0, len(data), 7, 8)

    def bodies(self) -> dict[str, list[bytes]]:
        return {name: rig.bodies() for name, rig in self.rigs.items()}


def test_a_stream_goes_from_topic_to_topic() -> None:
    topics = Topics("tuv")
    topics.follow("t")
    data = pub(b"1") + pub(b"2", b"u") + pub(b"3", b"u") + pub(b"4") + pub(b"5", b"v")
    assert topics.take(data) == len(data)
    assert [answer.count for answer in topics.answers.queue] == [1, 2, 1, 1]
    of = {name: rig.pending.receipts for name, rig in topics.rigs.items()}
    first, second, third, fourth = topics.answers.queue
    assert of == {"t": [first, third], "u": [second], "v": [fourth]}, "each topic answers for its own"
    assert topics.rigs["u"].calls == ["published"]
    topics.stream.count_taken()
    assert topics.counts == {"t": 2, "u": 2, "v": 1}
    assert topics.bodies() == {"t": [b"1", b"4"], "u": [b"2", b"3"], "v": [b"5"]}


@pytest.mark.parametrize("command", [pub, mpub], ids=["PUB", "MPUB"])
def test_the_beginning_of_a_command_for_another_topic_is_kept(command: Any) -> None:
    one, two = command(b"one"), command(b"three", topic=b"u")
    line_end = two.index(b"\n") + 1
    for end in range(len(one) + 1, len(one) + len(two)):
        topics = Topics("tu")
        topics.follow("t", one[: one.index(b" ") + 1])
        data = (one + two)[:end]
        taken = topics.take(data)
        # While the line is not whole, the topic is unknown. Up to the name it may be the one before.
        known = not two.index(b" ") + 1 < end - len(one) < line_end
        assert (taken, topics.stream.kept) == ((end, data[len(one) :]) if known else (len(one), b""))
        if known:
            rest = topics.stream.kept + two[end - len(one) :]
            assert topics.take(rest) == len(rest)
        assert topics.bodies() == {"t": [b"one"], "u": [b"three"] if known else []}


def test_a_stream_goes_to_no_topic_that_is_unknown_closed_or_without_ids() -> None:
    one = pub(b"one")
    for other in (
        pub(b"x", b"w"),
        pub(b"x", b"u"),
        pub(b"x", b"v"),
        pub(b"x", b"\xfc"),
        mpub(b"x", topic=b"u"),
    ):
        topics = Topics("tuv")
        topics.rigs["u"].pending.open = False
        topics.rigs["v"].writer.use_ids(5, 0)
        topics.follow("t")
        assert (topics.take(one + other + one), topics.stream.kept) == (len(one), b"")
        assert topics.bodies() == {"t": [b"one"], "u": [], "v": []}
    topics = Topics("tu")
    topics.stream.follow(topics.rigs["t"].pending, "t", b"PUB t\n", PubFailed)
    assert topics.take(one + pub(b"x", b"u")) == len(one), "the client must be asked about each topic"


def test_a_stream_that_is_told_to_forget_takes_nothing_more() -> None:
    topics = Topics("tu")
    topics.rigs["t"].pending = PendingPublishes(
        topics.rigs["t"].writer, topics.stream.forget, topics.rigs["t"].commit, 100, 1000
    )
    topics.follow("t")
    assert topics.take(pub(b"one") + pub(b"x", b"u")) == len(pub(b"one"))
    assert topics.bodies() == {"t": [b"one"], "u": []}


def test_one_read_with_very_many_turns_leaves_the_rest_to_others() -> None:
    topics = Topics("tu")
    for rig in topics.rigs.values():
        rig.writer.use_ids(5, 9999)
    topics.follow("t")
    data = (pub(b"1") + pub(b"2", b"u")) * 1000
    taken = topics.take(data)
    assert 0 < taken < len(data)
    assert topics.stream.forget() == b""
    topics.follow("t")
    assert topics.take(data[taken:]) > 0
