"""A member of a replica group as an automaton without IO.

Inputs are methods: the time, etcd's answers, what the disk and the network did. Outputs are actions, which
`take` returns; the caller does them in order. Nothing here reads a clock, opens a socket or touches a file,
so a simulator can drive thousands of schedules through it.

    catching-up ──▶ in-sync ──▶ campaign ──▶ primary ──▶ fenced

`following.py` has the first two, `leading.py` the primary, `commit_rule.py` decides what is committed.
"""

from __future__ import annotations

from .actions import Acquisition, Action, Campaign, Fence, Settle
from .following import Following
from .group import GroupState, GroupView
from .leading import Leading
from .session import Session
from .states import Directory, Settings, State

PRIMARY = State.PRIMARY  # looked at with every frame


class Automaton:
    """One process of a member. After a fence, the program starts anew, and so does its automaton."""

    def __init__(self, settings: Settings, directory: Directory, now: float) -> None:
        self.state = State.CATCHING_UP
        self.me = directory.incarnation
        self.directory = directory
        self.leading: Leading | None = None
        self._settings = settings
        self.wanted: list[Action] = []  # `take` takes them
        self._session = Session(settings, self.wanted, self.me)
        self.following = self.new_following(now)
        self._campaign: Campaign | None = None
        self._unanswered: Campaign | None = None  # it may still take effect
        self._forced = False
        self._session.tick(now)

    def new_following(self, now: float) -> Following:
        """The simulator's mutants have others, and others of `new_leading`."""
        return Following(self._settings, self._session, self.wanted, self.directory, now)

    def new_leading(self, state: GroupState, revision: int, now: float, new_epochs: bool) -> Leading:
        return Leading(self._settings, self._session, self.wanted, self.me, state, revision, now, new_epochs)

    @property
    def view(self) -> GroupView:
        """The group's keys, as this member has read them last."""
        return self._session.view

    @property
    def other(self) -> str:
        """The incarnation that etcd has under this member's name in place of this one, or nothing."""
        return self._session.other

    @property
    def lease(self) -> int:
        return self._session.lease

    def take(self) -> list[Action]:
        """The actions since the last call, in the order in which they are to be done."""
        taken = self.wanted[:]
        self.wanted.clear()
        return taken

    # ---- time

    def tick(self, now: float) -> None:
        """Call it every `heartbeat` or so, on the event loop: a loop that hangs must not keep its lease."""
        if self.state is State.FENCED:
            return
        self._session.tick(now)
        if self.leading is not None:
            self.leading.tick(now)
            self._fence_if_faulty()
        elif self._unanswered is None:
            self.following.tick(now)
            self._consider(now)

    def _consider(self, now: float) -> None:
        """Move between the states of a member that does not lead."""
        if self.leading is not None or self._campaign is not None or self.state is State.FENCED:
            return
        kind = Acquisition.FORCE if self._forced else self.following.acquisition(now)
        if kind is not None and self._session.lease:
            self._acquire(kind)
        else:
            self.state = State.IN_SYNC if self.following.in_sync else State.CATCHING_UP

    def _acquire(self, kind: Acquisition) -> None:
        view = self._session.view
        state = view.state
        if state is None:
            return
        if kind is Acquisition.CAMPAIGN:
            isr = tuple(each for each in state.isr if each == self.me or each != state.primary)
        else:
            isr = (self.me,)
        self.following.drop()
        self.state = State.CAMPAIGN
        coming = GroupState(state.node, max(state.term, self.directory.term) + 1, self.me, isr)
        number = self._session.next_number()
        self._campaign = Campaign(number, self._session.lease, kind, view, coming)
        self.wanted.append(self._campaign)

    def _fence_if_faulty(self) -> None:
        if self.leading is not None and self.leading.fault:
            self._fence(self.leading.fault)

    def _fence(self, reason: str) -> None:
        self.state = State.FENCED
        self.wanted.append(Fence(reason))

    def leave(self) -> None:
        """The files of this member, which does not lead, are in doubt: its next process begins anew."""
        self.following.drop()
        self.state = State.FENCED

    # ---- operators

    def hand_over(self, now: float, *, drain: bool = True) -> bool:
        """Let an in-sync member lead. False if there is none, or this member does not lead."""
        return self.leading is not None and self.leading.hand_over(now, drain=drain)

    def force(self, now: float) -> str:
        """Lead with what this directory has, although others may have more. Returns why not, or nothing."""
        view = self._session.view
        if self.leading is not None or self.state is State.FENCED:
            return "this member leads, or has just led"
        if view.state is None:
            return "etcd has not answered, or does not have the group's state"
        if view.primary is not None:
            return f"{view.primary.incarnation} leads term {view.primary.term}"
        self._forced = True
        self._consider(now)
        return ""

    # ---- etcd's answers

    def session_opened(self, now: float, number: int, lease: int, revision: int) -> None:
        """The member's key was put with `lease`, at etcd's `revision`."""
        if self._session.opened(number, lease, revision):
            self._session.read(now)

    def session_renewed(self, now: float, number: int) -> None:
        self._session.renewed(number)

    def session_lost(self, now: float, number: int) -> None:
        self._session.lost(number)
        self._session.tick(now)

    def group_read(self, now: float, number: int, view: GroupView) -> None:
        """All keys at one revision. `number` is 0 where a watch brought them."""
        if self.state is not State.FENCED and self._session.learned(number, view):
            self._session.tick(now)  # it is opened once the keys are known
            self._learned(now, view)

    def _learned(self, now: float, view: GroupView) -> None:
        if self.leading is not None:
            self.leading.learned(now, view)
            self._fence_if_faulty()
            return
        self.following.learned(view)
        if self._unanswered is not None and self._campaign is None:
            self._campaign_again(now, self._unanswered)
        else:
            self._consider(now)

    def _campaign_again(self, now: float, unanswered: Campaign) -> None:
        """A campaign without an answer may still take effect while the keys are those that it compares with.

        Until they are others, the member goes on campaigning, and follows no primary: an answer settles it.
        """
        view = self._session.view
        again = view.state is not None and view.state_revision == unanswered.seen.state_revision
        if unanswered.kind is Acquisition.SALVAGE:
            again = again and self.following.acquisition(now) is Acquisition.SALVAGE
        if not again:
            self._unanswered = None
            self._consider(now)
        elif self._session.lease:
            self._acquire(unanswered.kind)

    def transaction_answered(
        self, now: float, number: int, succeeded: bool, revision: int, view: GroupView | None = None
    ) -> None:
        """The answer to a transaction: etcd's revision, and the keys as they are where it failed."""
        if self.state is State.FENCED:
            return
        if self._campaign is not None and number == self._campaign.number:
            self._campaign_answered(now, self._campaign, succeeded, revision, view)
        elif self.leading is not None:
            news = view if view is not None and self._session.learned(0, view) else None
            self.leading.answered(now, number, succeeded, revision, news)
            self._fence_if_faulty()

    def _campaign_answered(
        self, now: float, campaign: Campaign, succeeded: bool, revision: int, view: GroupView | None
    ) -> None:
        self._campaign = self._unanswered = None
        if not succeeded:
            self._forced = False
            if view is not None and self._session.learned(0, view):
                self.following.learned(view)
            self.state = State.IN_SYNC if self.following.in_sync else State.CATCHING_UP
            return
        self.state = State.PRIMARY
        lossy = campaign.kind is not Acquisition.CAMPAIGN
        if lossy and not self.directory.settled:
            self.directory.settled = True
            self.wanted.append(Settle())
        self.leading = self.new_leading(campaign.state, revision, now, lossy)

    def request_failed(self, now: float, number: int) -> None:
        """A question to etcd has no answer in time, or the connection broke: it may be done, or not."""
        self._session.failed(number)
        if self._campaign is not None and number == self._campaign.number:
            self._unanswered, self._campaign = self._campaign, None
            self._session.read(now)
        elif self.leading is not None:
            self.leading.failed(now, number)

    # ---- a standby's stream and files

    def stream_refused(self, now: float) -> None:
        """The primary's address takes no connection, or its process does not lead the term asked for."""
        self.following.refused(now)
        self._follow_up(now)

    def stream_lost(self, now: float) -> None:
        self.following.lost(now)
        self._follow_up(now)

    def manifest_received(self, now: float, term: int, sequence: int, alters: bool) -> None:
        """The primary's manifest at `sequence`. `alters`: this directory has to change to match it.

        Where acknowledgements mean synced bytes, the directory is synced before this is reported.
        """
        self.following.manifest_received(now, term, sequence, alters)

    def fetched(self, now: float, term: int, sequence: int) -> None:
        """The directory is that of the manifest, synced where acknowledgements mean synced bytes."""
        self.following.fetched(now, term, sequence)

    def heartbeat_received(self, now: float, term: int) -> None:
        self.following.heard(now, term)

    def frames_written(self, now: float, term: int, first: int, last: int) -> None:
        """Frames that came together were applied: one acknowledgement says it of all."""
        self.following.wrote(now, term, first, last)

    def frame_synced(self, now: float, term: int, sequence: int) -> None:
        self.following.has_synced(term, sequence)

    def handover_received(self, now: float, term: int) -> None:
        self.following.handed_over(now, term)
        self._follow_up(now)

    def _follow_up(self, now: float) -> None:
        if self._unanswered is None:
            self._consider(now)

    # ---- a primary's files and followers; a member that does not lead ignores them

    def directory_opened(self, now: float) -> None:
        """The directory is open, synced where acknowledgements mean synced bytes."""
        if self.leading is not None:
            self.leading.opened(now)

    def written(self, now: float, sequence: int) -> None:
        """The local writes of a turn succeeded; they are `sequence`, one more than the last.

        Whoever reports this sends them to the followers.
        """
        leading = self.leading
        if leading is not None and self.state is PRIMARY:
            leading.wrote(now, sequence)

    def synced(self, now: float, sequence: int) -> None:
        if self.leading is not None and self.state is State.PRIMARY:
            self.leading.has_synced(now, sequence)

    def follower_joined(self, now: float, incarnation: str, term: int) -> bool:
        """Whether a follower that asks for the stream of `term` gets it."""
        leading = self.leading
        if leading is None or self.state is not State.PRIMARY or term != leading.term or leading.written < 0:
            return False
        leading.joined(now, incarnation)
        return True

    def follower_left(self, now: float, incarnation: str) -> None:
        if self.leading is not None:
            self.leading.left(incarnation)

    def acknowledged(self, now: float, incarnation: str, term: int, written: int, synced: int) -> None:
        leading = self.leading
        if leading is not None and self.state is PRIMARY:
            leading.acknowledged(now, incarnation, term, written, synced)
