"""A primary refuses publishes and takes them again, also while its directory is being opened."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from nsquark.nsqd.options import Options
from nsquark.nsqd.replica.automaton.actions import AcceptPublishes, RefusePublishes
from nsquark.nsqd.replica.member.leadership import Leadership


def leadership_of(server: object) -> Leadership:
    return Leadership(cast(Any, SimpleNamespace(automaton=None, server=server, options=Options())))


def test_publishes_may_be_refused_before_there_is_a_broker() -> None:
    async def run() -> None:
        leadership_of(SimpleNamespace()).refuse_publishes(RefusePublishes("copies are not confirmed"))

    asyncio.run(run())


def test_a_broker_is_told_what_is_refused_and_what_is_taken() -> None:
    async def run() -> None:
        told: list[str] = []
        gate = SimpleNamespace(refusing="")
        topic = SimpleNamespace(publishing_changed=lambda: told.append(gate.refusing))
        server = SimpleNamespace(broker=SimpleNamespace(gate=gate, topics={"orders": topic}))
        leadership = leadership_of(server)
        leadership.refuse_publishes(RefusePublishes("1 of 2 copies"))
        leadership.accept_publishes(AcceptPublishes())
        refused, taken = told
        assert refused.endswith("1 of 2 copies")
        assert taken == ""

    asyncio.run(run())
