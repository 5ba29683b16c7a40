"""What comes of asking many daemons: an answer with what failed beside it, or nothing but failures.

nsqadmin shows what it got. One daemon that fails costs a warning; only when every daemon that was asked has
failed is there an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Generic, TypeVar

from nsquark.errors import NsquarkError

T = TypeVar("T")
NOT_PRIMARY = "NOT_PRIMARY"  # the code of a member of a replica group that serves no clients


@dataclass(frozen=True, slots=True)
class Failure:
    """A daemon that failed. `kind` is nsqd or nsqlookupd; `status` is 0 if there was no answer."""

    kind: str
    address: str
    reason: str
    status: int = 0
    # The `message` of the daemon's JSON answer, such as CHANNEL_NOT_FOUND.
    code: str = ""

    def __str__(self) -> str:
        return f"{self.address}: {self.reason}"


@dataclass(slots=True)
class Found(Generic[T]):
    """What was found, and which daemons failed meanwhile."""

    value: T
    failures: list[Failure] = field(default_factory=list)

    @property
    def message(self) -> str:
        """As `/api` says it: empty, or a warning."""
        return warning(self.failures)


class UpstreamError(NsquarkError):
    """Every daemon that had to be asked has failed, or there was none to ask."""

    def __init__(self, kind: str, failures: Sequence[Failure]) -> None:
        self.kind = kind
        self.failures = list(failures)
        super().__init__(f"failed to query any {kind}: " + "\n".join(map(str, failures)))

    @property
    def not_found(self) -> bool:
        """Whether the daemons did answer, and know nothing of what they were asked for."""
        return all(failure.status == 404 for failure in self.failures)


def warning(failures: Iterable[Failure]) -> str:
    """The `message` of an answer: failures of one kind of daemon on a line each, `; ` between the kinds."""
    stages = ["\n".join(map(str, stage)) for _, stage in groupby(failures, lambda failure: failure.kind)]
    return "WARNING: " + "; ".join(stages) if stages else ""
