"""Assigning messages to targets."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from nsquark.tools.forward.target_choice import Assignment, TargetChoice


def given(assignments: list[Assignment[int]]) -> dict[int, list[int]]:
    return {assignment.target: assignment.messages for assignment in assignments}


@pytest.mark.parametrize("cuts", [(12,), (5, 7), (1,) * 12, (2, 3, 7), (11, 1)])
@pytest.mark.parametrize("mode", ["round-robin", "hostpool"])
def test_two_targets_get_equally_many_however_the_messages_come(mode: str, cuts: tuple[int, ...]) -> None:
    targets = TargetChoice(mode, 2)  # type: ignore[arg-type]
    counts: Counter[int] = Counter()
    for size in cuts:
        for assignment in targets.assign(range(size), 0.0):
            counts[assignment.target] += len(assignment.messages)
    assert counts == {0: 6, 1: 6}


def test_round_robin_assigns_as_if_each_message_came_alone() -> None:
    together, alone = TargetChoice("round-robin", 3), TargetChoice("round-robin", 3)
    for size in (7, 2, 9, 1):
        expected: dict[int, list[int]] = {}
        for message in range(size):
            expected.setdefault(alone.pick(0.0).host, []).append(message)
        assert given(together.assign(range(size), 0.0)) == expected


def test_the_second_target_is_the_first_of_round_robin() -> None:
    assert given(TargetChoice("round-robin", 2).assign([7], 0.0)) == {1: [7]}


def test_a_target_that_failed_gets_nothing_for_thirty_seconds() -> None:
    targets = TargetChoice("hostpool", 2)
    for assignment in targets.assign(range(2), 100.0):
        assignment.mark(assignment.target == 0, 100.0)
    for now in (100.0, 115.0, 130.0):
        assert set(given(targets.assign(range(5), now))) == {0}
    assert set(given(targets.assign(range(5), 130.1))) == {0, 1}


def test_every_message_is_assigned_once_in_every_mode() -> None:
    for mode in ("round-robin", "hostpool", "epsilon-greedy"):
        targets = TargetChoice(mode, 3)  # type: ignore[arg-type]
        for now, size in enumerate((1, 2, 3, 4, 50, 0)):
            assignments = targets.assign(range(size), float(now))
            assert sorted(message for assignment in assignments for message in assignment.messages) == list(
                range(size)
            )
            for assignment in assignments:
                assert assignment.messages == sorted(assignment.messages) or len(assignment.picks) > 1
                assignment.mark(True, now + 0.01 * (assignment.target + 1))


def test_one_target_gets_a_run_as_it_is() -> None:
    (assignment,) = TargetChoice("hostpool", 1).assign(range(100), 0.0)
    assert all(after == before + 1 for before, after in pairwise(assignment.messages))
    assert len(assignment.picks) == 1
