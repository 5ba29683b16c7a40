"""The simulated network: links that are slow or cut one way, and the connections of the streams over them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

Message = tuple[Any, ...]


@dataclass(slots=True, eq=False)
class Connection:
    """A stream from a follower to a primary. Each end belongs to one life of a process."""

    follower: str
    follower_life: int
    primary: str
    primary_life: int
    term: int
    incarnation: str
    to_follower: deque[Message] = field(default_factory=deque)
    to_primary: deque[Message] = field(default_factory=deque)
    manifest: Message = ()
    held: list[Message] = field(default_factory=list)  # frames behind a catch-up
    fetching: bool = False


class Links:
    """Which way is cut, and until when. A cut holds packets back; it does not drop them."""

    def __init__(self) -> None:
        self._cut: dict[tuple[str, str], float] = {}
        self.slow_until = 0.0

    def cut(self, source: str, target: str, until: float) -> None:
        self._cut[source, target] = max(until, self._cut.get((source, target), 0.0))

    def cut_until(self, source: str, target: str) -> float:
        return self._cut.get((source, target), 0.0) if self._cut else 0.0

    def heal(self) -> None:
        self._cut.clear()
        self.slow_until = 0.0
