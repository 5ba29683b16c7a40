"""A place in a topic's log, as a person writes it: `earliest`, `latest`, `10m`, a position, or a time."""

from __future__ import annotations

import re
import time as clock
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Final, Literal

from nsquark.errors import UsageError
from nsquark.gotext import parse_duration

PLACES: Final = "earliest, latest, how long ago (10m, 2d), a position, or a time (2026-11-01T08:00, 14:30)"
_DAYS: Final = re.compile(r"([0-9]{1,5})d")
_LAST_POSITION: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Place:
    """`position` if the place is one, else the first message at or after `time_ns`, else `word`."""

    word: Literal["earliest", "latest", ""] = ""
    position: int | None = None
    time_ns: int | None = None


EARLIEST: Final = Place("earliest")
LATEST: Final = Place("latest")


def parse_place(text: str, now: float | None = None) -> Place:
    """Raises UsageError. A time without an offset is local time; `now` is in seconds since the epoch."""
    now = clock.time() if now is None else now
    if text == "earliest":
        return EARLIEST
    if text == "latest":
        return LATEST
    if text.isascii() and text.isdigit():
        if len(text) > 19 or int(text) > _LAST_POSITION:
            raise UsageError(f"{text!r} is no position: it is too large")
        return Place(position=int(text))
    since = _seconds(text)
    seconds = now - since if since is not None else _time(text, now)
    if seconds is None:
        raise UsageError(f"{text!r} is none of: {PLACES}")
    return Place(time_ns=max(0, round(seconds * 1000)) * 1_000_000)


def _seconds(text: str) -> float | None:
    """The length of `90s`, `1h30m` or `2d`; None if the text is no length of time."""
    days = _DAYS.match(text)
    rest = text[days.end() :] if days else text
    try:
        nanoseconds = parse_duration(rest) if rest else 0
    except ValueError:
        return None
    if nanoseconds < 0 or (not days and not rest):
        return None
    return (86400.0 * int(days[1]) if days else 0.0) + nanoseconds / 1e9


def _time(text: str, now: float) -> float | None:
    """Seconds since the epoch of an ISO 8601 time, or of a time of today."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    try:
        return datetime.combine(date.fromtimestamp(now), time.fromisoformat(text)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
