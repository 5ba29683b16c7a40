"""A member does what its automaton wants at any moment, also while its directory is being opened."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from nsquark.nsqd.replica.actions import AcceptPublishes, RefusePublishes
from nsquark.nsqd.replica.member import Member


def member_of(server: object) -> Member:
    member = object.__new__(Member)
    member.server = cast(Any, server)
    return member


def test_publishes_may_be_refused_before_there_is_a_broker() -> None:
    member_of(SimpleNamespace())._perform(RefusePublishes("copies are not confirmed"))


def test_a_broker_is_told_what_is_refused_and_what_is_taken() -> None:
    told: list[str] = []
    gate = SimpleNamespace(refusing="")
    topic = SimpleNamespace(publishing_changed=lambda: told.append(gate.refusing))
    member = member_of(SimpleNamespace(broker=SimpleNamespace(gate=gate, topics={"orders": topic})))
    member._perform(RefusePublishes("1 of 2 copies"))
    member._perform(AcceptPublishes())
    refused, taken = told
    assert refused.endswith("1 of 2 copies")
    assert taken == ""
