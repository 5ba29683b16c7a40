"""The kinds of findings, and how much clocks may differ."""

from __future__ import annotations

from dataclasses import dataclass

TOLERANCE = 0.002  # seconds; the system's clock may be set while we look

LOST = "lost"
CAME_BACK = "came back"
EARLY = "too early"
TWO_MEANINGS = "two meanings"
STORED_TWICE = "stored twice"
REFUSED_AND_STORED = "refused and stored"
FELL = "the end of a log fell"
UNDONE = "an answered order is undone"
STUCK = "stuck"
SLOW = "no service for too long"
DIVERGED = "directories differ"
STRANGE = "strange"


@dataclass(slots=True)
class Finding:
    kind: str
    round: int
    at: float
    text: str

    def __str__(self) -> str:
        return f"round {self.round}: {self.kind}: {self.text}"
