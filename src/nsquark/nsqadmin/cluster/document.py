"""Reading JSON of daemons of any version: what is missing, null or of another type reads as nothing.

So does a number that no daemon of NSQ can count to: sums, charts and times of such would overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

Document = dict[str, Any]
LARGEST = 1 << 64


def as_document(value: object) -> Document:
    return value if isinstance(value, dict) else {}


def documents(document: Document, key: str) -> list[Document]:
    """The objects of a list; what is none is left out."""
    value = document.get(key)
    if not isinstance(value, list):
        return []
    return [each for each in value if isinstance(each, dict)]


def texts(document: Document, key: str) -> list[str]:
    value = document.get(key)
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def text(document: Document, key: str) -> str:
    value = document.get(key)
    return value if isinstance(value, str) else ""


def integer(document: Document, key: str) -> int:
    return int(number(document, key))


def number(document: Document, key: str) -> int | float:
    value: Any = document.get(key)
    if type(value) in (int, float) and -LARGEST < value < LARGEST:  # which no NaN is
        told: int | float = value
        return told
    return 0


def boolean(document: Document, key: str) -> bool:
    return document.get(key) is True


_READERS: dict[type, Callable[[Document, str], Any]] = {str: text, int: integer, bool: boolean}


class Fields:
    """Several fields, read at once as `text`, `integer` and `boolean` read each, and in the order given here.

    A cluster has a hundred thousand fields. Nearly every document has them all in the right types, and then
    a handful of calls read it.
    """

    def __init__(self, **types: type) -> None:
        self._types = tuple(types.values())
        self._nothing = {key: kind() for key, kind in types.items()}
        self._pick = itemgetter(*types)

    def read(self, document: Document) -> tuple[Any, ...]:
        values: tuple[Any, ...]
        try:
            values = self._pick(document)
        except KeyError:
            values = self._pick({**self._nothing, **document})
        if tuple(map(type, values)) == self._types:
            return values
        return tuple(
            _READERS[kind](document, key) for key, kind in zip(self._nothing, self._types, strict=True)
        )
