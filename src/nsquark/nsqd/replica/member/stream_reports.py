"""A member that does not lead: the automaton's wishes for its stream, and what the stream reports."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..automaton import actions
from ..automaton.group import member_of

if TYPE_CHECKING:
    from .member import Member


class StreamReports:
    """Between the automaton of a member and its `Standby`. A report is followed by what is wanted then."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._automaton = member.automaton
        self._perform = member.perform
        self._time = asyncio.get_running_loop().time

    # ---- what the automaton wants

    def connect(self, action: actions.Connect) -> None:
        view = self._automaton.view
        primary, member = view.primary, view.members.get(action.member)
        address = ""
        if primary is not None and member_of(primary.incarnation) == action.member:
            address = primary.addresses.get("replica", "")
        elif member is not None:
            address = member.addresses.get("replica", "")
        self._member.standby.connect(address, action.term)

    def drop(self, _action: actions.DropStream) -> None:
        self._member.standby.drop()

    def fetch(self, _action: actions.Fetch) -> None:
        self._member.standby.fetch()

    def acknowledge(self, action: actions.Acknowledge) -> None:
        self._member.standby.acknowledge(action.term, action.written, action.synced)

    # ---- reports: `copy.standby.Reports` has them

    @property
    def settled(self) -> bool:
        return self._member.file.stored.settled

    def stream_refused(self) -> None:
        self._automaton.stream_refused(self._time())
        self._perform()

    def stream_lost(self) -> None:
        self._automaton.stream_lost(self._time())
        self._perform()

    def manifest_received(self, term: int, sequence: int, alters: bool) -> None:
        self._automaton.manifest_received(self._time(), term, sequence, alters)
        self._perform()

    def fetched(self, term: int, sequence: int) -> None:
        self._automaton.fetched(self._time(), term, sequence)
        self._perform()

    def heard(self, term: int) -> None:
        self._automaton.heartbeat_received(self._time(), term)
        self._perform()

    def frames_written(self, term: int, first: int, last: int) -> None:
        self._automaton.frames_written(self._time(), term, first, last)
        self._perform()

    def frame_synced(self, term: int, sequence: int) -> None:
        self._automaton.frame_synced(self._time(), term, sequence)
        self._perform()

    def fsync_failed(self, paths: frozenset[str]) -> None:
        self._member.doubts.fsync_failed(paths)

    def handover_received(self, term: int) -> None:
        self._automaton.handover_received(self._time(), term)
        self._perform()
