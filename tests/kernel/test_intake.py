"""The short way of a publish: what is taken of a read, who is answered, and that the twins agree."""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import socket
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark import kernel
from nsquark.kernel import pure, pure_intake

OK = b"\0\0\0\x06\0\0\0\0OK"
TWINS: list[tuple[Any, Any]] = [(pure, pure_intake)]
if kernel.COMPILED:
    TWINS.append(tuple(importlib.import_module(f"nsquark.kernel.{name}") for name in ("fast", "fast_intake")))

each_twin = pytest.mark.parametrize(
    "twin", TWINS, ids=lambda twin: twin[1].__name__.rpartition(".")[2].removesuffix("_intake")
)


def pub(body: bytes, topic: bytes = b"t") -> bytes:
    return b"PUB " + topic + b"\n" + struct.pack(">I", len(body)) + body


def mpub(*bodies: bytes, topic: bytes = b"t") -> bytes:
    content = struct.pack(">I", len(bodies)) + b"".join(
        struct.pack(">I", len(each)) + each for each in bodies
    )
    return b"MPUB " + topic + b"\n" + struct.pack(">I", len(content)) + content


class Rig:
    """A source, a topic's intake and a connection's answers, without any of the three."""

    def __init__(
        self, twin: tuple[Any, Any], *, large: int = 100, too_much: int = 1000, ids: int = 99, fd: int = -1
    ) -> None:
        log, intake = twin
        self.writer = log.BatchWriter(0, 5)
        self.writer.ids_left = ids
        self.calls: list[str] = []
        self.taken: list[bytes] = []
        self.intake = intake.Intake(self.writer, self.published, self.commit, large, too_much)
        rig = self

        class Answers(intake.AnswerQueue):  # type: ignore[misc]
            def refuse(self, answer: Any, reason: str) -> None:
                rig.calls.append(f"refused {answer.count}: {reason}")

            def flush(self) -> None:
                rig.calls.append("flushed")

        self.answers = Answers()
        self.answers.queue = deque()
        self.answers.transport = self
        self.answers.fd = fd
        self.source = intake.Source(self.answers, 20, 60)
        self.settle_all = intake.settle_all
        self.waiting = 0  # bytes, in the transport
        self.written: list[bytes] = []

    def published(self) -> None:
        self.calls.append("published")

    def commit(self) -> None:
        self.calls.append("commit")
        self.intake.receipts = []

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def follow(self, line: bytes) -> None:
        self.source.follow(self.intake, line, ValueError)

    def take(self, data: bytes, end: int = 9999) -> int:
        taken: int = self.source.take(data, 0, end, 7)
        return taken

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


@each_twin
def test_pubs_are_taken_as_far_as_they_are_whole(twin: tuple[ModuleType, ModuleType]) -> None:
    one, two = pub(b"one"), pub(b"three")
    data = one + two
    for end in range(1, len(data)):
        rig = Rig(twin)
        assert not rig.source.following
        assert rig.take(data) == 0
        rig.follow(b"PUB t\n")
        assert rig.source.following
        assert rig.take(data, end) == end
        whole = end >= len(one)
        assert (rig.writer.count, rig.source.taken, len(rig.answers.queue)) == (whole, whole, whole)
        kept = data[len(one) * whole : end]
        assert rig.source.kept == kept
        rest = kept + data[end:]
        assert rig.take(rest) == len(rest)
        assert (rig.source.kept, rig.source.taken) == (b"", 2)
        assert rig.bodies() == [b"one", b"three"]


@each_twin
def test_pubs_are_taken_up_to_something_else(twin: tuple[ModuleType, ModuleType]) -> None:
    rig = Rig(twin, ids=3)
    rig.follow(b"PUB t\n")
    data = pub(b"one") + pub(b"three")
    others = [pub(b"x", b"u"), pub(b""), pub(b"x" * 21), mpub(b"x"), b"FIN 0123456789abcdef", b"PUB u"]
    for other in others:
        assert (rig.take(other), rig.source.kept) == (0, b"")
    assert (rig.writer.count, rig.writer.size, rig.writer.ids_left, rig.calls) == (0, 0, 3, [])
    assert rig.take(data + others[0]) == len(data)
    assert rig.take(data[:13]) == 13
    assert (rig.writer.ids_left, rig.source.taken, rig.writer.body_bytes) == (0, 3, 11)
    assert rig.take(data, 13) == 0, "there is no id for it"
    assert rig.take(data) == 0
    assert [answer.count for answer in rig.answers.queue] == [2, 1]
    assert list(rig.answers.queue) == rig.intake.receipts
    assert rig.bodies() == [b"one", b"three", b"one"]
    assert rig.writer.body_bytes == 0
    assert rig.take(b"PUB ") == 4
    assert rig.source.forget() == b"PUB "
    assert (rig.source.following, rig.source.kept) == (False, b"")


