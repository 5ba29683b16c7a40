"""The automaton by state and by row of the failure matrix: one member, and a hand that plays the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import pytest

from nsquark.errors import UsageError
from nsquark.nsqd.replica.automaton import actions as do
from nsquark.nsqd.replica.automaton.automaton import Automaton
from nsquark.nsqd.replica.automaton.group import GroupState, GroupView, MemberKey, PrimaryKey
from nsquark.nsqd.replica.automaton.states import Directory, Settings, State

A = TypeVar("A", bound=do.Action)
PAIR = ("a@1", "b@1")


class Member:
    """An automaton, its clock, and what it has wanted so far."""

    def __init__(
        self, name: str = "a", directory: Directory | None = None, sees: str = "", **settings: object
    ) -> None:
        """`sees` is an incarnation that has the member's key at the start."""
        self.now = 100.0
        self.revision = 20
        self.settings = replace(Settings(), **settings)  # type: ignore[arg-type]
        self.automaton = Automaton(self.settings, directory or Directory(f"{name}@1"), self.now)
        self.wanted: list[do.Action] = []
        members = {name: MemberKey(sees, True)} if sees else {}
        self.view = GroupView(1, members=members, member_leases=dict.fromkeys(members, 4))
        self.answer_session()

    def take(self, kind: type[A]) -> list[A]:
        """The actions of a kind that were wanted since they were taken last."""
        self.wanted += self.automaton.take()
        found = [each for each in self.wanted if isinstance(each, kind)]
        self.wanted = [each for each in self.wanted if not isinstance(each, kind)]
        return found

    def one(self, kind: type[A]) -> A:
        (found,) = self.take(kind)
        return found

    def answer_session(self) -> None:
        """Etcd grants, keeps alive and reads whatever is wanted."""
        self.answer_reads()
        for opening in self.take(do.OpenSession):
            self.automaton.session_opened(self.now, opening.number, 5, self.revision)
        for renewing in self.take(do.RenewSession):
            self.automaton.session_renewed(self.now, renewing.number)
        self.answer_reads()

    def answer_reads(self) -> None:
        for reading in self.take(do.ReadGroup):
            self.automaton.group_read(self.now, reading.number, self.view)

    def wait(self, seconds: float, *, etcd: bool = True) -> None:
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += 0.1
            self.automaton.tick(self.now)
            if etcd:
                self.answer_session()

    def sees(self, term: int, primary: str, isr: tuple[str, ...], *, key: bool = True) -> None:
        """The keys of the group become these, and the member reads them."""
        self.revision += 1
        me = self.automaton.me
        self.view = GroupView(
            self.revision,
            GroupState(1, term, primary, isr),
            self.revision,
            PrimaryKey(primary, term) if key else None,
            self.revision if key else 0,
            {me.partition("@")[0]: MemberKey(me, True)},
            {},
            {me.partition("@")[0]: 5},
        )
        self.automaton.group_read(self.now, 0, self.view)

    def follow(self, term: int = 1, primary: str = "b@1", isr: tuple[str, ...] = PAIR) -> None:
        """Become a standby in sync."""
        self.sees(term, primary, isr)
        self.wait(0.1)
        assert self.one(do.Connect) == do.Connect(primary.partition("@")[0], term)
        self.automaton.manifest_received(self.now, term, 4, False)
        self.wait(0.1)
        assert self.state is State.IN_SYNC

    def lead(self, isr: tuple[str, ...] = ("a@1",)) -> None:
        """Become the primary of term 1, with the directory open."""
        self.sees(0, "a@1", isr, key=False)
        campaign = self.one(do.Campaign)
        self.revision += 1
        self.view = replace(
            self.view,
            revision=self.revision,
            state=campaign.state,
            state_revision=self.revision,
            primary=PrimaryKey("a@1", campaign.state.term),
            primary_revision=self.revision,
        )
        self.automaton.transaction_answered(self.now, campaign.number, True, self.revision)
        assert self.one(do.OpenDirectory) == do.OpenDirectory(1, False)
        self.automaton.directory_opened(self.now)

    def sees_session(self, incarnation: str) -> None:
        """Another member opens its session, and this one reads it."""
        self.revision += 1
        members = {**self.view.members, incarnation.partition("@")[0]: MemberKey(incarnation, True)}
        self.view = replace(self.view, revision=self.revision, members=members)
        self.automaton.group_read(self.now, 0, self.view)

    def join(self, incarnation: str = "b@1", written: int = 0) -> None:
        self.sees_session(incarnation)
        assert self.automaton.follower_joined(self.now, incarnation, 1)
        self.automaton.acknowledged(self.now, incarnation, 1, written, written)

    def confirm(self, change: do.ChangeIsr) -> None:
        self.revision += 1
        self.view = replace(
            self.view, revision=self.revision, state=change.state, state_revision=self.revision
        )
        self.automaton.transaction_answered(self.now, change.number, True, self.revision)

    @property
    def state(self) -> State:
        return self.automaton.state


