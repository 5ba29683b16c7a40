"""The JSON flags: which messages pass, and what is left of them.

| body | outcome |
|---|---|
| no JSON, or JSON that is no object | dropped, with a line in the log that has no body |
| `null` | an object without fields |
| the required field is missing | dropped; failed if a value is required |
| the required field has another value | dropped |

With a whitelist the object is written anew as Go writes JSON, except that integers stay exact. Without one
the body passes as it is.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Any, NoReturn

from nsquark.errors import NsquarkError
from nsquark.gotext import parse_float

_ESCAPES = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_MOST_DIGITS = 4000  # Python refuses to make an integer of more than 4300


class Dropped(NsquarkError):
    """The message does not pass, and is finished. `reason` is for the log; without one nothing is logged."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class MissingField(NsquarkError):
    """The field is missing whose value is required: the message is requeued."""


class JsonFilter:
    def __init__(self, field: str, value: str, whitelist: Sequence[str]) -> None:
        """An empty `field` or `value` requires none; without a `field`, `value` counts for nothing."""
        self._field = field
        self._value = value
        self._number = _number(value)
        self._whitelist = sorted(set(whitelist))

    @property
    def active(self) -> bool:
        return bool(self._field or self._whitelist)

    def apply(self, body: bytes) -> bytes:
        """The body to forward. Raises Dropped and MissingField."""
        document = _parse(body)
        if self._field:
            self._check(document)
        if not self._whitelist:
            return body
        kept = {name: document[name] for name in self._whitelist if name in document}
        text = _pack(kept)
        try:
            return text.encode()
        except UnicodeEncodeError:  # half of a pair, written as an escape: Go replaces it
            return _SURROGATE.sub("\ufffd", text).encode()

    def _check(self, document: dict[str, Any]) -> None:
        if self._field not in document:
            if self._value:
                raise MissingField("missing field to check required value")
            raise Dropped
        if not self._value:
            return
        found = document[self._field]
        if isinstance(found, str):
            if found != self._value:
                raise Dropped
        elif not self._is_number(found):
            raise Dropped

    def _is_number(self, found: object) -> bool:
        wanted = self._number
        if wanted is None or isinstance(found, bool) or not isinstance(found, int | float):
            return False
        # Python compares an integer with a float exactly, and integers exactly.
        return found == wanted


class _NumberText:
    """A number that neither a 64-bit float nor a sensible integer holds: it stays as it is written."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _number(text: str) -> int | float | None:
    """The number that a text on the command line is; None if it is none."""
    if re.fullmatch(r"[+-]?[0-9]{1,4000}", text, re.ASCII):
        return int(text)
    try:
        return parse_float(text)
    except ValueError:
        return None


# ---- reading


def _parse(body: bytes) -> dict[str, Any]:
    try:
        # Go replaces what is no UTF-8.
        document = json.loads(
            body.decode("utf-8", "replace"),
            parse_int=_parse_int,
            parse_float=_parse_float,
            parse_constant=_no_constant,
        )
    except (ValueError, RecursionError):
        raise Dropped("Unable to decode json") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise Dropped("Unable to decode json: no object")
    return document


def _parse_int(text: str) -> int | _NumberText:
    return int(text) if len(text) <= _MOST_DIGITS else _NumberText(text)


def _parse_float(text: str) -> float | _NumberText:
    value = float(text)
    return value if math.isfinite(value) else _NumberText(text)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


# ---- writing


def _pack(value: Any) -> str:
    """JSON as Go writes it: keys in order, no spaces, and nothing that HTML would take for its own."""
    match value:
        case str():
            return encode_basestring(value).translate(_ESCAPES)
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _pack_float(value)
        case list():
            return "[" + ",".join(map(_pack, value)) + "]"
        case dict():
            return "{" + ",".join(f"{_pack(name)}:{_pack(value[name])}" for name in sorted(value)) + "}"
        case _NumberText():
            return value.text
    raise AssertionError(f"{type(value).__name__} does not come from JSON")


def _pack_float(value: float) -> str:
    """The shortest digits; with an exponent only below 1e-6 and from 1e21 on."""
    mantissa, _, exponent = repr(value).partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    if fraction == "0":
        fraction = ""
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return sign + "0"
    # The value is 0.digits × 10^point.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if not 1e-6 <= abs(value) < 1e21:
        tail = "." + digits[1:] if len(digits) > 1 else ""
        power = point - 1
        return f"{sign}{digits[0]}{tail}e{'-' if power < 0 else '+'}{abs(power)}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if len(digits) <= point:
        return sign + digits + "0" * (point - len(digits))
    return f"{sign}{digits[:point]}.{digits[point:]}"
