"""Messages that were published to be delivered later, as the log and the journal know them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Deferred:
    position: int
    count: int
    due: int  # ns since the epoch