# ---- following


def test_a_member_that_isr_does_not_have_waits() -> None:
    member = Member()
    member.sees(3, "b@1", ("b@1",), key=False)
    member.wait(10)
    assert member.state is State.CATCHING_UP
    assert member.take(do.Campaign) == []


def test_a_catch_up_marks_the_directory_before_the_first_change() -> None:
    member = Member()
    member.sees(1, "b@1", ("b@1",))
    member.wait(0.1)
    member.wanted.clear()
    member.automaton.manifest_received(member.now, 1, 7, True)
    member.wanted += member.automaton.take()
    kinds = [type(each) for each in member.wanted]
    assert kinds.index(do.Unsettle) < kinds.index(do.Fetch)
    assert member.take(do.Acknowledge) == []
    member.automaton.fetched(member.now, 1, 7)
    member.wanted += member.automaton.take()
    kinds = [type(each) for each in member.wanted]
    assert kinds.index(do.Settle) < kinds.index(do.Acknowledge)
    assert member.one(do.Acknowledge) == do.Acknowledge(1, 7, 7)


def test_an_unsettled_directory_does_not_lead_even_if_isr_has_it() -> None:
    member = Member(directory=Directory("a@1", settled=False))
    member.sees(1, "b@1", PAIR, key=False)
    member.wait(5)
    assert member.take(do.Campaign) == []
    assert member.state is State.CATCHING_UP


def test_frames_are_acknowledged_in_order_and_a_gap_ends_the_stream() -> None:
    member = Member()
    member.follow()
    member.take(do.Acknowledge)
    member.automaton.frames_written(member.now, 1, 5, 5)
    member.automaton.frame_synced(member.now, 1, 5)
    assert member.take(do.Acknowledge) == [do.Acknowledge(1, 5, 4), do.Acknowledge(1, 5, 5)]
    member.automaton.frames_written(member.now, 1, 7, 7)
    assert member.one(do.DropStream)
    member.automaton.frames_written(member.now, 1, 6, 6)
    assert member.take(do.Acknowledge) == []


def test_frames_that_came_together_are_acknowledged_once() -> None:
    member = Member()
    member.follow()
    member.take(do.Acknowledge)
    member.automaton.frames_written(member.now, 1, 5, 9)
    assert member.take(do.Acknowledge) == [do.Acknowledge(1, 9, 4)]
    member.automaton.frames_written(member.now, 1, 11, 12)
    assert member.one(do.DropStream)
    assert member.take(do.Acknowledge) == []


def test_the_primary_s_process_dies_and_two_refusals_are_enough() -> None:
    member = Member()
    member.follow()
    member.automaton.stream_lost(member.now)
    for _ in range(2):
        assert member.take(do.Campaign) == []
        member.wait(0.2)
        assert member.one(do.Connect)
        member.automaton.stream_refused(member.now)
    campaign = member.one(do.Campaign)
    assert campaign.state == GroupState(1, 2, "a@1", ("a@1",))  # without the old primary
    assert campaign.seen.primary_revision  # although its key is still there


def test_a_stream_that_never_began_is_tried_once_a_second() -> None:
    """A wrong secret or a full disk would fill the logs of both members, and keep their disks busy."""
    member = Member()
    member.sees(1, "b@1", ("b@1",))
    member.wait(0.1)
    for _ in range(3):
        assert member.one(do.Connect)
        member.automaton.stream_lost(member.now)
        member.wait(0.9)
        assert member.take(do.Connect) == []
        member.wait(0.2)
    # One that took longer has done something, and goes on at once.
    assert member.one(do.Connect)
    member.wait(0.9)
    member.automaton.heartbeat_received(member.now, 1)
    member.wait(0.9)
    member.automaton.stream_lost(member.now)
    member.wait(0.1)
    assert member.one(do.Connect)


