"""What the automaton wants is done here, in order: each action by its handler."""

from __future__ import annotations

import logging
from asyncio import Event
from collections.abc import Callable
from typing import Any

from ..automaton.actions import Fence
from ..automaton.automaton import Automaton

logger = logging.getLogger(__name__)


class Performing:
    def __init__(self, automaton: Automaton, ended: Event, fence: Callable[[Fence], None]) -> None:
        """After `ended`, nothing is done any more. `fence` is called when an action has failed."""
        self._automaton = automaton
        self._ended = ended
        self._fence = fence
        self._handlers: dict[type, Callable[[Any], None]] = {}
        self._ask: Callable[[Any], None] | None = None
        self._performing = False

    def handle(self, handlers: dict[type, Callable[[Any], None]], ask: Callable[[Any], None]) -> None:
        """Have each action done by the handler of its type, and those that have none by `ask`."""
        self._handlers = handlers
        self._ask = ask

    def perform(self) -> None:
        """Do everything that the automaton wants, in order."""
        automaton = self._automaton
        if not automaton.wanted or self._performing or self._ended.is_set():
            return
        self._performing = True
        try:
            while automaton.wanted:
                for action in automaton.take():
                    handler = self._handlers.get(type(action), self._ask)
                    handler(action)  # type: ignore[misc]  # `handle` comes first
        except Exception:
            # The automaton counts on what it asked for being done. A new process begins with what is on disk.
            logger.exception("REPLICA: what the automaton wants cannot be done")
            self._fence(Fence("an action has failed"))
        finally:
            self._performing = False
