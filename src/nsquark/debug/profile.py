"""A profile, and the two forms it is told in: pprof's, which speedscope opens too, and collapsed stacks.

pprof's form is a gzipped protocol buffer. The few fields that are needed are written here by hand:

    Profile   1 sample types  2 samples  4 locations  5 functions  6 strings  9 time  10 duration  12 period
    ValueType 1 type  2 unit            Sample   1 locations  2 values  3 labels     Label 1 key  2 string
    Location  1 id  4 line              Line     1 function  2 line number
    Function  1 id  2 name  4 file  5 first line
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MAX_STACKS = 20_000  # different ones; what comes beyond is counted together


class Place(NamedTuple):
    """A line of a function."""

    function: str
    file: str
    first_line: int
    line: int


Stack = tuple[Place, ...]
"""The innermost place first."""

BEYOND: Stack = (Place("(other stacks)", "", 0, 0),)


class Profile:
    """Values by stack and thread. `kinds` says what they are: (type, unit) each."""

    def __init__(self, kinds: Sequence[tuple[str, str]], period: int = 0) -> None:
        self.kinds = list(kinds)
        self.period = period  # of the last kind
        self.began_ns = time.time_ns()
        self.duration_ns = 0
        self.samples: dict[tuple[str, Stack], list[int]] = {}

    def add(self, thread: str, stack: Stack, *values: int) -> None:
        so_far = self.samples.get((thread, stack))
        if so_far is None:
            if len(self.samples) >= MAX_STACKS:
                stack = BEYOND
            so_far = self.samples.setdefault((thread, stack), [0] * len(self.kinds))
        for at, value in enumerate(values):
            so_far[at] += value

    def collapsed(self) -> Iterator[bytes]:
        """A line per stack, outermost first, with the last of its values."""
        for (thread, stack), values in list(self.samples.items()):  # more may come meanwhile
            names = [f"{place.function} ({place.file}:{place.line})" for place in reversed(stack)]
            line = ";".join(name.replace(";", ",") for name in ([thread] if thread else []) + names)
            yield f"{line} {values[-1]}\n".encode("utf-8", "backslashreplace")

    def pprof(self) -> Iterator[bytes]:
        """In pieces, to be joined and gzipped."""
        return _Pprof().pieces(self)


class _Pprof:
    def __init__(self) -> None:
        self._strings: dict[str, int] = {"": 0}
        self._functions: dict[tuple[str, str, int], int] = {}
        self._locations: dict[Place, int] = {}
        self._parts: list[bytes] = []  # functions and locations, as they are met

    def pieces(self, profile: Profile) -> Iterator[bytes]:
        for kind, unit in profile.kinds:
            yield _message(1, self._value_type(kind, unit))
        yield _number(9, profile.began_ns) + _number(10, profile.duration_ns)
        if profile.period:
            yield _message(11, self._value_type(*profile.kinds[-1])) + _number(12, profile.period)
        for (thread, stack), values in list(profile.samples.items()):  # more may come meanwhile
            sample = _packed(1, [self._location(place) for place in stack]) + _packed(2, values)
            if thread:
                label = _number(1, self._string("thread")) + _number(2, self._string(thread))
                sample += _message(3, label)
            parts, self._parts = self._parts, []
            yield b"".join([*parts, _message(2, sample)])
        for text in self._strings:
            yield _message(6, text.encode("utf-8", "backslashreplace"))

    def _value_type(self, kind: str, unit: str) -> bytes:
        return _number(1, self._string(kind)) + _number(2, self._string(unit))

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _location(self, place: Place) -> int:
        known = self._locations.get(place)
        if known is None:
            known = self._locations[place] = len(self._locations) + 1
            line = _number(1, self._function(place)) + _number(2, place.line)
            self._parts.append(_message(4, _number(1, known) + _message(4, line)))
        return known

    def _function(self, place: Place) -> int:
        key = place[:3]
        known = self._functions.get(key)
        if known is None:
            known = self._functions[key] = len(self._functions) + 1
            name, file = self._string(place.function), self._string(place.file)
            fields = _number(1, known) + _number(2, name) + _number(4, file) + _number(5, place.first_line)
            self._parts.append(_message(5, fields))
        return known


def gzipped(data: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _message(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _packed(field: int, numbers: Sequence[int]) -> bytes:
    return _message(field, b"".join(map(_varint, numbers)))
