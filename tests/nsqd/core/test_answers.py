"""Answers go out in the order of their commands, whenever they are ready."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark.errors import DpubFailed, MpubFailed, PubFailed
from nsquark.nsqd.core.answers import AnswerQueue, PublishAnswer, settle_all
from nsquark.wire import OK, pack_error, pack_response


class Wire:
    """What the client sees."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.ends = 0
        self.answers = AnswerQueue(self.write, self.end)

    def write(self, data: bytes) -> None:
        assert not self.ends
        assert data
        self.writes.append(data)

    def end(self) -> None:
        self.ends += 1

    @property
    def data(self) -> bytes:
        return b"".join(self.writes)


def test_what_is_ready_goes_out_at_once() -> None:
    wire = Wire()
    wire.answers.say(b"one")
    wire.answers.say(b"two")
    assert wire.writes == [b"one", b"two"]
    assert not wire.answers.ended


def test_what_comes_behind_a_publish_waits_for_it() -> None:
    wire = Wire()
    first = wire.answers.expect(PubFailed)
    wire.answers.say(b"then")
    second = wire.answers.expect(PubFailed)
    assert wire.writes == []
    second.settle(None)
    assert wire.writes == []
    first.settle(None)
    assert wire.writes == [OK + b"then" + OK]
    wire.answers.say(b"last")
    assert wire.writes[-1] == b"last"


def test_a_run_of_publishes_is_answered_one_by_one() -> None:
    wire = Wire()
    wire.answers.expect(PubFailed, 3).settle(None)
    assert wire.data == OK * 3


def test_a_publish_that_failed_ends_the_connection() -> None:
    for error, text in (
        (PubFailed, b"E_PUB_FAILED PUB failed exiting"),
        (MpubFailed, b"E_MPUB_FAILED MPUB failed exiting"),
        (DpubFailed, b"E_DPUB_FAILED DPUB failed exiting"),
    ):
        wire = Wire()
        wire.answers.expect(error, 5).settle("exiting")
        assert wire.writes == [pack_error(text)]
        assert wire.ends == 1
        assert wire.answers.ended


def test_nothing_comes_behind_the_last_answer() -> None:
    wire = Wire()
    first, second = wire.answers.expect(PubFailed), wire.answers.expect(PubFailed)
    wire.answers.say(b"error", last=True)
    third = wire.answers.expect(PubFailed)
    wire.answers.say(b"never")
    third.settle(None)
    first.settle(None)
    assert wire.ends == 0
    second.settle(None)
    assert wire.data == OK + OK + b"error"
    assert wire.ends == 1
    wire.answers.say(b"never", last=True)
    wire.answers.expect(PubFailed).settle("too late")
    wire.answers.flush()
    assert wire.data == OK + OK + b"error"
    assert wire.ends == 1


def test_the_last_answer_may_be_empty() -> None:
    wire = Wire()
    wire.answers.say(b"", last=True)
    assert (wire.writes, wire.ends) == ([], 1)
    wire = Wire()
    waiting = wire.answers.expect(PubFailed)
    wire.answers.say(b"", last=True)
    waiting.settle(None)
    assert (wire.writes, wire.ends) == ([OK], 1)


@settings(max_examples=300)
@given(st.integers(0, 2**64).map(random.Random))
def test_answers_keep_their_order(draw: random.Random) -> None:
    wire = Wire()
    expected: list[tuple[PublishAnswer | None, bytes, bool]] = []  # whose, what, whether it is the last one
    unsettled: list[tuple[PublishAnswer, int]] = []
    settled: dict[PublishAnswer, tuple[bytes, bool]] = {}

    def seen() -> tuple[bytes, bool]:
        data = b""
        for answer, said, last in expected:
            if answer is not None:
                if answer not in settled:
                    break
                said, last = settled[answer]
            data += said
            if last:
                return data, True
        return data, False

    for number in range(draw.randint(1, 20)):
        match draw.randrange(5):
            case 0 | 1:
                count = draw.choice([1, 1, 3])
                answer = wire.answers.expect(PubFailed, count)
                expected.append((answer, b"", False))
                unsettled.append((answer, count))
            case 2:
                said, last = pack_response(b"%d" % number), draw.random() < 0.1
                wire.answers.say(said, last)
                expected.append((None, said, last))
            case _ if unsettled:
                answer, count = unsettled.pop(draw.randrange(len(unsettled)))
                if draw.random() < 0.1:
                    settled[answer] = (pack_error(b"E_PUB_FAILED PUB failed why"), True)
                    answer.settle("why")
                else:
                    settled[answer] = (OK * count, False)
                    answer.settle(None)
        data, ended = seen()
        assert wire.data == data
        assert wire.ends == wire.answers.closed == ended


def test_a_step_is_taken_when_all_before_it_is_handed_over() -> None:
    """An upgrade begins behind its answer, however long the publishes before it take."""
    said: list[bytes] = []
    answers = AnswerQueue(said.append, lambda: None)
    first = answers.expect(PubFailed)
    answers.say_then(b"json", lambda: said.append(b"(upgrade)"))
    answers.say(b"after")
    assert said == []
    first.settle(None)
    assert said == [OK + b"json", b"(upgrade)", b"after"]


def test_no_step_is_taken_behind_the_last_answer() -> None:
    said: list[bytes] = []
    answers = AnswerQueue(said.append, lambda: said.append(b"(end)"))
    first = answers.expect(PubFailed)
    answers.say_then(b"json", lambda: said.append(b"(upgrade)"))
    first.settle("exiting")
    assert said[1:] == [b"(end)"]
    assert b"E_PUB_FAILED PUB failed exiting" in said[0]


def test_what_is_settled_together_goes_out_together() -> None:
    one, other = Wire(), Wire()
    receipts = [wire.answers.expect(PubFailed) for wire in (one, other, one, one)]
    one.answers.say(b"then")
    last = one.answers.expect(PubFailed)
    settle_all([receipts[2], *receipts[:2], receipts[3]])
    assert (one.writes, other.writes) == ([OK * 3 + b"then"], [OK])
    settle_all([last])
    assert one.writes[-1] == OK


def test_the_others_are_told_where_one_cannot_be() -> None:
    class Broken:
        def settle(self, reason: str | None) -> None:
            raise ValueError("broken")

    wires = [Wire(), Wire()]
    receipts = [wire.answers.expect(PubFailed) for wire in [*wires, *wires]]

    def refuse(data: bytes) -> None:
        raise OSError("refused")

    wires[0].answers.write_through(refuse, refuse)
    with pytest.raises(ValueError, match="broken"):
        settle_all([Broken(), *receipts])
    assert wires[1].writes == [OK * 2]
    wires[0].answers.write_through(wires[0].write, wires[0].write)
    wires[0].answers.say(b"on")
    assert wires[0].writes[-1] == b"on"