def test_the_primary_s_host_dies_and_the_key_has_to_end_first() -> None:
    member = Member()
    member.follow()
    member.wait(1.9)
    assert member.take(do.Campaign) == []
    member.sees(1, "b@1", PAIR, key=False)
    member.wait(0.1)
    assert member.one(do.Campaign).kind is do.Acquisition.CAMPAIGN
    assert member.state is State.CAMPAIGN


def test_a_stream_that_lives_is_followed_although_etcd_has_lost_the_key() -> None:
    member = Member()
    member.follow()
    member.sees(1, "b@1", PAIR, key=False)
    for _ in range(30):
        member.automaton.heartbeat_received(member.now, 1)
        member.wait(0.2)
    assert member.take(do.Campaign) == []
    assert member.state is State.IN_SYNC


def test_a_campaign_drops_the_stream_first_and_acknowledges_nothing_more() -> None:
    member = Member()
    member.follow()
    member.take(do.Acknowledge)
    member.wait(1.0)
    member.sees(1, "b@1", PAIR, key=False)
    member.wanted += member.automaton.take()
    kinds = [type(each) for each in member.wanted]
    assert kinds.index(do.DropStream) < kinds.index(do.Campaign)
    member.automaton.frames_written(member.now, 1, 5, 5)
    member.automaton.heartbeat_received(member.now, 1)
    assert member.take(do.Acknowledge) == []


def test_a_campaign_without_an_answer_is_tried_until_one_settles_it() -> None:
    member = Member()
    member.sees(1, "b@1", PAIR, key=False)
    first = member.one(do.Campaign)
    member.automaton.request_failed(member.now, first.number)
    member.answer_session()
    again = member.one(do.Campaign)
    assert again.seen.state_revision == first.seen.state_revision
    member.automaton.request_failed(member.now, again.number)
    member.take(do.ReadGroup)
    member.wait(3, etcd=False)  # nothing is followed meanwhile
    assert member.take(do.Connect) == []
    assert member.state is State.CAMPAIGN


def test_a_campaign_that_was_lost_follows_the_winner() -> None:
    member = Member("c")
    member.sees(1, "a@1", ("a@1", "b@1", "c@1"), key=False)
    campaign = member.one(do.Campaign)
    assert campaign.state.isr == ("b@1", "c@1")
    won = replace(
        member.view,
        revision=40,
        state=GroupState(1, 2, "b@1", ("b@1", "c@1")),
        state_revision=40,
        primary=PrimaryKey("b@1", 2),
        primary_revision=40,
    )
    member.automaton.transaction_answered(member.now, campaign.number, False, 40, won)
    member.view = won
    member.wait(1)
    assert member.take(do.Connect)[0] == do.Connect("b", 2)


def test_etcd_that_went_back_to_an_older_state_elects_nobody() -> None:
    member = Member(directory=Directory("a@1", term=7))
    member.sees(5, "b@1", PAIR, key=False)
    member.wait(5)
    assert member.take(do.Campaign) == []


def test_without_a_state_nobody_campaigns() -> None:
    member = Member()
    member.wait(5)
    assert member.take(do.Campaign) == []
    assert member.automaton.force(member.now) != ""


def test_a_handover_is_followed_by_a_campaign_at_once() -> None:
    member = Member()
    member.follow()
    member.automaton.handover_received(member.now, 1)
    assert member.one(do.Campaign)


# ---- two processes of one name


def test_the_key_of_another_process_of_the_name_is_left_to_it() -> None:
    member = Member(directory=Directory("a@2"), sees="a@1")
    assert member.automaton.other == "a@1"
    member.wait(5)
    assert member.take(do.OpenSession) == []
    assert member.automaton.lease == 0
    led = replace(member.view, state=GroupState(1, 1, "b@1", PAIR), primary=PrimaryKey("b@1", 1), revision=2)
    member.automaton.group_read(member.now, 0, led)
    member.wait(1)
    assert member.take(do.Connect) == []  # nor does it push the stream of the other one aside
    member.view = replace(member.view, revision=15, members={})
    member.wait(1)
    assert member.automaton.lease
    assert member.automaton.other == ""


