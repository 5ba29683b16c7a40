"""Complaints that a hostile client could make us repeat: said once, then counted for a while."""

from __future__ import annotations

import logging
import time

EVERY = 10.0  # seconds between two of a kind


class Seldom:
    """Logs one warning of a kind in a while, and with the next one how many were left out."""

    def __init__(self, logger: logging.Logger, every: float = EVERY) -> None:
        self._logger = logger
        self._every = every
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warn(self, text: str, *args: object) -> None:
        """`text` is the kind of the complaint and must not vary. The parts that vary belong into `args`."""
        now = time.monotonic()
        if now - self._last.get(text, -self._every) < self._every:
            self._left_out[text] = self._left_out.get(text, 0) + 1
            return
        self._last[text] = now
        left_out = self._left_out.pop(text, 0)
        more = f" (and {left_out} more like this since the last such line)" if left_out else ""
        self._logger.warning(text + more, *args)
