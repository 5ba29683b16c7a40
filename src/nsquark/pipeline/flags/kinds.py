"""The kinds of flags that only the pipeline has."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

from nsquark.cli.flags import DURATION, STRING, STRINGS, Kind

AVAILABLE_NOW: Final = "available-now"
_MS = re.compile(r"\d{1,15}")


class TriggerKind(Kind):
    """Seconds between batches, or AVAILABLE_NOW."""

    word = "duration|once"

    def parse(self, text: str, so_far: Any) -> float | str:
        if text in ("once", AVAILABLE_NOW):
            return AVAILABLE_NOW
        try:
            interval = DURATION.parse(text, None)
        except ValueError:
            interval = -1.0
        if interval < 0:
            raise ValueError(f"neither a duration such as 10s, nor once, nor {AVAILABLE_NOW}")
        return float(interval)

    def coerce(self, value: object) -> float | str:
        return self.parse(STRING.coerce(value), None)

    def shown(self, value: float | str) -> str:
        return value if isinstance(value, str) else DURATION.shown(value)


class TimeKind(Kind):
    """Milliseconds since the epoch, given as a number or in ISO 8601, which is UTC if it names no zone."""

    word = "time"

    def parse(self, text: str, so_far: Any) -> int:
        if _MS.fullmatch(text):
            return int(text)
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError("neither ms since the epoch nor a time such as 2024-05-01T12:00:00Z") from None
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        return round(time.timestamp() * 1000)

    def coerce(self, value: object) -> int:
        if isinstance(value, datetime):
            return self.parse(value.isoformat(), None)
        return self.parse(str(value), None)


class PairsKind(Kind):
    """`name=value`, any number of times."""

    word = "name=value"

    def parse(self, text: str, so_far: Any) -> dict[str, str]:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError("not name=value")
        return {**(so_far or {}), name: value}

    def coerce(self, value: object) -> dict[str, str]:
        pairs: dict[str, str] = {}
        for each in STRINGS.coerce(value):
            pairs = self.parse(each, pairs)
        return pairs


TRIGGER = TriggerKind()
TIME = TimeKind()
PAIRS = PairsKind()
