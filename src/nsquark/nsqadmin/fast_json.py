"""JSON by orjson, which is several times as fast as Python's own; and by Python's own where orjson refuses.

A cluster of a hundred nsqds answers with tens of megabytes of JSON, every few seconds while a page is open.
Without orjson everything works, and takes longer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

# What is answered was made here and contains nothing that contains itself.
_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))


def _integer(digits: str) -> int | float:
    """An integer of more than 64 bits is a float, as orjson has it: nothing that is counted is so large."""
    return int(digits) if len(digits) < 20 else float(digits)


def _parse(data: bytes) -> Any:
    return json.loads(data, parse_int=_integer)


def _pack(document: object) -> bytes:
    return _ENCODER.encode(document).encode("utf-8", "backslashreplace")


_fast_parse: Callable[[bytes], Any] = _parse
_fast_pack: Callable[[object], bytes] = _pack
try:
    import orjson
except ImportError:
    pass
else:
    _fast_parse, _fast_pack = orjson.loads, orjson.dumps


def parse_json(data: bytes) -> Any:
    """Raises ValueError and RecursionError.

    orjson refuses half a surrogate pair, NaN, and bytes that are no UTF-8, any of which an nsqd may send.
    """
    try:
        return _fast_parse(data)
    except ValueError:
        return _parse(data)


def pack_json(document: object) -> bytes:
    """The document without spaces. Half a surrogate pair, which UTF-8 cannot hold, becomes an escape."""
    try:
        return _fast_pack(document)
    except TypeError:  # half a surrogate pair, or a sum of more than 64 bits
        return _pack(document)
