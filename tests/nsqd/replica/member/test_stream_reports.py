"""What a standby's stream reports becomes the automaton's input, and its answer the stream's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from nsquark.nsqd.replica.automaton.actions import Acknowledge, Action, DropStream
from nsquark.nsqd.replica.member.stream_reports import StreamReports


class Automaton:
    """Wants every frame acknowledged, and the stream dropped after frame `drops_after`."""

    def __init__(self, drops_after: int = 0) -> None:
        self.wanted: list[Action] = []
        self._drops_after = drops_after

    def frame_written(self, _now: float, term: int, sequence: int) -> None:
        self.wanted.append(Acknowledge(term, sequence, 0))
        if sequence == self._drops_after:
            self.wanted.append(DropStream())


def wanted_after(automaton: Automaton, first: int, last: int) -> list[Action]:
    async def run() -> None:
        member = SimpleNamespace(automaton=automaton, perform=lambda: None)
        StreamReports(cast(Any, member)).frames_written(7, first, last)

    asyncio.run(run())
    return automaton.wanted


def test_frames_that_came_together_are_acknowledged_once() -> None:
    assert wanted_after(Automaton(), 4, 9) == [Acknowledge(7, 9, 0)]


def test_a_single_frame_is_acknowledged() -> None:
    assert wanted_after(Automaton(), 4, 4) == [Acknowledge(7, 4, 0)]


def test_nothing_but_acknowledgements_is_left_out() -> None:
    assert wanted_after(Automaton(drops_after=5), 4, 6) == [DropStream(), Acknowledge(7, 6, 0)]
