"""Messages that were published to be delivered later, as the log and the journal know them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)  # not frozen: a start may make a million of them, and that would take thrice as long
class Deferred:
    """A value: nothing changes one."""

    position: int
    count: int
    due: int  # ns since the epoch
