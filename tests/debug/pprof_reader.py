"""Reads pprof's protocol buffers, as little of them as a test needs, without the writer's help."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Read:
    kinds: list[tuple[str, str]]
    samples: list[tuple[list[str], list[int], dict[str, str]]] = field(default_factory=list)
    """Function names from the innermost out, values, labels."""
    duration_ns: int = 0
    period: int = 0


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            assert key & 7 == 2
            size = varint()
            assert at + size <= len(data)
            yield key >> 3, data[at : at + size]
            at += size


def numbers(packed: bytes) -> list[int]:
    # a packed list reads like fields without keys: put a key before each number
    values, value, shift = [], 0, 0
    for byte in packed:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append(value)
            value = shift = 0
    assert shift == 0
    return values


def read(gzipped: bytes) -> Read:
    data = list(fields(zlib.decompress(gzipped, 31)))
    strings = [value.decode() for number, value in data if number == 6 and isinstance(value, bytes)]
    assert strings[0] == ""
    tables: dict[int, dict[int, dict[int, int | bytes]]] = {4: {}, 5: {}}
    for number, value in data:
        if number in tables and isinstance(value, bytes):
            entry = dict(fields(value))
            tables[number][int(entry[1])] = entry  # type: ignore[arg-type]

    def function(location: int) -> str:
        line = dict(fields(tables[4][location][4]))  # type: ignore[arg-type]
        return strings[int(tables[5][int(line[1])][2])]  # type: ignore[arg-type]

    out = Read([])
    for number, value in data:
        if number == 1:
            kind = dict(fields(value))  # type: ignore[arg-type]
            out.kinds.append((strings[int(kind[1])], strings[int(kind[2])]))  # type: ignore[arg-type]
        elif number == 2:
            sample = list(fields(value))  # type: ignore[arg-type]
            parts = dict(sample)
            labels = [dict(fields(part)) for key, part in sample if key == 3]  # type: ignore[arg-type]
            out.samples.append(
                (
                    [function(each) for each in numbers(parts[1])],  # type: ignore[arg-type]
                    numbers(parts[2]),  # type: ignore[arg-type]
                    {strings[int(each[1])]: strings[int(each[2])] for each in labels},  # type: ignore[arg-type]
                )
            )
        elif number == 10:
            out.duration_ns = int(value)
        elif number == 12:
            out.period = int(value)
    return out
