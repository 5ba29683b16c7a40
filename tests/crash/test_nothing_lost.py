"""nsqd is killed, again and again, in the midst of its work: nothing that was answered is lost.

`reliability.crashes` does it. `NSQUARK_CRASH_ROUNDS` says how often, `NSQUARK_CRASH_SEED` repeats the choices
of a run that failed (not the moments of its kills: those are the machine's).
"""

from __future__ import annotations

import os

import pytest

from reliability.crashes.running import run
from reliability.crashes.series import Settings

ROUNDS = int(os.environ.get("NSQUARK_CRASH_ROUNDS", "50"))
SEED = int(os.environ.get("NSQUARK_CRASH_SEED", "0")) or int.from_bytes(os.urandom(4), "big")
PARTS = 2


@pytest.mark.timeout(300 + 10 * ROUNDS)
@pytest.mark.parametrize("part", range(PARTS))
async def test_nothing_that_was_answered_is_lost_in_a_crash(part: int) -> None:
    rounds = ROUNDS // PARTS + (part < ROUNDS % PARTS)
    result = await run(rounds, SEED + part * ROUNDS, Settings())
    again = f"python -m reliability.crashes --rounds {rounds} --seed {result.seed}; {result.folder}"
    assert not result.findings, "\n".join([again, *map(str, result.findings[:20]), *result.log])
    assert result.rounds >= rounds
