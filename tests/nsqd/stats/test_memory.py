from __future__ import annotations

import asyncio
import gc
import struct
import sys
from pathlib import Path

import pytest

from nsquark.kernel import keep_freed_memory
from nsquark.nsqd.stats import memory
from nsquark.nsqd.stats.memory import LARGE_RESERVE, GcPauses, Reserve, memory_stats
from tests.daemon import Nsqd, pub, until

# nsqd, but it looks at its memory all the time
LOOKING = """
import sys
from nsquark.nsqd import __main__ as nsqd, broker
broker.MEMORY_LOOK = 0.1
sys.exit(nsqd.main())
"""


def test_pauses_are_measured_and_ranked() -> None:
    pauses = GcPauses()
    assert pauses.percentile(100) == 0
    pauses.watch()
    pauses.watch()
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(pauses._called)
    assert len(pauses.newest) == 1
    pauses.newest.extend(number * 1000 for number in range(1, 200))
    pauses.newest.popleft()
    assert [pauses.percentile(percent) for percent in (100, 99, 95)] == [199, 198, 190]


def test_memory_is_of_this_process() -> None:
    before = memory_stats()
    block = bytearray(64 << 20)
    for at in range(0, len(block), 4096):
        block[at] = 1
    held = memory_stats()
    assert held["heap_in_use_bytes"] - before["heap_in_use_bytes"] > 60 << 20
    del block
    after = memory_stats()
    assert after["heap_released_bytes"] - held["heap_released_bytes"] > 60 << 20
    gc.collect()
    assert memory_stats()["gc_total_runs"] > before["gc_total_runs"]


def test_a_large_reserve_is_given_back_when_it_was_not_needed_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    idle, resident, given = [0], [0], []

    def give_back() -> None:
        given.append(resident[0])
        resident[0] = LARGE_RESERVE // 2  # and the reserve is counted as before

    monkeypatch.setattr(memory, "_idle_bytes", lambda: idle[0])
    monkeypatch.setattr(memory, "_resident_bytes", lambda: (resident[0], resident[0]))
    monkeypatch.setattr(memory, "give_back_memory", give_back)
    reserve = Reserve()

    def look(idle_now: int, resident_now: int) -> int:
        idle[0], resident[0] = idle_now, resident_now
        reserve.look()
        return len(given)

    assert look(4 * LARGE_RESERVE, 5 * LARGE_RESERVE) == 0
    assert look(LARGE_RESERVE // 2, 5 * LARGE_RESERVE) == 0  # it was needed meanwhile
    assert look(4 * LARGE_RESERVE, 5 * LARGE_RESERVE) == 0
    assert look(4 * LARGE_RESERVE, 5 * LARGE_RESERVE) == 1
    for _ in range(3):  # there is nothing to give back any more
        assert look(4 * LARGE_RESERVE, LARGE_RESERVE) == 1
    assert look(4 * LARGE_RESERVE, 2 * LARGE_RESERVE) == 2


@pytest.mark.skipif(not keep_freed_memory(1 << 20, 1 << 20), reason="the C library, or the kernel, cannot")
async def test_what_large_bodies_took_is_given_back_when_their_clients_are_gone(tmp_path: Path) -> None:
    nsqd = Nsqd(tmp_path / "data", "--max-msg-size=5000000")
    nsqd.program = [sys.executable, "-c", LOOKING]
    with nsqd.start():
        writers = []
        before = nsqd.memory()
        async with await nsqd.connect() as publisher:
            for number in range(80):
                _, writer = await asyncio.open_connection("127.0.0.1", nsqd.tcp_port)
                writers.append(writer)
                size = 1_000_000 * (1 + number % 4)
                writer.write(b"  V2MPUB t\n" + struct.pack(">iii", size, 1, size - 8) + bytes(size // 2))
                await writer.drain()
                publisher.send(pub(f"t{number % 20}", bytes(3000)))  # what stays lies between
                await publisher.ok()
        await until(lambda: nsqd.memory() > before + 80_000_000)
        for writer in writers:
            writer.transport.abort()
        await until(lambda: nsqd.memory() < before + 40_000_000)
