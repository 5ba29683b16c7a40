"""What a member tells where only an operator can help."""

from __future__ import annotations

from dataclasses import replace

from nsquark.nsqd.replica.automaton.automaton import Automaton
from nsquark.nsqd.replica.automaton.group import GroupState, GroupView, MemberKey, PrimaryKey
from nsquark.nsqd.replica.automaton.states import Directory, Settings
from nsquark.nsqd.replica.member.obstacles import Obstacles

STATE = GroupState(7, 3, "b@1", ("b@1",))
KNOWN = GroupView(9, STATE, 9, PrimaryKey("b@1", 3), 9, {"a": MemberKey("a@1", True)})


def told(view: GroupView, term: int = 3, seconds: float = 0.0, incarnation: str = "a@1") -> str:
    automaton = Automaton(Settings(), Directory(incarnation, term=term), 100.0)
    obstacles = Obstacles(automaton, "orders", 3.0)
    obstacles.look(100.0)
    automaton.group_read(100.0, 0, view)
    obstacles.look(100.0)
    obstacles.look(100.0 + seconds)
    return obstacles.text


def test_nothing_is_told_where_another_member_leads() -> None:
    assert told(KNOWN, seconds=60.0) == ""


def test_nothing_is_told_before_etcd_has_answered() -> None:
    assert told(GroupView(), seconds=60.0) == ""


def test_a_group_that_is_not_there() -> None:
    assert "no group orders" in told(replace(KNOWN, state=None, primary=None))


def test_a_state_that_is_older_than_the_directory() -> None:
    assert "term 3" in told(KNOWN, term=4)


def test_a_name_that_another_process_has() -> None:
    assert "a@1" in told(KNOWN, incarnation="a@2")


def test_a_group_that_no_member_leads_is_told_once_a_failover_would_be_over() -> None:
    gone = replace(KNOWN, primary=None)
    assert told(gone, seconds=5.0) == ""
    assert "b@1 may" in told(gone, seconds=7.0)


def test_a_member_that_may_lead_does_not_ask_for_an_operator() -> None:
    state = GroupState(7, 3, "b@1", ("a@1", "b@1"))
    assert told(replace(KNOWN, primary=None, state=state), seconds=7.0) == ""


def test_what_is_told_besides_stays_for_a_moment() -> None:
    automaton = Automaton(Settings(), Directory("a@1", term=3), 100.0)
    obstacles = Obstacles(automaton, "orders", 3.0)
    automaton.group_read(100.0, 0, KNOWN)
    obstacles.tell("the disk is full", 100.0)
    obstacles.look(100.9)
    assert obstacles.text == "the disk is full"
    obstacles.look(101.1)
    assert obstacles.text == ""
