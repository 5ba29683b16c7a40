from __future__ import annotations

import gc

from nsquark.nsqd.stats.memory import GcPauses, memory_stats


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
