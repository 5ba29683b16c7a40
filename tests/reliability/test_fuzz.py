"""The corpus of every target and mutations of it, with both kernels; and mutated connections to an nsqd."""

from __future__ import annotations

import pytest

from reliability.fuzz import sockets
from reliability.fuzz.__main__ import replay
from reliability.fuzz.mutator import mutations
from reliability.fuzz.replay import inputs_of
from reliability.fuzz.replay import replay as run_here
from reliability.fuzz.target import CORPUS, NAMES, Target, Wrong, load

SEED = 20
MUTATIONS = 100
CONNECTIONS = 150


def test_the_corpus_and_mutations_of_it_are_understood_alike_by_both_kernels() -> None:
    results = replay(NAMES, [f"--mutations={MUTATIONS}", f"--seed={SEED}"])
    faults = [f"{result.target}: {fault}" for result in results for fault in result.faults]
    assert not faults, "\n\n".join(faults)
    for result in results:
        assert result.executions >= 2 * MUTATIONS


def test_a_fault_is_told_with_the_input_that_found_it() -> None:
    def run(data: bytes) -> object:
        if b"!" in data:
            raise Wrong("found")
        return data

    target = Target(name="example", run=run, seeds=lambda: [b"a", b"b!"], modules=())
    seen = run_here(target, inputs_of(target, []))
    assert next(seen)[0] == b"a"
    with pytest.raises(Wrong) as caught:
        next(seen)
    assert caught.value.__notes__ == ["input of example: b'b!'"]


def test_mutations_are_the_same_for_the_same_seed() -> None:
    target = load("segments")
    inputs = target.seeds()
    made = list(mutations(target, inputs, 1, 50))
    assert made == list(mutations(target, inputs, 1, 50))
    assert made != list(mutations(target, inputs, 2, 50))
    assert len(set(made) - set(inputs)) > 40


def test_the_corpus_is_small_and_belongs_to_targets() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == set(NAMES)
    assert sum(path.stat().st_size for path in files) < 400_000


def test_an_nsqd_outlives_mutated_connections() -> None:
    found = sockets.fuzz(CONNECTIONS, SEED, sockets.GROWTH)
    assert found.answered > CONNECTIONS // 4
    assert found.rounds > 0
    assert found.pings > 0