# ---- power


def test_after_a_power_loss_of_all_the_longest_goes_on_loudly() -> None:
    member = Member(directory=Directory("a@2", term=1))
    member.sees(1, "b@1", PAIR, key=False)
    member.wait(5)
    assert member.take(do.Campaign) == []  # b is not back
    members = {"a": MemberKey("a@2", True, ((1, 9),)), "b": MemberKey("b@2", True, ((1, 8),))}
    member.view = replace(member.view, revision=50, members=members, member_leases={"a": 5})
    member.automaton.group_read(member.now, 0, member.view)
    campaign = member.one(do.Campaign)
    assert campaign.kind is do.Acquisition.SALVAGE
    member.automaton.transaction_answered(member.now, campaign.number, True, 51)
    assert member.one(do.OpenDirectory) == do.OpenDirectory(2, True)


@pytest.mark.parametrize(
    "other",
    [
        MemberKey("b@2", True, ((1, 10),)),  # goes further
        MemberKey("b@1", True, ((1, 8),)),  # has lost nothing: it may lead by itself
    ],
)
def test_a_member_with_less_does_not_salvage(other: MemberKey) -> None:
    member = Member(directory=Directory("a@2", term=1))
    member.sees(1, "b@1", PAIR, key=False)
    members = {"a": MemberKey("a@2", True, ((1, 9),)), "b": other}
    member.view = replace(member.view, revision=50, members=members, member_leases={"a": 5})
    member.automaton.group_read(member.now, 0, member.view)
    assert member.take(do.Campaign) == []


def test_a_new_directory_does_not_salvage() -> None:
    """Whatever was in its place may be somewhere else, and another member may have more."""
    member = Member(directory=Directory("a@2", belongs=False))
    member.sees(4, "a@1", ("a@1",), key=False)
    member.wait(5)
    assert member.take(do.Campaign) == []
    member.sees(5, "b@1", ("b@1",))
    member.wait(0.1)
    member.automaton.manifest_received(member.now, 5, 0, True)
    member.automaton.fetched(member.now, 5, 0)  # from here on it is the group's
    member.sees(5, "b@1", ("a@1",), key=False)
    member.wait(0.1)
    assert member.one(do.Campaign).kind is do.Acquisition.SALVAGE


def test_a_new_directory_that_fits_as_it_is_belongs_from_then_on_durably() -> None:
    member = Member(directory=Directory("a@2", belongs=False))
    member.sees(5, "b@1", ("b@1",))
    member.wait(0.1)
    member.automaton.manifest_received(member.now, 5, 0, False)
    assert member.one(do.Settle)
    assert member.automaton.directory.belongs


def test_force_leads_with_new_epochs_unless_somebody_leads() -> None:
    member = Member()
    member.sees(3, "b@1", ("b@1",))
    assert "b@1 leads" in member.automaton.force(member.now)
    member.sees(3, "b@1", ("b@1",), key=False)
    assert member.automaton.force(member.now) == ""
    campaign = member.one(do.Campaign)
    assert campaign.state == GroupState(1, 4, "a@1", ("a@1",))
    member.automaton.transaction_answered(member.now, campaign.number, True, 60)
    assert member.one(do.OpenDirectory).new_epochs


# ---- leading


def test_a_primary_alone_serves_at_once_and_answers_what_it_wrote() -> None:
    member = Member()
    member.lead()
    assert member.one(do.Serve)
    assert member.one(do.AcceptPublishes)
    member.automaton.written(member.now, 1)
    assert [each.sequence for each in member.take(do.Release)] == [0, 1]


def test_a_primary_serves_when_every_member_of_isr_has_its_directory() -> None:
    member = Member()
    member.lead(PAIR)
    assert member.take(do.Serve) == []
    assert member.automaton.leading is not None
    assert member.automaton.leading.refusing
    member.join()
    assert member.one(do.Serve)
    assert member.one(do.Release).sequence == 0


