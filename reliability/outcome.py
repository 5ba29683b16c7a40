"""What came of a trial: figures to print, and what was not as promised."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """`figures` are in the order in which they are printed; a trial without `faults` has passed."""

    name: str
    figures: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    skipped: str = ""  # why it could not be tried

    def demand(self, holds: bool, fault: str) -> None:
        if not holds:
            self.faults.append(fault)

    def lines(self) -> list[str]:
        if self.skipped:
            return [f"{self.name}: skipped, {self.skipped}"]
        told = ", ".join(f"{name} {value}" for name, value in self.figures.items())
        verdict = "failed" if self.faults else "passed"
        return [f"{self.name}: {verdict}; {told}", *(f"  fault: {fault}" for fault in self.faults)]


def tell(outcomes: Iterable[Outcome]) -> int:
    """Print each as it comes. The exit status: 1 if any has failed."""
    failed = False
    for outcome in outcomes:
        print("\n".join(outcome.lines()), flush=True)
        failed = failed or bool(outcome.faults)
    return int(failed)


def percentile(sorted_values: list[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))]


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