@each_twin
def test_mpubs_are_taken_as_far_as_they_are_whole(twin: tuple[ModuleType, ModuleType]) -> None:
    one, two = mpub(b"one", b"three"), mpub(b"x" * 20, b"y")
    data = one + two
    for end in range(1, len(data)):
        rig = Rig(twin)
        rig.follow(b"MPUB t\n")
        assert rig.take(data, end) == end
        kept = data[len(one) * (end >= len(one)) : end]
        assert rig.source.kept == kept
        rest = kept + data[end:]
        assert rig.take(rest) == len(rest)
        assert (rig.source.kept, rig.source.taken) == (b"", 4)
        assert rig.bodies() == [b"one", b"three", b"x" * 20, b"y"]


@each_twin
def test_mpubs_are_taken_up_to_something_else(twin: tuple[ModuleType, ModuleType]) -> None:
    rig = Rig(twin, ids=4)
    rig.follow(b"MPUB t\n")
    one, two = mpub(b"one", b"three"), mpub(b"x" * 20)
    bad = [mpub(), mpub(b""), mpub(b"x" * 21), mpub(*[b"x"] * 12), mpub(b"x", topic=b"u"), pub(b"x")]
    lies = [two[:8] + size + two[11:] for size in (b"\0\0\x1b", b"\xff\xff\xff")]
    for other in [*bad, *lies]:
        assert (rig.take(other), rig.source.kept) == (0, b"")
    # An error is one as soon as it can be seen.
    assert rig.take(mpub()[:15]) == rig.take(mpub(b"x" * 21)[:19]) == rig.take(mpub(b"x", b"")[:24]) == 0
    assert rig.take(mpub(*[b"x"] * 12)[:11]) == 0
    assert (rig.writer.count, rig.writer.size, rig.calls) == (0, 0, [])
    assert rig.take(one + two + bad[0]) == len(one + two)
    assert (rig.writer.ids_left, rig.source.taken, rig.writer.body_bytes) == (1, 3, 28)
    assert rig.take(one) == 0, "there are not ids enough"
    assert [answer.count for answer in rig.answers.queue] == [2]
    assert rig.bodies() == [b"one", b"three", b"x" * 20]


@each_twin
def test_the_beginning_of_a_large_command_is_not_kept(twin: tuple[ModuleType, ModuleType]) -> None:
    rig = Rig(twin)
    rig.source = twin[1].Source(rig.answers, 1 << 20, 1 << 20)
    rig.follow(b"PUB t\n")
    large = pub(b"x" * (1 << 17))
    assert rig.source.take(large, 0, 64 << 10, 7) == 64 << 10
    assert len(rig.source.kept) == 64 << 10
    assert rig.source.take(pub(b"one") + large, 0, 13 + (64 << 10) + 1, 7) == 13
    assert rig.source.kept == b""


@each_twin
def test_what_is_taken_lies_in_the_buffer(twin: tuple[ModuleType, ModuleType]) -> None:
    rig = Rig(twin)
    rig.follow(b"PUB t\n")
    assert rig.source.take(b"..." + pub(b"one"), 3, 99, 7) == 13
    for start, end in ((-1, 4), (5, 4), (14, 99)):
        with pytest.raises(ValueError, match="not in the buffer"):
            rig.source.take(pub(b"one"), start, end, 7)


@each_twin
def test_a_closed_intake_takes_nothing(twin: tuple[ModuleType, ModuleType]) -> None:
    rig = Rig(twin)
    rig.follow(b"PUB t\n")
    rig.intake.open = False
    assert rig.take(pub(b"one")) == 0
    assert rig.intake.receipts == []


@each_twin
def test_when_a_commit_comes(twin: tuple[ModuleType, ModuleType]) -> None:
    rig = Rig(twin, too_much=500)
    rig.intake.added("a", 10, 3)
    rig.intake.added("b", 10, 4)
    assert (rig.calls, rig.intake.since, rig.intake.receipts) == (["published"], 3, ["a", "b"])
    rig.intake.consumers = 1
    rig.intake.added("c", 100, 5)
    assert rig.calls == ["published"], "a large one waits for more while there are consumers"
    rig.intake.consumers = 0
    rig.intake.added("d", 100, 5)
    assert rig.calls == ["published", "commit"]
    rig.follow(b"PUB t\n")
    for _ in range(64):
        assert rig.take(pub(b"x" * 20)) == 30
    assert rig.calls == ["published", "commit", "published", "commit"]


