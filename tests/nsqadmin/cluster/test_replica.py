"""The replica group of a node, read from what it tells."""

from __future__ import annotations

import pytest

from nsquark.nsqadmin.cluster.document import Document
from nsquark.nsqadmin.cluster.replica import Replica, parse_replica

MEMBERS = [
    {
        "member": "b",
        "role": "in-sync",
        "in_sync": True,
        "connected": True,
        "written": 7,
        "synced": 5,
        "lag": 3,
        "http_address": "b:1",
    },
    {"member": "c", "role": "away", "in_sync": False, "written": None, "synced": None, "lag": None},
    {"member": "a", "role": "primary", "in_sync": True, "written": 10, "synced": 10, "lag": 0},
]
FULL = {
    "group": "orders", "member": "a", "state": "primary", "term": 5, "isr": ["a", "b"], "min_copies": 2,
    "refusing": "", "primary": {"member": "a", "term": 5}, "members": MEMBERS, "etcd": "", "problem": "",
}  # fmt: skip


def replica(**changes: object) -> Replica:
    found = parse_replica({**FULL, **changes})
    assert found is not None
    return found


def test_the_primary_knows_how_far_the_others_are() -> None:
    found = replica()
    assert (found.group, found.member, found.state, found.term, found.lag) == ("orders", "a", "primary", 5, 3)
    assert [(each.name, each.role) for each in found.members] == [
        ("a", "primary"),
        ("b", "in-sync"),
        ("c", "away"),
    ]
    assert (found.tag, found.alone) == ("good", False)


def test_a_standby_tells_its_own_state() -> None:
    found = replica(member="c", state="catching-up")
    assert found.tag == "warn"
    assert replica(member="b", state="in-sync").tag == ""


@pytest.mark.parametrize("changes", [{"isr": ["a"]}, {"refusing": "1 of 2 copies"}])
def test_a_primary_without_a_standby_or_that_refuses_is_warned_of(changes: Document) -> None:
    assert replica(**changes).tag == "warn"


def test_the_short_form_of_the_statistics_has_no_members() -> None:
    brief = {
        "group": "g",
        "member": "a",
        "state": "primary",
        "term": 2,
        "isr": ["a", "b"],
        "lag": {"a": 0, "b": 4, "c": 90},
    }
    found = parse_replica(brief)
    assert found is not None
    assert (found.lag, found.in_sync, found.members) == (4, ["a", "b"], [])


@pytest.mark.parametrize(
    "document",
    [{}, {"state": "primary", "followers": []}, {"group": 7}, {"group": ""}],
)
def test_a_node_in_no_group_has_none(document: Document) -> None:
    assert parse_replica(document) is None


def test_what_has_another_type_reads_as_nothing() -> None:
    members = [{"member": 5, "lag": "much", "written": True}, 7]
    found = replica(term="x", isr=[1, "a"], members=members, primary=3, lag=[1])
    assert (found.term, found.in_sync, found.lag, found.primary) == (0, ["a"], None, "")
    assert [(each.name, each.lag, each.written) for each in found.members] == [("", None, None)]
