"""Numbers, sizes, times and bodies, as people read and write them."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final

from nsquark.errors import UsageError
from nsquark.gotext import format_duration, parse_duration

_SIZES: Final = ("B", "KB", "MB", "GB", "TB")
_SIZE_LETTERS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def count(number: float) -> str:
    """`1,234`."""
    return f"{number:,.0f}"


def messages(number: int) -> str:
    return f"{number:,} message{'' if number == 1 else 's'}"


def short(number: float) -> str:
    """At most six characters: `999`, `12.3k`, `4.5M`."""
    if number < 9999.5:
        return f"{number:.0f}" if number >= 9.95 or number == int(number) else f"{number:.1f}"
    for unit in ("k", "M", "G"):
        number /= 1000
        if number < 99.95:
            return f"{number:.1f}{unit}"
        if number < 999.5:
            return f"{number:.0f}{unit}"
    return f"{number / 1000:.1f}T"


def size(number: float) -> str:
    for unit in _SIZES:
        if number < 999.5 or unit == _SIZES[-1]:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 99.5 else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError  # the last unit takes everything


def age(seconds: float) -> str:
    """At most five characters: `350ms`, `12s`, `4m10s`, `3h05m`, `12d`."""
    seconds = max(0.0, seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s" if whole < 600 else f"{whole // 60}m"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m" if whole < 36000 else f"{whole // 3600}h"
    return f"{whole // 86400}d"


def age_since(timestamp_ns: int) -> str:
    return age(time.time() - timestamp_ns / 1e9)


def clock(timestamp_ns: int) -> str:
    """Local time: of today without the date, to the millisecond."""
    moment = datetime.fromtimestamp(timestamp_ns / 1e9)
    text = moment.strftime("%H:%M:%S.") + f"{moment.microsecond // 1000:03d}"
    return text if moment.date() == datetime.now().date() else moment.strftime("%Y-%m-%d ") + text


def latency(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.2f} s"


def parse_seconds(text: str) -> float:
    """`250ms`, `1m30s`, or a bare number of seconds. Raises UsageError."""
    try:
        value = float(text) if text.replace(".", "", 1).isdigit() and text.isascii() else None
        value = parse_duration(text) / 1e9 if value is None else value
    except ValueError:
        raise UsageError(f"{text!r} is no length of time, such as 250ms, 10s or 1m30s") from None
    if value < 0:
        raise UsageError(f"{text!r} is negative")
    return value


def parse_size(text: str) -> int:
    """`200`, `4k`, `1M`. Raises UsageError."""
    letter = text[-1:].lower() if text[-1:].isalpha() else ""
    digits = text[: len(text) - len(letter)]
    if letter not in _SIZE_LETTERS or not (digits.isascii() and digits.isdigit() and len(digits) < 12):
        raise UsageError(f"{text!r} is no size, such as 200, 4k or 1M")
    return int(digits) * _SIZE_LETTERS[letter]


def parse_kept_time(text: str) -> str:
    """How nsqd is told a time to keep something: `72h`, `7d`, `unlimited`, `default`. Raises UsageError."""
    if text in ("unlimited", "default"):
        return text
    days = text[:-1] if text.endswith("d") else ""
    seconds = int(days) * 86400 if days.isascii() and days.isdigit() else parse_seconds(text)
    return f"{round(seconds * 1e9)}ns"


def parse_kept_size(text: str) -> str:
    """How nsqd is told a size to keep: `500M`, `20g`, `unlimited`, `default`. Raises UsageError."""
    return text if text in ("unlimited", "default") else str(parse_size(text))


def kept_time(ns: int) -> str:
    if ns < 0:
        return "without limit"
    return f"for {format_duration(ns)}" if ns else "not at all"


def kept_size(number: int) -> str:
    if number < 0:
        return "without limit"
    return f"up to {size(number)}" if number else "not at all"


def visible(text: str) -> str:
    """A text from elsewhere, harmless to a terminal: what moves the cursor or changes colours is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def body_text(body: bytes) -> str:
    """A body on one line of a terminal."""
    return visible(body.decode("utf-8", "backslashreplace"))