@each_twin
def test_answers_with_nothing_before_them_are_sent_at_once(twin: tuple[ModuleType, ModuleType]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        rig = Rig(twin, fd=ours.fileno())
        rig.follow(b"PUB t\n")
        rig.take(pub(b"one") * 3)
        rig.settle_all(rig.intake.receipts)
        assert theirs.recv(100) == OK * 3
        assert (list(rig.answers.queue), rig.calls) == ([], ["published"])
        # one that others wait behind, one for whose bytes the transport is not empty, one too many
        rig.intake.receipts = []
        rig.take(pub(b"one"))
        rig.answers.queue.append(b"then")
        rig.settle_all(rig.intake.receipts)
        assert (rig.answers.queue[0].data, rig.calls[1:]) == (OK, ["published", "flushed"])
        rig.answers.queue.clear()
        rig.intake.receipts = []
        rig.take(pub(b"one") * 2)
        rig.waiting = 1
        rig.settle_all(rig.intake.receipts)
        assert (rig.answers.queue[0].data, rig.calls[3:]) == (OK * 2, ["published", "flushed"])
        with pytest.raises(BlockingIOError):
            theirs.recv(100)


@each_twin
def test_what_a_socket_does_not_take_is_left_to_the_transport(twin: tuple[ModuleType, ModuleType]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                ours.send(b"x" * 65536)
        rig = Rig(twin, fd=ours.fileno())
        rig.follow(b"PUB t\n")
        rig.take(pub(b"one") * 2)
        rig.settle_all(rig.intake.receipts)
        assert (rig.written, list(rig.answers.queue)) == ([OK * 2], [])
    closed, other = os.pipe()
    os.close(closed)
    rig.answers.fd = other
    rig.intake.receipts = []
    rig.take(pub(b"one"))
    rig.settle_all(rig.intake.receipts)
    assert rig.written == [OK * 2, OK]
    os.close(other)


@each_twin
def test_other_receipts_and_refusals(twin: tuple[ModuleType, ModuleType]) -> None:
    rig = Rig(twin)
    settled: list[str | None] = []

    @dataclass
    class Receipt:
        def settle(self, reason: str | None) -> None:
            settled.append(reason)

    rig.follow(b"PUB t\n")
    rig.take(pub(b"one") * 2)
    rig.settle_all([Receipt(), Receipt()])
    assert settled == [None, None]

    class Broken(Receipt):
        def settle(self, reason: str | None) -> None:
            raise RuntimeError("never mind")

    with pytest.raises(RuntimeError, match="never mind"):
        rig.settle_all([Broken(), Receipt()])
    assert settled == [None, None, None]
    rig.answers.queue[0].settle("disk full")
    assert rig.calls == ["published", "refused 2: disk full"]


def reads(draw: random.Random) -> Iterator[tuple[bytes, int]]:
    for _ in range(draw.randint(1, 4)):
        lengths = [draw.choice([0, 1, 1, 2, 19, 20, 21]) if draw.random() < 0.3 else 3 for _ in range(9)]
        bodies = [draw.randbytes(length) for length in lengths[: draw.randint(0, 9)]]
        data = b"".join(
            pub(draw.choice(bodies or [b"x"]), draw.choice([b"t"] * 9 + [b"u"]))
            if draw.random() < 0.5
            else mpub(*bodies[: draw.randint(0, 9)])
            for _ in range(draw.randint(1, 3))
        )
        if draw.random() < 0.3:
            at = draw.randrange(len(data))
            data = data[:at] + draw.randbytes(1) + data[at + 1 :]
        yield data, draw.choice([len(data)] * 4 + [9999, draw.randint(0, len(data))])


@pytest.mark.skipif(len(TWINS) < 2, reason="the compiled kernel is not in use")
@settings(max_examples=300, deadline=None)
@given(st.integers())
def test_the_twins_take_the_same(seed: int) -> None:
    draw = random.Random(seed)
    rigs = [Rig(twin, ids=draw.randint(0, 30)) for twin in TWINS]
    rigs[1].writer.ids_left = rigs[0].writer.ids_left
    line = draw.choice([b"PUB t\n", b"MPUB t\n"])
    for rig in rigs:
        rig.follow(line)
    kept = b""
    for data, end in reads(draw):
        one, other = (rig.take(kept + data, end) for rig in rigs)
        assert one == other
        kept, another = (rig.source.kept for rig in rigs)
        assert kept == another
    for name in ("count", "body_bytes", "ids_left", "size", "position", "next_id"):
        assert getattr(rigs[0].writer, name) == getattr(rigs[1].writer, name)
    assert rigs[0].calls == rigs[1].calls
    assert rigs[0].source.taken == rigs[1].source.taken
    assert [each.count for each in rigs[0].answers.queue] == [each.count for each in rigs[1].answers.queue]
    assert rigs[0].writer.take() == rigs[1].writer.take()
