"""The kinds of values that flags have: how each is read from the command line and from TOML, and shown.

The methods that read raise ValueError with the reason to print; `flags` puts it into its sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from nsquark.gotext import (
    OUT_OF_RANGE,
    format_duration,
    format_value,
    nanoseconds,
    parse_bool,
    parse_duration,
    parse_float,
    parse_int,
    quote,
    seconds,
)

from .log_forms import FORMS
from .logs import LEVELS

T = TypeVar("T")


class Kind:
    """A kind of value. Subclasses that daemons add for themselves live beside their options."""

    # The name of the value in the usage; empty for booleans, which need none.
    word = "value"
    # `--x` alone means true, and a separate word is never taken for the value.
    boolean = False
    # A bad value on the command line ends the program like a bad one in the file, without the usage.
    refused_without_usage = False

    def parse(self, text: str, so_far: Any) -> Any:
        """The value of one flag; `so_far` is what the same flag gave earlier on this line, or None."""
        raise NotImplementedError

    def coerce(self, value: object) -> Any:
        """The value of one TOML entry."""
        raise NotImplementedError

    def shown(self, value: Any) -> str:
        """The value as Go prints it."""
        return format_value(value)

    def default_shown(self, value: Any) -> str:
        """The default for the usage; empty if the usage does not show it."""
        return self.shown(value) if value else ""

    def config_value(self, value: Any) -> object:
        """The value as `/config/<key>` answers it: ready for JSON, or a string for plain text."""
        return value


class StringKind(Kind):
    word = "string"

    def parse(self, text: str, so_far: Any) -> str:
        return text

    def coerce(self, value: object) -> str:
        if not isinstance(value, str):
            raise wrong_type(value)
        return value

    def default_shown(self, value: str) -> str:
        return quote(value) if value else ""


class BoolKind(Kind):
    word = ""
    boolean = True

    def parse(self, text: str, so_far: Any) -> bool:
        return _parse_as_flag(parse_bool, text)

    def coerce(self, value: object) -> bool:
        if isinstance(value, str):
            return parse_bool(value)
        # No integers: NSQ 1.3.0 takes 0 for true.
        if not isinstance(value, bool):
            raise wrong_type(value)
        return value


class IntKind(Kind):
    word = "int"

    def parse(self, text: str, so_far: Any) -> int:
        return _parse_as_flag(parse_int, text)

    def coerce(self, value: object) -> int:
        if isinstance(value, str):
            return parse_int(value, 10)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(value)
        return parse_int(str(value), 10)


class FloatKind(Kind):
    word = "float"

    def parse(self, text: str, so_far: Any) -> float:
        return _parse_as_flag(parse_float, text)

    def coerce(self, value: object) -> float:
        if isinstance(value, str):
            return parse_float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(value)
        return parse_float(str(value))


class DurationKind(Kind):
    """Float seconds. In TOML an integer counts milliseconds."""

    word = "duration"

    def parse(self, text: str, so_far: Any) -> float:
        return seconds(_parse_as_flag(parse_duration, text))

    def coerce(self, value: object) -> float:
        if isinstance(value, str):
            return seconds(parse_duration(value))
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(value)
        return seconds(parse_duration(f"{value}ms"))

    def shown(self, value: float) -> str:
        return format_duration(nanoseconds(value))

    def config_value(self, value: float) -> int:
        return nanoseconds(value)


class StringsKind(Kind):
    """A flag that may be given several times. Commas divide in TOML strings, never on the command line."""

    def parse(self, text: str, so_far: Any) -> list[str]:
        return [*(so_far or ()), text]

    def coerce(self, value: object) -> list[str]:
        if isinstance(value, str):
            return [part.strip() for part in value.split(",")] if value else []
        if not isinstance(value, list):
            raise wrong_type(value)
        return [STRING.coerce(item) for item in value]


class FloatsKind(Kind):
    """Given several times, or divided by commas. Those of the command line are sorted, the largest first."""

    refused_without_usage = True

    def parse(self, text: str, so_far: Any) -> list[float]:
        floats = list(so_far or ())
        for part in text.split(","):
            try:
                floats.append(parse_float(part))
            except ValueError:
                raise ValueError(f"Could not parse: {part}") from None
        return sorted(floats, reverse=True)

    def coerce(self, value: object) -> list[float]:
        if isinstance(value, str):
            return [parse_float(part.strip()) for part in value.split(",")] if value else []
        if not isinstance(value, list):
            raise wrong_type(value)
        for item in value:
            if not isinstance(item, float):
                raise wrong_type(item)
        return value


class LogLevelKind(Kind):
    """One of the words of `logs.LEVELS`, in any case; kept in lower case."""

    def parse(self, text: str, so_far: Any) -> str:
        return parse_log_level(text)

    def coerce(self, value: object) -> str:
        return parse_log_level(format_value(value))

    def config_value(self, value: str) -> int:
        return list(LEVELS).index(value) + 1


def parse_log_level(word: str) -> str:
    if word.lower() not in LEVELS:
        raise ValueError(f"invalid log level '{word}' ({', '.join(LEVELS)})")
    return word.lower()


class LogFormatKind(Kind):
    """One of the words of `log_forms.FORMS`."""

    def parse(self, text: str, so_far: Any) -> str:
        return parse_log_format(text)

    def coerce(self, value: object) -> str:
        return parse_log_format(format_value(value))


def parse_log_format(word: str) -> str:
    if word not in FORMS:
        raise ValueError(f"invalid log format '{word}' ({', '.join(FORMS)})")
    return word


def wrong_type(value: object) -> ValueError:
    """A TOML value of a type that the option does not take."""
    names = {bool: "bool", int: "int64", float: "float64", str: "string", list: "array", dict: "table"}
    return ValueError(f"invalid value type {names.get(type(value), type(value).__name__)}")


def _parse_as_flag(parse: Callable[[str], T], text: str) -> T:
    """With one of the two reasons that Go's flag package gives in place of the parser's own.

    A duration out of range is a parse error, as in Go: only numbers know the difference.
    """
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(OUT_OF_RANGE if str(error).endswith(OUT_OF_RANGE) else "parse error") from None


STRING = StringKind()
BOOL = BoolKind()
INT = IntKind()
FLOAT = FloatKind()
DURATION = DurationKind()
STRINGS = StringsKind()
FLOATS = FloatsKind()
LOG_LEVEL = LogLevelKind()
LOG_FORMAT = LogFormatKind()
