"""The contest: every workload against each nsqd in turn, with the figures, ratios and intervals."""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import load
import peers
import servers
from measuring import Effort, Measure, Workload
from peers import Peer

ROOT = Path(__file__).resolve().parents[2]

# Ours keeps its defaults and its files; the other may keep everything in memory.
OTHER_FLAGS = ["--mem-queue-size=10000000"]
DRAWS = 2000

Run = Callable[[servers.Server, Effort], dict[str, float]]


@dataclass(slots=True)
class Contest:
    """Who takes part, and every figure so far: `figures[who][measure]` has one per round."""

    ours: Path
    other: Path | None
    data_parent: Path | None
    other_flags: list[str] = field(default_factory=lambda: OTHER_FLAGS)
    certificate: list[str] = field(default_factory=list)  # flags for what needs one
    peers: list[Peer] = field(default_factory=list)
    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def turns(self, workload: Workload) -> Iterator[tuple[str, AbstractContextManager[servers.Server], Run]]:
        common = self.certificate if workload.certified else []
        yield "ours", servers.nsqd(self.ours, common, self.data_parent), workload.run
        if self.other:
            flags = common if workload.default_flags else [*common, *self.other_flags]
            yield "other", servers.nsqd(self.other, flags, self.data_parent), workload.run
        if workload.sink:
            yield "sink", servers.sink(), workload.run
        first = workload.measures[0].name
        for peer in self.peers if first in peers.EQUALS else []:
            yield peer.name, peers.running(peer, self.data_parent), partial(peers.figures, peer, first)

    def play(self, workload: Workload, effort: Effort, rounds: int) -> None:
        for number in range(1, rounds + 1):
            for who, starting, run in self.turns(workload):
                try:
                    with starting as server:
                        figures = run(server, effort)
                except load.LoadError as error:
                    self.errors.append(f"{workload.measures[0].name}, {who}, round {number}: {error}")
                    say(self.errors[-1])
                    continue
                for name, figure in figures.items():
                    self.figures.setdefault(who, {}).setdefault(name, []).append(figure)
                    say(f"round {number} of {rounds}  {who:5}  {name:16}  {shown(figure)}")

    def figure(self, who: str, measure: Measure) -> float | None:
        rounds = self.figures.get(who, {}).get(measure.name)
        return median(rounds) if rounds else None

    def ratio(self, measure: Measure, whose: str = "other") -> float | None:
        """Our figure divided by that of the other nsqd, or of a peer."""
        ours, other = self.figure("ours", measure), self.figure(whose, measure)
        return None if ours is None or not other else ours / other

    def interval(self, measure: Measure, whose: str = "other") -> tuple[float, float] | None:
        """Where the ratio lies in 95 of 100 draws of the rounds with replacement; None for under four."""
        ours, other = (self.figures.get(who, {}).get(measure.name, []) for who in ("ours", whose))
        if min(len(ours), len(other)) < 4 or not all(other):
            return None
        draw = random.Random(measure.name)
        ratios = sorted(
            median(draw.choices(ours, k=len(ours))) / median(draw.choices(other, k=len(other)))
            for _ in range(DRAWS)
        )
        return ratios[DRAWS // 40], ratios[-1 - DRAWS // 40]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def shown(figure: float | None) -> str:
    if figure is None:
        return "-"
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
