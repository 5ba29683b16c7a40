"""A standby: which stream it follows, how far its directory is, and when it may try to lead.

`Automaton` owns the state and the session; this module is what a member does while another one leads, or
none.
"""

from __future__ import annotations

from .actions import (
    Acknowledge,
    Acquisition,
    Action,
    Announce,
    Connect,
    DropStream,
    Fetch,
    Settle,
    Unsettle,
)
from .group import GroupState, GroupView, member_of
from .session import Session
from .states import Directory, Settings

REFUSALS = 2  # after so many, the primary's process is taken for dead


class Following:
    """A member that does not lead. `term` is that of its stream; 0 without one."""

    def __init__(
        self, settings: Settings, session: Session, actions: list[Action], directory: Directory, now: float
    ) -> None:
        self.directory = directory
        self.term = 0
        self.written = self.synced = 0
        self._settings = settings
        self._session = session
        self._actions = actions
        self._me = directory.incarnation
        self._heard = float("-inf")  # when the stream was heard last
        self._moved = now  # when the stream was tried or heard last
        self._refused = 0  # how often, by the primary of `_refused_in`
        self._refused_in = 0
        self._invited_in = 0  # the term whose primary has handed over; 0 for none
        self._try_at = now
        self._caught_up = False

    @property
    def in_sync(self) -> bool:
        """Whether etcd counts this member, and its directory is one to lead from."""
        state = self._session.view.state
        return state is not None and self._me in state.isr and self.directory.settled

    # ---- the stream

    def tick(self, now: float) -> None:
        view = self._session.view
        primary, state = view.primary, view.state
        if self.term and now - self._moved > self._settings.replica_timeout:
            self.drop()  # so that a connection which hangs is tried anew
        if self.term or now < self._try_at or primary is None or state is None:
            return
        if self._session.other:
            return  # the primary would take this stream for that of the other process
        if (
            member_of(primary.incarnation) != member_of(self._me)
            and primary.term == state.term
            and not self._invited_in
        ):
            self._try_at = now + self._settings.silence
            self.term = primary.term
            self._moved = now
            self._actions.append(Connect(member_of(primary.incarnation), primary.term))

    def drop(self) -> None:
        """Leave the stream: nothing of its term is acknowledged from here on."""
        if self.term:
            self.term = 0
            self._actions.append(DropStream())
        self._caught_up = False

    def learned(self, view: GroupView) -> None:
        """A newer term makes the stream of an older one worthless."""
        if self.term and view.state is not None and view.state.term > self.term:
            self.drop()
        if view.state is not None and view.state.term > self._invited_in:
            self._invited_in = 0

    def refused(self, now: float) -> None:
        if self.term:
            self._refused = self._refused + 1 if self._refused_in == self.term else 1
            self._refused_in = self.term
            self.term = 0
            self._try_at = now + self._settings.retry
            self._session.read(now)

    def lost(self, now: float) -> None:
        if self.term:
            self.term = 0
            if self._caught_up:
                self._try_at = now
            # If not, a second passes since the last try: a wrong secret or a full disk is there for a while.
            self._caught_up = False
            self._session.read(now)

    def heard(self, now: float, term: int) -> None:
        """A heartbeat. The answer tells the primary that this member lives."""
        if term != self.term:
            return
        self._heard = self._moved = now
        if self._caught_up:
            self._acknowledge()

    def handed_over(self, now: float, term: int) -> None:
        """The primary has resigned: there is nothing to wait for."""
        if term == self.term:
            self._invited_in = term
            self.drop()
            self._session.read(now)

    # ---- the directory

    def manifest_received(self, now: float, term: int, sequence: int, alters: bool) -> None:
        """The primary's manifest. `alters` says whether this directory has to be changed to match it."""
        if term != self.term:
            return
        self._heard = self._moved = now
        self._refused = 0
        if not alters:
            self._begin(term, sequence)
            return
        if self.directory.settled:
            self.directory.settled = False
            self._actions.append(Unsettle())
            self._announce()
        self._actions.append(Fetch(term, sequence))

    def fetched(self, now: float, term: int, sequence: int) -> None:
        """The directory is the one of the manifest."""
        if term == self.term:
            self._heard = self._moved = now
            self._begin(term, sequence)

    def _begin(self, term: int, sequence: int) -> None:
        self.written = self.synced = sequence
        self.directory.term = max(self.directory.term, term)
        if not (self.directory.settled and self.directory.belongs):
            self.directory.settled = self.directory.belongs = True
            self._actions.append(Settle())
            self._announce()
        self._caught_up = True
        self._acknowledge()

    def _announce(self) -> None:
        if self._session.lease:
            self._actions.append(Announce(self._session.lease))

    def wrote(self, now: float, term: int, first: int, last: int) -> None:
        """The frames from `first` to `last` were applied. Frames come in order, without gaps."""
        if term != self.term or not self._caught_up:
            return
        self._heard = self._moved = now
        if first != self.written + 1:
            self.drop()
            self._try_at = now
            return
        self.written = last
        self._acknowledge()

    def has_synced(self, term: int, sequence: int) -> None:
        if term == self.term and self._caught_up and self.synced < sequence <= self.written:
            self.synced = sequence
            self._acknowledge()

    def _acknowledge(self) -> None:
        self._actions.append(Acknowledge(self.term, self.written, self.synced))

    # ---- the next primary

    def acquisition(self, now: float) -> Acquisition | None:
        """Whether this member should try to lead now, and by which right."""
        view = self._session.view
        state = view.state
        if state is None or not self._session.lease or not self.directory.settled:
            return None
        if self.directory.term > state.term:
            return None  # etcd went back to an older state: it may list members that lack messages
        if self._me not in state.isr:
            return Acquisition.SALVAGE if self._salvages(view, state) else None
        gone = view.primary is None and now - self._heard >= self._settings.silence
        dead = self._refused >= REFUSALS and self._refused_in == state.term
        mine = view.primary is not None and view.primary.incarnation == self._me
        return Acquisition.CAMPAIGN if gone or dead or mine or self._invited_in else None

    def _salvages(self, view: GroupView, state: GroupState) -> bool:
        """After a power loss: all of isr is back, none as it was, and no directory goes further.

        A new directory, or a copy, has lost no power: the one in whose place it is may have more.
        """
        if view.primary is not None or not self.directory.belongs:
            return False
        names = {member_of(incarnation) for incarnation in state.isr}
        if member_of(self._me) not in names:
            return False
        candidates = []
        for name in names:
            key = view.members.get(name)
            if key is None or (key.incarnation in state.isr and key.settled):
                return False  # it is not back, or may lead as a member of isr
            if key.settled:
                candidates.append((key.progress, key.incarnation))
        return bool(candidates) and max(candidates)[1] == self._me
