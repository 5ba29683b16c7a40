"""Escapes and query strings as Go's net/url reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")


def unescape(text: bytes) -> str | None:
    """Resolve %XX (a plus stays a plus), or None if one is malformed.

    Bytes that are not UTF-8 become U+FFFD: no name, option or path of ours contains it.
    """
    if b"%" in text:
        if _BAD_ESCAPE.search(text):
            return None
        text = _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), text)
    return text.decode("utf-8", "replace")


def parse_query(query: bytes) -> Mapping[str, str] | None:
    """The first value of each key, or None if Go's ParseQuery reports an error: a `;` or a malformed escape.

    A key without `=` is present with an empty value; empty parts (`a=1&&b=2`) are skipped.
    """
    if b";" in query:
        return None
    values: dict[str, str] = {}
    for part in query.split(b"&"):
        if not part:
            continue
        name, _, value = part.replace(b"+", b" ").partition(b"=")
        name_text, value_text = unescape(name), unescape(value)
        if name_text is None or value_text is None:
            return None
        values.setdefault(name_text, value_text)
    return values
