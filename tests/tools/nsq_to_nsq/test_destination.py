"""One destination: runs, their sizes, and outcomes, against a scripted nsqd."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from nsquark.client.config import Config
from nsquark.errors import NsquarkError, PublishTimeout
from nsquark.tools.nsq_to_nsq import destination as destination_module
from nsquark.tools.nsq_to_nsq.destination import Destination, TooLarge
from tests.client.scripted import Peer, ScriptedNsqd
from tests.daemon import until


@pytest.fixture
async def nsqd() -> AsyncIterator[ScriptedNsqd]:
    async with ScriptedNsqd() as nsqd:
        yield nsqd


@pytest.fixture
async def destination(nsqd: ScriptedNsqd) -> AsyncIterator[Destination]:
    destination = Destination(nsqd.address, Config())
    yield destination
    await destination.close()


async def deliver(destination: Destination, *bodies: bytes) -> dict[bytes, NsquarkError | None]:
    """The outcome of each body. No messages go with them: the destination does not look at these."""
    outcomes: dict[bytes, NsquarkError | None] = {}

    def settle(copies: Sequence[Any], error: NsquarkError | None) -> None:
        for _, body in copies:
            assert body not in outcomes
            outcomes[body] = error

    copies: list[Any] = [(None, body) for body in bodies]
    await destination.deliver("t", copies, settle)
    return outcomes


def published(nsqd: ScriptedNsqd) -> list[int]:
    """How many messages each PUB or MPUB had."""
    counts = []
    for peer in nsqd.peers:
        for command, body in zip(peer.commands, peer.bodies, strict=True):
            if command.startswith("MPUB"):
                counts.append(struct.unpack_from(">I", body)[0])
            elif command.startswith("PUB"):
                counts.append(1)
    return counts


async def test_what_comes_together_goes_out_in_one_command(
    nsqd: ScriptedNsqd, destination: Destination
) -> None:
    assert set((await deliver(destination, *(b"%d" % n for n in range(200)))).values()) == {None}
    assert set((await deliver(destination, b"alone")).values()) == {None}
    assert published(nsqd) == [200, 1]


async def test_a_run_is_cut_where_it_gets_too_large_for_one_command(
    nsqd: ScriptedNsqd, destination: Destination
) -> None:
    bodies = [b"%d" % n * 300_000 for n in range(7)]
    assert set((await deliver(destination, *bodies)).values()) == {None}
    assert published(nsqd) == [3, 3, 1]


async def test_a_limit_is_asked_for_once(nsqd: ScriptedNsqd, destination: Destination) -> None:
    def limited(peer: Peer) -> None:
        if b"large" in peer.bodies[-1]:
            peer.fail(b"E_BAD_MESSAGE MPUB message too big 5 > 4")
            peer.writer.close()
        else:
            peer.respond()

    nsqd.handlers["MPUB"] = nsqd.handlers["PUB"] = limited
    for _ in range(3):
        outcomes = await deliver(destination, b"a", b"large", b"b")
        assert isinstance(outcomes.pop(b"large"), TooLarge)
        assert outcomes == {b"a": None, b"b": None}
    assert published(nsqd) == [3, 2, 2, 2]


async def test_a_destination_that_was_restarted_may_have_another_limit(
    nsqd: ScriptedNsqd, destination: Destination
) -> None:
    def limited(peer: Peer) -> None:
        peer.fail(b"E_BAD_MESSAGE PUB message too big 5 > 4")
        peer.writer.close()

    nsqd.handlers["PUB"] = limited
    assert isinstance((await deliver(destination, b"large"))[b"large"], TooLarge)
    del nsqd.handlers["PUB"]
    assert await deliver(destination, b"a") == {b"a": None}
    assert isinstance((await deliver(destination, b"large"))[b"large"], TooLarge)
    peer = nsqd.peers[-1]
    peer.drop()
    await peer.closed.wait()
    await until(lambda: len(nsqd.peers) == 3)
    await until(lambda: nsqd.peers[-1].identify)
    assert await deliver(destination, b"b") == {b"b": None}
    assert await deliver(destination, b"large") == {b"large": None}


async def test_runs_behind_a_refused_one_are_sent_again_at_once(
    nsqd: ScriptedNsqd, destination: Destination
) -> None:
    def limited(peer: Peer) -> None:
        if b"large" in peer.bodies[-1]:
            peer.fail(b"E_BAD_MESSAGE PUB message too big 5 > 4")
            peer.writer.close()
        else:
            peer.respond()

    nsqd.handlers["PUB"] = limited
    assert await deliver(destination, b"0") == {b"0": None}  # connected
    several = await asyncio.gather(*(deliver(destination, body) for body in (b"1", b"large", b"2", b"3")))
    outcomes = {body: error for each in several for body, error in each.items()}
    assert isinstance(outcomes.pop(b"large"), TooLarge)
    assert outcomes == {b"1": None, b"2": None, b"3": None}


async def test_an_answer_that_does_not_come_is_not_waited_for_for_ever(
    nsqd: ScriptedNsqd, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination_module, "_ANSWER", 0.1)
    nsqd.handlers["PUB"] = lambda peer: None
    (error,) = (await deliver(destination, b"a")).values()
    assert isinstance(error, PublishTimeout)
    assert error.sent
