"""Short runs of `python -m reliability.replicas`: the automaton holds, and each mutant of it is caught."""

from __future__ import annotations

import pytest

from reliability.replicas.__main__ import main, simulate
from reliability.replicas.mutants import MUTANTS
from reliability.replicas.schedule import run_schedule

ENOUGH = 3000  # schedules in which every mutant shows; most show in the first hundred


def test_no_schedule_breaks_a_promise() -> None:
    outcome = simulate(300, seed=1)
    assert outcome.faults == []
    assert int(outcome.figures["terms"].replace(",", "")) > 300


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str) -> None:
    outcome = simulate(ENOUGH, 0, MUTANTS[name], most_faults=1)
    assert len(outcome.faults) == 1


def test_a_seed_repeats_its_schedule() -> None:
    assert run_schedule(7) == run_schedule(7)


def test_the_command_tells_what_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schedules", "3", "--seed", "5"]) == 0
    assert "replicas, correct: passed; schedules 3" in capsys.readouterr().out
    assert main(["--schedules", "20", "--mutant", "deliver-early"]) == 1
    assert "fault: seed 0 at" in capsys.readouterr().out


def test_no_schedules_are_refused() -> None:
    with pytest.raises(SystemExit):
        main(["--schedules", "0"])
