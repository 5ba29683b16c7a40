"""Disks that refuse and files that are damaged: a few of the trials of `python -m reliability.disk`."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from reliability.disk import damage, refusals
from reliability.disk.damage import KINDS, Original, try_damage
from reliability.disk.refusals import Refusal, Trial, every_refusal
from reliability.shim import NoCompiler, compiled
from tests.reliability.alone import alone


@pytest.fixture(autouse=True, scope="module")
def shim() -> None:
    try:
        compiled()
    except NoCompiler as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("refusal", "answers"),
    [
        (Refusal("write", errno.ENOSPC, "log"), {"PUB": "E_PUB_FAILED PUB failed No space left on device"}),
        (
            Refusal("fsync", errno.EIO, "log", once=True),
            {"PUB": "E_PUB_FAILED PUB failed Input/output error"},
        ),
        (Refusal("rename", errno.EROFS, "nsqd.dat"), {"pause": "503 NOT_STORED Read-only file system"}),
    ],
    ids=str,
)
def test_a_disk_that_refuses_is_told_and_costs_nothing(
    tmp_path: Path, refusal: Refusal, answers: dict[str, str]
) -> None:
    assert refusal in every_refusal()
    outcome = alone(_try_refusal, refusal, tmp_path / "trial")
    assert outcome.faults == []
    assert outcome.refused
    assert outcome.answers.items() >= answers.items()
    assert outcome.kept > 100


def _try_refusal(refusal: Refusal, folder: Path) -> refusals.Outcome:
    return Trial(refusal, folder).run()


def _try_all_damage(folder: Path) -> dict[str, damage.Outcome]:
    original = Original(folder / "original")
    return {kind: try_damage(kind, original, folder, 2, seed=1) for kind in KINDS}


def test_damage_costs_what_it_lies_in(tmp_path: Path) -> None:
    outcomes = alone(_try_all_damage, tmp_path)
    assert {kind: each.faults for kind, each in outcomes.items() if each.faults} == {}
    assert outcomes["a bit of an older log"].lost
    assert outcomes["a bit of an older log"].told == 2
    assert outcomes["a bit of the journal"].lost == 0
    assert outcomes["a segment is gone"].told == 2
