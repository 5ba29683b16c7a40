"""Where reading begins and ends: a word, positions or times, for all logs or for single ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ..options import OptionReader

EARLIEST, LATEST = "earliest", "latest"
# What the positions of `startingOffsets` and `endingOffsets` may be besides a position.
EARLIEST_POSITION, LATEST_POSITION = -2, -1
_WORDS: Final = {EARLIEST: EARLIEST_POSITION, LATEST: LATEST_POSITION}

ALL_NSQDS: Final = "*"  # in place of the name of an nsqd: what counts for all nsqds that have the topic
GivenNumbers = dict[str, dict[str, int]]  # topic: nsqd, by its id or its host:port: position or time

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = (1 << 63) // 1_000_000 - 1  # nsqd counts nanoseconds in 63 bits


@dataclass(frozen=True)
class Bound:
    """Where reading begins or ends.

    A time for all logs counts if there is one. Otherwise the positions or times count for the logs that they
    name, and the word `earliest` or `latest` counts for all other logs.
    """

    word: str = EARLIEST
    time_ms: int | None = None
    positions: GivenNumbers | None = None
    times: GivenNumbers | None = None
    option: str = field(default="startingOffsets", compare=False)  # that says so, as the user wrote it

    @property
    def is_word(self) -> bool:
        """Whether the word counts for all logs."""
        return self.time_ms is None and not self.positions and not self.times

    def given_for(self, topic: str, nsqd_id: str, nsqd_name: str) -> int | None:
        """The position given for a log, or None; the id of an nsqd counts before its name."""
        return _number_for(self.positions, topic, nsqd_id, nsqd_name)

    def time_for(self, topic: str, nsqd_id: str, nsqd_name: str) -> int | None:
        """The time given for a log in milliseconds, or None."""
        if self.time_ms is not None:
            return self.time_ms
        return _number_for(self.times, topic, nsqd_id, nsqd_name)

    def named_nsqds(self) -> dict[str, list[str]]:
        """The topics that are named, and the nsqds that are named for each of them."""
        numbers = self.positions or self.times or {}
        return {topic: [each for each in nsqds if each != ALL_NSQDS] for topic, nsqds in numbers.items()}


def _number_for(numbers: GivenNumbers | None, topic: str, nsqd_id: str, nsqd_name: str) -> int | None:
    given = (numbers or {}).get(topic, {})
    return next((given[name] for name in (nsqd_id, nsqd_name, ALL_NSQDS) if name in given), None)


def parse_bound(options: OptionReader, which: str, default: str) -> Bound:
    """`which` is `starting` or `ending`."""
    name, timestamp = f"{which}Offsets", f"{which}Timestamp"
    if options.has(name) and options.has(timestamp):
        raise options.error(timestamp, f"'{options.written(name)}' is given too")
    if options.has(timestamp):
        return _parse_times(options, timestamp, default)
    text, written = options.text(name, default), options.written(name)
    if text.lower() in _WORDS:
        return Bound(text.lower(), option=written)
    if not text.startswith("{"):
        raise options.error(name, f"{text!r} is neither earliest nor latest nor JSON")
    form = 'JSON such as {"topic": {"host:4150": 23}}'
    return Bound(default, positions=_parse_numbers(options, name, form, _position), option=written)


def _parse_times(options: OptionReader, name: str, default: str) -> Bound:
    text, written = options.text(name), options.written(name)
    if text.startswith("{"):
        form = 'JSON such as {"topic": "2026-01-31T12:00:00Z"}'
        return Bound(default, times=_parse_numbers(options, name, form, _time), option=written)
    time_ms = _time(text)
    if time_ms is None:
        raise options.error(
            name,
            f"{text!r} is neither milliseconds since 1970 nor a time such as 2026-01-31T12:00:00Z nor JSON",
        )
    return Bound(default, time_ms, option=written)


def _parse_numbers(
    options: OptionReader, name: str, form: str, parse: Callable[[Any], int | None]
) -> GivenNumbers:
    """Parse what is given by topic, and by nsqd within a topic or for all its nsqds at once."""
    try:
        document = json.loads(options.text(name))
    except ValueError as error:
        raise options.error(name, f"no {form}: {error}") from None
    numbers: GivenNumbers = {}
    for topic, given in document.items():
        if isinstance(given, int) and parse is _position:
            raise options.error(name, f"no {form}: {topic!r} has no nsqds")
        nsqds = given if isinstance(given, dict) else {ALL_NSQDS: given}
        for nsqd, value in nsqds.items():
            number = parse(value)
            if number is None:
                kind = "offset" if parse is _position else "time"
                at = "" if nsqd == ALL_NSQDS else f" at {nsqd!r}"
                raise options.error(name, f"{value!r} is no {kind} of {topic!r}{at}")
            numbers.setdefault(topic, {})[nsqd] = number
    return numbers


def _position(value: Any) -> int | None:
    """A position, a word, or the offset that Spark reports for a source."""
    if isinstance(value, str):
        return _WORDS.get(value.lower())
    number = value.get("offset") if isinstance(value, dict) else value
    if not isinstance(number, int) or isinstance(number, bool) or number < EARLIEST_POSITION:
        return None
    return number


def _time(value: Any) -> int | None:
    """Milliseconds since 1970, from such a number or from ISO 8601. A time without a zone is UTC."""
    text = str(value)
    if re.fullmatch(r"\d{1,18}", text):
        return min(int(text), _LAST_MS)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    since = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - _EPOCH
    return min(max(since // timedelta(milliseconds=1), 0), _LAST_MS)
