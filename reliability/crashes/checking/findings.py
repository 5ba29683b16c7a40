"""The kinds of findings, and how much clocks may differ."""

from __future__ import annotations

from dataclasses import dataclass

TOLERANCE = 0.002  # seconds; the system's clock may be set while we look

LOST = "lost"
TWICE = "delivered twice"
CAME_BACK = "came back"
ATTEMPTS = "wrong attempts"
EARLY = "too early"
TWO_MEANINGS = "two meanings"
STORED_TWICE = "stored twice"
PAUSED = "delivered while paused"
REFUSED = "answer refused"
STRANGE = "strange"


@dataclass(slots=True)
class Finding:
    kind: str
    round: int
    at: float
    text: str

    def __str__(self) -> str:
        return f"round {self.round}: {self.kind}: {self.text}"
