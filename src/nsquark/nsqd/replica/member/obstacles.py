"""Why a member can neither lead nor follow, where only an operator can help: told once, in a line."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..automaton.group import member_of

if TYPE_CHECKING:
    from ..automaton.automaton import Automaton

logger = logging.getLogger(__name__)

TOLD = 1.0  # seconds for which something counts after it was told
PATIENCE = 3.0  # seconds beyond a lease without a primary: a failover takes less


class Obstacles:
    """`text` is what is in the way now; empty while nothing is."""

    def __init__(self, automaton: Automaton, group: str, lease: float) -> None:
        self.text = self._told = ""
        self._told_until = 0.0
        self._automaton = automaton
        self._group = group
        self._patience = lease + PATIENCE
        self._without_primary = float("inf")  # since when there has been none

    def look(self, now: float) -> None:
        """Tell what has changed. Call it with every tick."""
        self._set(self._find(now) or (self._told if now < self._told_until else ""))

    def tell(self, text: str, now: float) -> None:
        """Something else is in the way, which is told again while it lasts."""
        self._told, self._told_until = text, now + TOLD
        self._set(text)

    def _set(self, text: str) -> None:
        if text and text != self.text:
            logger.warning("REPLICA: %s", text)
        self.text = text

    def _find(self, now: float) -> str:
        automaton, view = self._automaton, self._automaton.view
        state, other = view.state, automaton.other
        if view.primary is not None or automaton.leading is not None or state is None:
            self._without_primary = now
        if not view.revision:
            return ""  # etcd was not read yet, and what it answers is told
        if other:
            return (
                f"etcd still has {other} as this member, which is {automaton.me} and waits for the end of"
                f" that session; no other process may have --replica-member={member_of(other)}"
            )
        if automaton.leading is not None:
            return ""
        if state is None:
            return f"etcd has no group {self._group}: one member founds it with --replica-bootstrap"
        if automaton.directory.term > state.term:
            return (
                f"etcd has term {state.term} of the group {self._group}, and this directory term"
                f" {automaton.directory.term}: etcd lost what was later, or it is another group's"
            )
        if now - self._without_primary > self._patience and not automaton.following.in_sync:
            return (
                f"no member leads: {', '.join(state.isr)} may, and {automaton.me} may not;"
                " `nsquark replica force` has it lead with what it has"
            )
        return ""
