"""How Go reads and writes plain values: NSQ's flags, config files and error texts are made of these.

Durations are integer nanoseconds here, as in Go; `seconds` and `nanoseconds` lead to our floats and back.
What cannot be read raises ValueError with Go's own text.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False  # as type checkers know it, without loading `typing`
if TYPE_CHECKING:
    from typing import Any

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

INVALID_SYNTAX = "invalid syntax"
OUT_OF_RANGE = "value out of range"

_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))

# Patterns are compiled at their first use, by `re` itself: a start with few flags should not pay for all.

# A leading 0 means octal, and `_` may stand between digits or after the prefix. ASCII digits only, unlike \d.
_INT_LITERAL = (
    r"[+-]?(?:0[xX](?P<hex>(?:_?[0-9a-fA-F])+)|0[bB](?P<bin>(?:_?[01])+)|0[oO]?(?P<oct>(?:_?[0-7])+)"
    r"|(?P<dec>0|[1-9](?:_?[0-9])*))"
)
_DECIMAL = r"[+-]?(?P<dec>[0-9]+)"
_RADIX = {"hex": 16, "bin": 2, "oct": 8, "dec": 10}
_FLOAT = r"(?i:[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan))"
_HEX_FLOAT = r"(?i:[+-]?0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)p[+-]?[0-9]+)"

# A number and its unit; Go takes everything up to the next digit or point for the unit.
_DURATION_PART = r"([0-9]*)(\.[0-9]*)?([^0-9.]*)"
_UNITS = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,  # the micro sign
    "\u03bcs": 1_000,  # and the Greek letter
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}

_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def parse_bool(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"strconv.ParseBool: parsing {quote(text)}: {INVALID_SYNTAX}")


def parse_int(text: str, base: int = 0) -> int:
    """An int64. Base 0 takes `0x`, `0o`, `0b`, a leading 0 for octal, and `_`; base 10 takes digits only."""
    literal = re.fullmatch(_DECIMAL if base == 10 else _INT_LITERAL, text)
    if not literal:
        raise ValueError(f"strconv.ParseInt: parsing {quote(text)}: {INVALID_SYNTAX}")
    kind = literal.lastgroup or "dec"
    digits = literal[kind].replace("_", "").lstrip("0") or "0"
    # No int64 has more than 64 digits in any base, and Python refuses to read very long decimals.
    value = int(digits, _RADIX[kind]) if len(digits) <= 64 else 1 << 64
    if text[0] == "-":
        value = -value
    if not INT64_MIN <= value <= INT64_MAX:
        raise ValueError(f"strconv.ParseInt: parsing {quote(text)}: {OUT_OF_RANGE}")
    return value


def parse_float(text: str) -> float:
    if re.fullmatch(_HEX_FLOAT, text):
        try:
            return float.fromhex(text)
        except OverflowError:
            value = float("inf")
    elif re.fullmatch(_FLOAT, text):
        value = float(text)
    else:
        raise ValueError(f"strconv.ParseFloat: parsing {quote(text)}: {INVALID_SYNTAX}")
    if value in (float("inf"), float("-inf")) and "i" not in text.lower():
        raise ValueError(f"strconv.ParseFloat: parsing {quote(text)}: {OUT_OF_RANGE}")
    return value


def parse_duration(text: str) -> int:
    """Nanoseconds of `1m30s`, `1.5h`, `-300ms` or a bare `0`."""
    invalid = f"time: invalid duration {quote(text)}"
    negative = text[:1] == "-"
    unsigned = text[1:] if text[:1] in ("-", "+") else text
    if unsigned == "0":
        return 0
    if not unsigned:
        raise ValueError(invalid)
    total = 0
    for whole, point_and_fraction, unit in re.findall(_DURATION_PART, unsigned):
        if not whole and not point_and_fraction and not unit:
            break  # findall ends with an empty match
        # More digits than these are out of range before the point and far below a nanosecond behind it.
        whole, fraction = whole.lstrip("0") or whole[:1], point_and_fraction[1:65]
        if (not whole and not fraction) or len(whole) > 64:
            raise ValueError(invalid)
        if not unit:
            raise ValueError(f"time: missing unit in duration {quote(text)}")
        if unit not in _UNITS:
            raise ValueError(f"time: unknown unit {quote(unit)} in duration {quote(text)}")
        total += int(whole or "0") * _UNITS[unit]
        total += int(fraction or "0") * _UNITS[unit] // 10 ** len(fraction)
        if total > INT64_MAX + negative:
            raise ValueError(invalid)
    return -total if negative else total


def format_duration(ns: int) -> str:
    """`1m0s`, `1.5s`, `250ms`, `0s`: the largest unit that fits, and below a second one unit only."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    if ns == 0:
        return "0s"
    for unit, size in (("ns", 1), ("\u00b5s", 1_000), ("ms", 1_000_000)):
        if ns < size * 1000:
            return sign + _decimal(ns, size) + unit
    minutes, rest = divmod(ns, _UNITS["m"])
    hours, minutes = divmod(minutes, 60)
    text = _decimal(rest, _UNITS["s"]) + "s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    if hours:
        text = f"{hours}h{text}"
    return sign + text


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    if not rest:
        return str(whole)
    return f"{whole}.{rest:0{len(str(unit)) - 1}d}".rstrip("0")


def seconds(ns: int) -> float:
    return ns / 1_000_000_000


def nanoseconds(seconds: float) -> int:
    """The nearest nanosecond. Undoes `seconds` exactly for whole seconds and for anything up to 97 days."""
    return int(f"{seconds:.9f}".replace(".", ""))


def quote(text: str) -> str:
    """Go's %q."""
    return '"' + "".join(_ESCAPES.get(c) or (c if c.isprintable() else _escape(ord(c))) for c in text) + '"'


def _escape(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # a byte of the command line that was no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def format_value(value: object) -> str:
    """Go's %v."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _format_float(value)
    if isinstance(value, list | tuple):
        return "[" + " ".join(map(format_value, value)) + "]"
    if isinstance(value, dict):
        return "map[" + " ".join(f"{k}:{format_value(v)}" for k, v in sorted(value.items())) + "]"
    return str(value)


def _format_float(value: float) -> str:
    text = repr(value).removesuffix(".0")
    if text[-1] in "fn":
        return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}[text]
    if not 1e6 <= abs(value) < 1e16:  # where Python and Go agree
        return text
    digits = text.lstrip("-")
    exponent = len(digits.partition(".")[0]) - 1
    digits = digits.replace(".", "").rstrip("0")
    point = "." if len(digits) > 1 else ""
    return f"{'-' * (value < 0)}{digits[0]}{point}{digits[1:]}e+{exponent:02d}"


def compile_pattern(pattern: str) -> Any:
    """A regular expression of Go's, which takes linear time, whatever the text. Raises ValueError."""
    import re2  # most processes have no pattern, and this would slow their start

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(str(error)) from None


def format_os_error(error: OSError) -> str:
    """The errno's text as Go spells it: `no such file or directory`."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]