def test_synced_waits_for_the_primary_s_own_fsync() -> None:
    member = Member(synced=True)
    member.lead(PAIR)
    member.join()
    member.take(do.Release)
    member.automaton.written(member.now, 1)
    member.automaton.acknowledged(member.now, "b@1", 1, 1, 1)
    assert member.take(do.Release) == []
    member.automaton.synced(member.now, 1)
    assert member.one(do.Release).sequence == 1


@pytest.mark.parametrize(
    ("incarnation", "term", "written"),
    [("b@1", 0, 1), ("b@1", 2, 1), ("b@2", 1, 1), ("x@1", 1, 1)],
)
def test_an_acknowledgement_of_anybody_else_does_not_count(incarnation: str, term: int, written: int) -> None:
    member = Member()
    member.lead(PAIR)
    member.join()
    member.automaton.written(member.now, 1)
    member.take(do.Release)
    member.automaton.acknowledged(member.now, incarnation, term, written, written)
    assert member.take(do.Release) == []


def test_a_follower_that_acknowledges_what_was_never_sent_is_disconnected() -> None:
    member = Member()
    member.lead(PAIR)
    member.join()
    member.automaton.written(member.now, 1)
    member.take(do.Release)
    member.automaton.acknowledged(member.now, "b@1", 1, 2, 0)
    assert "acknowledged 2 of 1" in member.one(do.Disconnect).reason
    assert member.take(do.Release) == []


def test_a_member_is_waited_for_before_etcd_is_told_of_it() -> None:
    member = Member()
    member.lead()
    member.take(do.Release)
    member.join()
    change = member.one(do.ChangeIsr)
    assert change.state.isr == PAIR
    assert not change.removing
    member.automaton.written(member.now, 1)
    assert member.take(do.Release) == []  # although etcd has not answered
    member.automaton.acknowledged(member.now, "b@1", 1, 1, 0)
    assert member.one(do.Release).sequence == 1


def test_a_follower_that_etcd_has_no_session_of_is_not_added() -> None:
    member = Member()
    member.lead()
    member.sees_session("b@1")
    assert member.automaton.follower_joined(member.now, "b@2", 1)
    assert member.one(do.ReadGroup)  # its session may be new
    member.automaton.acknowledged(member.now, "b@2", 1, 0, 0)
    member.wait(1.0)
    assert member.take(do.ChangeIsr) == []
    member.automaton.acknowledged(member.now, "b@2", 1, 0, 0)
    member.sees_session("b@2")
    member.wait(0.1)
    assert member.one(do.ChangeIsr).state.isr == ("a@1", "b@2")


def test_a_silent_member_is_waited_for_until_etcd_has_removed_it() -> None:
    member = Member()
    member.lead(PAIR)
    member.join()
    member.take(do.Release)
    member.automaton.written(member.now, 1)
    member.wait(1.9)
    assert member.take(do.ChangeIsr) == []
    member.wait(0.2)
    change = member.one(do.ChangeIsr)
    assert change.removing
    assert change.state.isr == ("a@1",)
    assert member.take(do.Release) == []
    member.confirm(change)
    assert member.one(do.Release).sequence == 1


def test_a_removal_without_an_answer_is_waited_for() -> None:
    member = Member()
    member.lead(PAIR)
    member.join()
    member.automaton.written(member.now, 1)
    member.take(do.Release)
    member.wait(2.1)
    member.automaton.request_failed(member.now, member.one(do.ChangeIsr).number)
    member.answer_session()
    assert member.take(do.Release) == []
    member.wait(0.1)
    assert member.one(do.ChangeIsr).removing  # once more


def test_min_copies_refuses_publishes_and_keeps_the_member() -> None:
    member = Member(min_copies=2)
    member.lead(PAIR)
    member.join()
    assert member.take(do.AcceptPublishes)
    member.wait(2.2)
    assert member.take(do.ChangeIsr) == []
    assert "b does not answer" in member.one(do.RefusePublishes).reason
    assert member.state is State.PRIMARY
    member.automaton.acknowledged(member.now, "b@1", 1, 0, 0)
    member.wait(0.1)
    assert member.one(do.AcceptPublishes)


