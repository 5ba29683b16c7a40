"""W: which members must acknowledge before a sequence is committed."""

from __future__ import annotations

from nsquark.nsqd.replica.automaton.commit_rule import NOTHING, CommitRule


def rule(*isr: str) -> CommitRule:
    found = CommitRule("a@1", isr, 10)
    found.local = 5
    return found


def test_a_member_of_isr_is_waited_for() -> None:
    pair = rule("a@1", "b@1")
    assert pair.committed() == NOTHING
    pair.acknowledge("b@1", 3)
    assert pair.committed() == 3
    pair.acknowledge("b@1", 2)  # overtaken
    assert pair.committed() == 3
    pair.acknowledge("b@1", 9)
    assert pair.committed() == 5  # no further than the primary itself


def test_another_incarnation_of_a_member_does_not_count_for_it() -> None:
    pair = rule("a@1", "b@1")
    pair.acknowledge("b@2", 5)
    assert pair.committed() == NOTHING


def test_a_member_being_added_is_waited_for_before_etcd_knows_it() -> None:
    alone = rule("a@1")
    assert alone.committed() == 5
    alone.acknowledge("b@1", 4)
    alone.add("b@1")
    assert alone.committed() == 4


def test_an_adding_that_may_still_take_effect_is_waited_for() -> None:
    alone = rule("a@1")
    alone.add("b@1")
    alone.confirm(("a@1",), 10)  # the state that the transaction compares with
    assert alone.awaited == {"b@1"}
    alone.confirm(("a@1",), 11)  # now it can only fail
    assert alone.awaited == set()


def test_a_confirmed_adding_stays_and_an_older_isr_is_ignored() -> None:
    alone = rule("a@1")
    alone.add("b@1")
    alone.confirm(("a@1", "b@1"), 12)
    alone.confirm(("a@1",), 11)
    assert alone.awaited == {"b@1"}
    assert not alone.being_added


def test_a_new_incarnation_takes_the_place_of_the_old() -> None:
    assert rule("a@1", "b@1", "c@1").with_added("b@2") == ("a@1", "b@2", "c@1")
