"""reliability.crashes: a short run finds nothing, and nsqds with a fault on purpose are caught."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reliability.crashes.checking import findings as f
from reliability.crashes.mutants import MUTANTS
from reliability.crashes.running import Result, run
from reliability.crashes.series import Settings

ROOT = Path(__file__).parent.parent.parent
# Rounds: a mutant is caught in the first few, unless the machine is too busy for any work in them.
ENOUGH = 200

CAUGHT_BY = {
    "answer-before-write": {f.LOST, f.STRANGE},  # any unexpected answer counts, too
    "forget-journal-records": {f.CAME_BACK},
    "reuse-ids": {f.TWO_MEANINGS},
    "deliver-early": {f.EARLY},
    "publish-batches-twice": {f.STORED_TWICE},
}


def told(result: Result) -> str:
    return "\n".join([f"seed {result.seed}", *map(str, result.findings[:10]), *result.log])


async def test_nothing_is_found_in_a_short_run() -> None:
    result = await run(20, 1, Settings())
    assert not result.findings, told(result)
    assert result.folder is None
    assert result.counts["SIGKILL"] + result.counts["SIGKILL while starting"] > 15
    for what in ("messages answered OK", "deliveries", "FIN", "subscriptions", "messages read from logs"):
        assert result.counts[what] > 0, what


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", MUTANTS)
async def test_a_fault_on_purpose_is_found(mutant: str) -> None:
    result = await run(ENOUGH, 1, Settings(patience=3.0), mutant=mutant)
    assert result.folder is not None, f"not found in {result.rounds} rounds"
    assert (result.folder / "history").stat().st_size
    shutil.rmtree(result.folder)
    assert {finding.kind for finding in result.findings} & CAUGHT_BY[mutant], told(result)


def test_the_command_tells_how_to_see_a_finding_again() -> None:
    mutant = f"{sys.executable} -m reliability.crashes.mutants reuse-ids"
    command = [sys.executable, "-m", "reliability.crashes", "--rounds", "50", "--seed", "7", "--nsqd", mutant]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 1, ended.stderr
    assert f"again: python -m reliability.crashes --rounds 50 --seed 7 --nsqd '{mutant}'" in ended.stdout
    assert re.search(r"round \d+: two meanings: ", ended.stdout)
    (kept,) = re.findall(r"data and history: (.+)", ended.stdout)
    shutil.rmtree(kept)