def test_min_copies_refuses_where_isr_is_too_small() -> None:
    member = Member(min_copies=2)
    member.lead()
    member.wait(0.2)
    assert member.one(do.RefusePublishes).reason == "1 of 2 copies"


def test_etcd_dies_and_nothing_happens_while_the_stream_lives() -> None:
    member = Member()
    member.lead(PAIR)
    member.join()
    for sequence in range(1, 60):
        member.automaton.written(member.now, sequence)
        member.automaton.acknowledged(member.now, "b@1", 1, sequence, 0)
        member.wait(0.1, etcd=False)
    assert member.take(do.Release)[-1].sequence == 59
    assert member.state is State.PRIMARY


def test_etcd_and_the_standby_are_lost_and_the_primary_fences_itself() -> None:
    member = Member()
    member.lead(PAIR)
    member.join()
    member.wait(3.2, etcd=False)
    assert "no lease" in member.one(do.Fence).reason
    member.automaton.written(member.now, 1)
    member.automaton.acknowledged(member.now, "b@1", 1, 1, 1)
    assert [each.sequence for each in member.take(do.Release)] == [0]


def test_a_higher_term_fences() -> None:
    member = Member()
    member.lead()
    member.sees(2, "b@1", ("b@1",))
    assert "b@1 leads term 2" in member.one(do.Fence).reason
    assert member.state is State.FENCED


def test_a_lease_that_ended_is_taken_anew_within_the_term() -> None:
    member = Member()
    member.lead()
    member.view = replace(member.view, revision=90, primary=None, primary_revision=0)
    member.wait(0.8)
    reclaim = member.one(do.Reclaim)
    assert reclaim.state.term == 1
    assert member.state is State.PRIMARY


def test_a_handover_waits_until_everything_is_committed() -> None:
    member = Member()
    member.lead(PAIR)
    assert not Member().automaton.hand_over(member.now)
    member.join()
    member.automaton.written(member.now, 1)
    assert member.automaton.hand_over(member.now)
    assert "takes over" in member.one(do.RefusePublishes).reason
    member.wait(0.3)
    assert member.take(do.Resign) == []
    member.automaton.acknowledged(member.now, "b@1", 1, 1, 0)
    member.wait(0.1)
    resign = member.one(do.Resign)
    member.automaton.transaction_answered(member.now, resign.number, True, 70)
    assert member.one(do.SendHandover)
    assert member.one(do.Fence).reason == "handed over"


def test_a_handover_does_not_wait_for_what_consumers_do_meanwhile() -> None:
    """With consumers at work, something is always written and not acknowledged yet."""
    member = Member()
    member.lead(PAIR)
    member.join()
    member.automaton.written(member.now, 1)
    assert member.automaton.hand_over(member.now)
    member.automaton.written(member.now, 2)
    member.automaton.acknowledged(member.now, "b@1", 1, 1, 0)
    member.wait(0.1)
    assert member.one(do.Resign)


def test_nobody_to_hand_over_to() -> None:
    member = Member()
    member.lead()
    assert not member.automaton.hand_over(member.now)


def test_a_member_that_is_not_connected_is_not_handed_over_to() -> None:
    """Nobody would lead until the key has ended, although the member was heard a moment ago."""
    member = Member()
    member.lead(PAIR)
    member.join()
    member.automaton.follower_left(member.now, "b@1")
    assert not member.automaton.hand_over(member.now)
    member.join()
    assert member.automaton.hand_over(member.now)
    member.automaton.follower_left(member.now, "b@1")
    member.wait(0.1)
    assert member.take(do.Resign) == []
    assert member.one(do.AcceptPublishes)


def test_an_fsync_that_hangs_hands_over() -> None:
    member = Member(synced=True)
    member.lead(PAIR)
    member.join()
    member.automaton.written(member.now, 1)
    for _ in range(102):
        member.automaton.acknowledged(member.now, "b@1", 1, 1, 1)
        member.wait(0.1)
    assert member.one(do.Resign)
    assert [each.sequence for each in member.take(do.Release)] == [0]


@pytest.mark.parametrize(
    "wrong", [{"min_copies": 0}, {"lease": 1}, {"retry": 0}, {"heartbeat": 2.0}, {"replica_timeout": -1}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Settings(**wrong)  # type: ignore[arg-type]
