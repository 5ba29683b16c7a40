"""A primary: which standbys must acknowledge, are too late, or may be added; and when to give up.

`Automaton` owns the state and the session; this module is what a member does between its acquisition of a
term and its fence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from .actions import (
    AcceptPublishes,
    Action,
    ChangeIsr,
    Disconnect,
    OpenDirectory,
    Reclaim,
    RefusePublishes,
    Release,
    Resign,
    SendHandover,
    SendHeartbeat,
    Serve,
)
from .commit_rule import NOTHING, CommitRule
from .group import GroupState, GroupView, member_of
from .session import Session
from .states import Settings


class Leading:
    """One term of a primary. `fault` is the reason to fence, once there is one."""

    def __init__(
        self,
        settings: Settings,
        session: Session,
        actions: list[Action],
        me: str,
        state: GroupState,
        revision: int,
        now: float,
        new_epochs: bool,
    ) -> None:
        self.fault = ""
        self.state = state
        self.term = state.term
        self.rule = self.new_rule(me, state.isr, revision)
        self.refusing = "the directory is being opened"
        self.serving = False
        self.released = NOTHING
        self.written = self.synced = NOTHING
        self._settings = settings
        self._session = session
        self._actions = actions
        self._me = me
        self._heard = dict.fromkeys(state.isr, now)  # when each member was heard last
        self._joined: set[str] = set()
        self._marks: deque[tuple[int, float]] = deque()  # sequences, and since when they wait
        self._changing: ChangeIsr | None = None  # under way at etcd, one at a time
        self._reclaiming = self._resigning = 0
        self._claimed = session.lease  # the lease that `g/primary` was put with
        self._claimed_at = revision
        self._claiming = 0
        self._handing_over = False
        self._drained_at = NOTHING  # the sequence that the next primary must have first
        self._unsynced_since = float("inf")
        self._beat_at = now
        actions.append(OpenDirectory(state.term, new_epochs))

    def new_rule(self, me: str, isr: Iterable[str], revision: int) -> CommitRule:
        """The simulator's mutants have others."""
        return CommitRule(me, isr, revision)

    # ---- the primary's own disk

    def opened(self, now: float) -> None:
        self.written = self.synced = self.rule.local = 0
        self._release(now)

    def wrote(self, now: float, sequence: int) -> None:
        """The local call for `sequence` succeeded: the followers may have it now, not before."""
        self.written = sequence
        if not self._marks or now - self._marks[-1][1] >= self._settings.heartbeat:
            self._marks.append((sequence, now))
        if self._unsynced_since == float("inf"):
            self._unsynced_since = now
        if not self._settings.synced:
            self.rule.local = sequence
            self._release(now)

    def has_synced(self, now: float, sequence: int) -> None:
        self.synced = max(self.synced, sequence)
        self._unsynced_since = float("inf") if self.synced >= self.written else now
        if self._settings.synced:
            self.rule.local = self.synced
            self._release(now)

    # ---- followers

    def joined(self, now: float, incarnation: str) -> None:
        """A follower has connected, and asks for the manifest."""
        for other in [each for each in self._heard if member_of(each) == member_of(incarnation)]:
            self._joined.discard(other)
            if other not in self.rule.awaited:
                del self._heard[other]
        self._joined.add(incarnation)
        self._heard[incarnation] = now
        if not self._is_known(incarnation):
            self._session.read(now)  # its session may be younger than the last read

    def left(self, incarnation: str) -> None:
        self._joined.discard(incarnation)

    def acknowledged(self, now: float, incarnation: str, term: int, written: int, synced: int) -> None:
        """Only a follower that joined this term counts, and only for what it can have got."""
        if term != self.term or incarnation not in self._joined:
            return
        if not NOTHING <= synced <= written <= self.written:
            self._joined.discard(incarnation)
            self._actions.append(
                Disconnect(incarnation, f"acknowledged {written} of {self.written}, {synced} of them synced")
            )
            return
        self._heard[incarnation] = now
        self.rule.acknowledge(incarnation, synced if self._settings.synced else written)
        self._release(now)
        self._add(incarnation)

    def _add(self, incarnation: str) -> None:
        """Add a follower that has everything: wait for it from here on, then tell etcd."""
        rule = self.rule
        if (
            incarnation in rule.isr
            or self._changing
            or self._handing_over
            or not self._session.lease
            or not self._is_known(incarnation)
            or not self._has_all(incarnation)
        ):
            return
        rule.add(incarnation)
        self._change(rule.with_added(incarnation), removing=False)

    def _is_known(self, incarnation: str) -> bool:
        """Whether etcd has a session of exactly this incarnation: without one it could never lead."""
        key = self._session.view.members.get(member_of(incarnation))
        return key is not None and key.incarnation == incarnation

    def _has_all(self, incarnation: str) -> bool:
        return self.written >= 0 and self.rule.acknowledged.get(incarnation, NOTHING) >= self.rule.local >= 0

    def _change(self, isr: tuple[str, ...], *, removing: bool) -> None:
        state = GroupState(self.state.node, self.term, self._me, isr)
        number = self._session.next_number()
        self._changing = ChangeIsr(number, self.rule.revision, state, removing)
        self._actions.append(self._changing)

    # ---- time

    def tick(self, now: float) -> None:
        settings = self._settings
        if now - self._beat_at >= settings.heartbeat:
            self._beat_at = now
            if self.written >= 0:
                self._actions.append(SendHeartbeat(self.term, self.written))
        late = self.late(now)
        if late & self.rule.isr and not self._session.fresh(now):
            self.fault = f"no lease of etcd, and no word of {', '.join(sorted(late))}"
            return
        # An etcd that does not answer may still do what it is asked, and this member would not know: the isr
        # would have it alone, and after its fence no member could lead.
        kept = self._remove(late) if self._session.answers(now) else set()
        self._consider_publishes(
            f"{member_of(min(kept))} does not answer, and {settings.min_copies} copies are demanded"
            if kept
            else ""
        )
        for incarnation in sorted(self._joined - late):
            self._add(incarnation)
        self._reclaim()
        if settings.synced and now - self._unsynced_since >= settings.sync_timeout:
            self.hand_over(now, drain=False)
        self._resign(late)

    def late(self, now: float) -> set[str]:
        """The members of W that were silent, or owe an acknowledgement, for too long."""
        limit = now - self._settings.replica_timeout
        late = set()
        for member in self.rule.awaited:
            acknowledged = self.rule.acknowledged.get(member, NOTHING)
            owing = next((since for sequence, since in self._marks if sequence > acknowledged), now)
            # An fsync of the primary that hangs is not the standby's fault.
            if self._heard.get(member, float("-inf")) <= limit or (
                owing <= limit and acknowledged < self.rule.local
            ):
                late.add(member)
        return late

    def _remove(self, late: set[str]) -> set[str]:
        """Ask etcd to remove members. Those that `min_copies` needs stay, and are returned."""
        if not late:
            return set()
        # Without the members that are only being added, which no copy counts on.
        isr = self.rule.isr
        room = len(isr) - self._settings.min_copies
        leaving = set(sorted(late & isr)[: max(room, 0)])
        kept = (late & isr) - leaving
        if (leaving or late - isr) and not self._changing and self._session.lease:
            self._change(tuple(sorted(isr - leaving)), removing=True)
        return kept

    def _consider_publishes(self, kept: str) -> None:
        copies = len(self.rule.isr)
        if not self.serving:
            reason = "the copies of the directory are not confirmed yet"
        elif self._handing_over:
            reason = "another member takes over"
        elif copies < self._settings.min_copies:
            reason = f"{copies} of {self._settings.min_copies} copies"
        else:
            reason = kept
        if reason != self.refusing:
            self._actions.append(RefusePublishes(reason) if reason else AcceptPublishes())
            self.refusing = reason

    def _release(self, now: float) -> None:
        committed = self.rule.committed()
        if committed <= self.released:
            return
        self.released = committed
        while self._marks and self._marks[0][0] <= committed:
            self._marks.popleft()
        if not self._marks and self.written > committed:
            self._marks.append((self.written, now))
        if not self.serving:
            # The first release: every member that could lead has the directory as it was opened, so that
            # nothing in it can be shown and then be lost.
            self.serving = True
            self._actions.append(Serve(self.term))
            self._consider_publishes("")
        self._actions.append(Release(self.term, committed))

    # ---- etcd

    def answered(
        self, now: float, number: int, succeeded: bool, revision: int, view: GroupView | None
    ) -> bool:
        """Whether the answer was to a question of this term."""
        changing = self._changing
        if changing is not None and number == changing.number:
            self._changing = None
            if succeeded:
                self._confirmed(now, changing.state, revision)
        elif number == self._reclaiming:
            self._reclaiming = 0
            if succeeded:
                self._claimed, self._claimed_at = self._claiming, revision
        elif number == self._resigning:
            self._resigning = 0
            # A first try without an answer may have done it.
            done = view is not None and view.primary is None and view.state_revision == self.rule.revision
            if succeeded or done:
                self._actions.append(SendHandover(self.term))
                self.fault = "handed over"
        else:
            return False
        if view is not None:
            self.learned(now, view)
        return True

    def _confirmed(self, now: float, state: GroupState, revision: int) -> None:
        """Etcd has this isr."""
        self.state = state
        self.rule.confirm(state.isr, revision)
        self._release(now)
        self._consider_publishes("")

    def failed(self, now: float, number: int) -> None:
        """A question has no answer: what it asked for may be done, or may still be done."""
        if self.answered(now, number, False, 0, None):
            self._session.read(now)

    def learned(self, now: float, view: GroupView) -> None:
        state = view.state
        if state is None:
            return  # etcd has lost it: no member can campaign, and no isr can change
        if view.state_revision < self.rule.revision:
            return
        if state.term != self.term or state.primary != self._me:
            self.fault = f"{state.primary} leads term {state.term}"
        elif view.state_revision > self.rule.revision:
            self._confirmed(now, state, view.state_revision)

    def _reclaim(self) -> None:
        """`g/primary` ended with its lease while no other member took the term: put it again."""
        view, session = self._session.view, self._session
        gone = view.primary is None and view.revision >= self._claimed_at
        if not session.lease or self._reclaiming or self._handing_over:
            return
        if session.lease != self._claimed or gone:
            self._claiming = session.lease
            self._reclaiming = session.next_number()
            self._actions.append(Reclaim(self._reclaiming, session.lease, self.rule.revision, self.state))

    # ---- handing over

    def hand_over(self, now: float, *, drain: bool = True) -> bool:
        """Let another member lead, with `drain` once it has everything. False if no other member may."""
        if not self._able(self.late(now)):
            return False
        self._handing_over = True
        # What consumers do goes on meanwhile, so the end of all that is written may never be reached.
        self._drained_at = self.written if drain else NOTHING
        self._consider_publishes("")
        return True

    def _able(self, late: set[str]) -> set[str]:
        return (self._joined & self.rule.isr) - {self._me} - late

    def _resign(self, late: set[str]) -> None:
        if not self._handing_over or self._resigning or self._changing or not self._session.lease:
            return
        if not self._able(late):
            self._handing_over = False
        elif self.rule.committed() >= self._drained_at:
            self._resigning = self._session.next_number()
            self._actions.append(Resign(self._resigning, self.rule.revision))
