"""What waits for the other members of a replica group."""

from __future__ import annotations

import asyncio

from nsquark.nsqd.core.commit_gate import CommitGate


def test_a_wait_ends_with_the_commit_of_what_was_written() -> None:
    async def run() -> None:
        gate = CommitGate(lambda: None, lambda: gate.sent(7))
        waiting = asyncio.create_task(gate.wait(30))
        await asyncio.sleep(0)
        gate.commit(6)
        await asyncio.sleep(0)
        assert not waiting.done()
        gate.commit(7)
        assert await waiting
        assert await gate.wait(30)

    asyncio.run(run())


def test_a_wait_ends_where_nothing_is_committed() -> None:
    async def run() -> None:
        gate = CommitGate(lambda: None, lambda: gate.sent(7))
        assert not await gate.wait(0.001)

    asyncio.run(run())


def test_clients_that_try_again_and_again_leave_nothing_behind() -> None:
    async def run() -> None:
        gate = CommitGate(lambda: None, lambda: gate.sent(7))
        for _ in range(100):
            await gate.wait(0)
        assert len(gate._waiting) == 1

    asyncio.run(run())
