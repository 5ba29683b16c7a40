"""What is wrong with the process: `/ping` and `/stats` tell it until the thing that failed works again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Thing: TypeAlias = tuple[str, ...]
"""What has failed: a topic's name and which part of it, or what no topic can be called."""

OK = "OK"
WRITE: Thing = ("/log",)  # writing any log: as in NSQ, the next good write to any other clears it
METADATA: Thing = ("/metadata",)


class Health:
    """The problems there are, the latest last; a thing that fails again has one still.

    `problems` is the same dictionary all the time: others hold on to it.
    """

    __slots__ = ("_changed", "problems", "text")

    def __init__(self, changed: Callable[[], None]) -> None:
        """`changed` is called when there is a first problem, and when the last one is gone."""
        self.problems: dict[Thing, str] = {}
        self.text = OK
        self._changed = changed

    def failed(self, what: Thing, reason: str) -> None:
        self.problems.pop(what, None)
        self.problems[what] = reason
        self._tell()

    def works(self, what: Thing) -> None:
        """It does what it should again, or is gone, and everything that belongs to it."""
        if self.problems:
            size = len(what)
            for key in [key for key in self.problems if key[:size] == what]:
                del self.problems[key]
            self._tell()

    def _tell(self) -> None:
        before = self.text
        self.text = f"NOK - {list(self.problems.values())[-1]}" if self.problems else OK
        if (before == OK) != (self.text == OK):
            self._changed()
