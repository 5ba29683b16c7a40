"""The states of a member, and the times and numbers that it goes by."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nsquark.errors import UsageError


class State(Enum):
    CATCHING_UP = "catching-up"
    IN_SYNC = "in-sync"
    CAMPAIGN = "campaign"
    PRIMARY = "primary"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class Settings:
    """Durations are seconds. No safety depends on them: they only decide when to try."""

    lease: float = 3.0
    replica_timeout: float = (
        2.0  # how long a publish waits for a member before the primary removes the member
    )
    silence: float = 1.0  # of a stream, after which a standby looks at `g/primary`
    heartbeat: float = 0.2
    poll: float = 0.5  # between reads of the group's keys
    retry: float = 0.1
    sync_timeout: float = 10.0  # of the primary's fsync, after which it hands over
    min_copies: int = 1
    synced: bool = False  # acknowledge and commit what is synced, not what is written

    def __post_init__(self) -> None:
        if self.min_copies < 1:
            raise UsageError(f"min_copies is {self.min_copies}, and must be at least 1")
        if self.lease < 2:
            raise UsageError(f"the lease is {self.lease} s, and etcd grants no less than 2 s")
        for name in ("replica_timeout", "silence", "heartbeat", "poll", "retry", "sync_timeout"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name)}, and must be more than 0")
        if self.heartbeat >= self.silence:
            raise UsageError("a heartbeat must come more often than `silence`")


@dataclass(slots=True)
class Directory:
    """What the automaton knows of its member's files when it starts."""

    incarnation: str
    settled: bool = True
    term: int = 0  # the highest term of any file
    belongs: bool = True  # it was filled in the group: it is not new, and no copy
