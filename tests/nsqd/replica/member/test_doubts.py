"""What a member does once an fsync has failed, whichever part it has in its group."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nsquark.nsqd.options import Options
from nsquark.nsqd.replica.automaton.states import State
from nsquark.nsqd.replica.member.doubts import Doubts
from nsquark.nsqd.replica.member.member import Member
from nsquark.nsqd.replica.member.member_file import MemberFile


class Process:
    """The parts of a member that a failed fsync concerns, without etcd. `anew` counts the calls of exec."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, *, leads: bool) -> None:
        self.anew = 0
        self.handovers: list[bool] = []  # answers to come of the automaton that is to hand over
        self.options = Options(data_path=str(directory), replica_group="g", replica_member="a")
        self.file = MemberFile.open(self.options)
        self.incarnation = self.file.stored.incarnation
        self.left = False
        self.automaton = SimpleNamespace(
            leading=object() if leads else None,
            state=State.PRIMARY if leads else State.IN_SYNC,
            leave=self.leave,
            wanted=[],
            hand_over=lambda _now, drain: not drain and self.handovers.pop(0),
        )
        member = object.__new__(Member)
        member.file, member.directory = self.file, directory
        member.automaton = cast(Any, self.automaton)
        member.ended, member.stopping = asyncio.Event(), False
        member.perform = lambda: None
        self.doubts = Doubts(member)
        monkeypatch.setattr(os, "execv", self.execv)

    def leave(self) -> None:
        self.left = True

    def execv(self, _program: str, _arguments: list[str]) -> None:
        self.anew += 1


def test_a_standby_whose_fsync_failed_begins_anew_as_another_incarnation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        process = Process(tmp_path, monkeypatch, leads=False)
        process.doubts.fsync_failed(frozenset({"topics/t/0.log"}))
        assert process.left
        assert process.anew == 1
        assert process.file.stored.incarnation != process.incarnation

    asyncio.run(run())


def test_a_standby_that_cannot_note_a_failed_fsync_neither_follows_nor_begins_anew_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        process = Process(tmp_path, monkeypatch, leads=False)

        def refuse(_fd: int) -> None:
            raise OSError(errno.EIO, "input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", refuse)
            process.doubts.fsync_failed(frozenset({"topics/t/0.log"}))
        assert process.left
        assert process.anew == 0
        process.doubts.begin_anew()  # a tick
        assert process.anew == 1

    asyncio.run(run())


def test_a_failed_fsync_during_a_campaign_waits_for_its_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is won, no other member may be able to lead."""

    async def run() -> None:
        process = Process(tmp_path, monkeypatch, leads=False)
        process.automaton.state = State.CAMPAIGN
        process.doubts.fsync_failed(frozenset({"topics/t/0.log"}))
        assert process.anew == 0
        process.automaton.state = State.IN_SYNC  # lost
        process.doubts.begin_anew()
        assert process.anew == 1

    asyncio.run(run())


def test_a_winner_stores_the_files_anew_whose_fsync_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        process = Process(tmp_path, monkeypatch, leads=True)
        segment = tmp_path / "topics/t/0.log"
        segment.parent.mkdir(parents=True)
        segment.write_bytes(b"batches")
        before = segment.stat().st_ino
        process.doubts.fsync_failed(frozenset({"topics/t/0.log", "topics/gone/0.log"}))
        assert process.anew == 0
        await process.doubts.store()
        assert segment.read_bytes() == b"batches"
        assert segment.stat().st_ino != before
        assert process.file.stored.incarnation == process.incarnation

    asyncio.run(run())


def test_a_standby_s_fsync_that_fails_when_the_member_leads_by_then_makes_it_give_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        process = Process(tmp_path, monkeypatch, leads=True)
        process.handovers = [False]
        doubts = process.doubts
        doubts.directory_opened()
        assert doubts.giving_up is None
        doubts.fsync_failed(frozenset({"topics/t/0.log"}))
        assert doubts.giving_up is not None
        await doubts.giving_up
        assert process.anew == 1
        assert MemberFile.open(process.options).stored.doubtful == ("topics/t/0.log",)

    asyncio.run(run())


@pytest.mark.parametrize("handovers", [[False], [True, False]])
def test_a_primary_whose_fsync_failed_lets_another_lead_or_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handovers: list[bool]
) -> None:
    async def run() -> None:
        monkeypatch.setattr("nsquark.nsqd.replica.member.doubts.SYNC_AGAIN", 0.0)
        process = Process(tmp_path, monkeypatch, leads=True)
        process.handovers = handovers
        await process.doubts.give_up(frozenset({"topics/t/0.log"}))
        assert process.handovers == []
        assert process.anew == 1
        assert MemberFile.open(process.options).stored.doubtful == ("topics/t/0.log",)

    asyncio.run(run())
