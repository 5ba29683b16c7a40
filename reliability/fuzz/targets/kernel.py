"""The kernel's functions on bytes: the compiled ones against their twins in plain Python.

The first eight bytes choose the arguments. Where the compiled kernel is not in use, the twins run alone, and
atheris sees which of their lines an input reaches.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from nsquark import kernel
from nsquark.kernel import pure
from reliability.fuzz.target import Target, require_same

HEAD = 8


def _outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> object:
    try:
        return _plain(function(*arguments))
    except ValueError:
        return "ValueError"


def _plain(value: object) -> object:
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def _calls(chance: random.Random, data: bytes) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Functions and arguments as their callers may pass them: offsets lie within the data."""
    size = len(data)
    start = chance.choice((0, 0, 0, chance.randint(0, size)))
    end = chance.choice((size, size, chance.randint(start, size)))
    sizes = chance.choice(((100, 300), (10, 1000), (1 << 20, 5 << 20)))
    yield "crc32c", (data, start, end)
    yield "scan_fins", (data, start, end)
    yield "next_fins", (data, start, end)
    yield "scan_pubs", (data, start, end, sizes[0])
    yield "scan_mpub", (data, start, end, *sizes, 0, 0)
    for line in (b"PUB t\n", b"MPUB t\n"):
        yield "unfinished_command", (data, start, end, line, *sizes)
    want, most = chance.choice((1, 3, 1000)), chance.choice((1, 100, 1 << 20))
    yield "gather", (data, start, end, 0, want, most)
    yield "frame_ends", (data[start:end],)
    yield "scan_batches", (data, start, end, chance.random() < 0.5, chance.choice((1, 100, 1 << 16)))
    for position in (0, chance.randint(0, 20), chance.choice((1 << 40, (1 << 64) - 1))):
        yield "find_message", (data, start, end, position)
    yield "index_frames", (data, end, start, 0, chance.choice((0, 7)), chance.randint(0, 3), want)
    columns = [chance.random() < 0.8 for _ in range(3)]
    yield "decode_batches", (data, chance.randint(0, 5), chance.randint(0, 8), *columns)
    yield "scan_oks", (data, start, end)
    width = chance.choice((4, 8))
    yield "lay_mpub", (b"MPUB t\n", data, data[: 8 * width], width, 0, chance.randint(0, 9), most)
    defers = data[8 : 8 + 64]
    yield "lay_dpubs", (b"t", data, data[: 8 * width], width, defers, 0, chance.randint(0, 9), most)


def _written(module: Any, data: bytes, position: int) -> list[object]:
    """What a writer lays out of the publishes in the data, and what a reader takes from that."""
    writer = module.BatchWriter(position, 7)
    writer.use_ids(7, 50)
    stops = [
        writer.add_whole_pubs(data, 0, len(data), b"PUB t\n", 100, 1),
        writer.add_whole_mpubs(data, 0, len(data), b"MPUB t\n", 100, 300, 2),
    ]
    for each in stops:
        writer.add_whole_mpubs(data, each, len(data), b"MPUB t\n", 100, 300, 2)
        writer.add_whole_pubs(data, each, len(data), b"PUB t\n", 100, 3)
    counts = [writer.count, writer.commands, writer.body_bytes, writer.size, writer.ids_left]
    batches = writer.take()
    reader = module.BatchReader()
    reader.data = batches
    taken: list[object] = []
    for want, most in ((1, 1), (2, 50), (1000, 1 << 20)):
        frames = bytes(reader.gather(want, most))
        taken.append((frames, reader.count, reader.at, reader.remaining))
        taken.append(_plain((module.frame_ends(frames), module.with_attempts(frames, 9))))
        taken.append(_plain(module.timestamps(frames, 7)))
    return [stops, counts, batches, taken]


def run(data: bytes) -> object:
    chance, data = random.Random(data[:HEAD]), data[HEAD:]
    seen: list[object] = []
    for name, arguments in _calls(chance, data):
        expected = _outcome(getattr(pure, name), arguments)
        if kernel.COMPILED:
            require_same(name, expected, _outcome(getattr(kernel, name), arguments))
        seen.append(expected)
    written = _written(pure, data, 5)
    if kernel.COMPILED:
        require_same("what is written", written, _written(kernel, data, 5))
    return seen, written


def repair(data: bytes) -> bytes:
    """Give every batch the checksum of its bytes."""
    out, at = bytearray(data), HEAD
    while at + pure.HEADER.size <= len(out):
        length = int.from_bytes(out[at + 8 : at + 12], "big")
        if out[at : at + 4] != pure.MAGIC or length < pure.HEADER.size or at + length > len(out):
            break
        out[at + 4 : at + 8] = kernel.crc32c(bytes(out), at + 8, at + length).to_bytes(4, "big")
        at += length
    return bytes(out)


def seeds() -> list[bytes]:
    writer = pure.BatchWriter(0, 1)
    writer.add_bodies([b"one", b"two" * 10], 1_700_000_000_000_000_000, 0)
    writer.add_bodies([b"later"], 1_700_000_000_000_000_000, 1_800_000_000_000_000_000)
    writer.add_bodies([b"", b"x"], 1_700_000_000_000_000_001, 0)
    batches = writer.take()
    sized = b"\0\0\0\3abc"
    return [
        b"\0" * HEAD + batches,
        b"\1" * HEAD + batches[48:],
        b"\2" * HEAD + b"FIN 0000000000000001\nFIN 0000000000000002\nFIN 000000000000000a\n",
        b"\3" * HEAD + b"PUB t\n" + sized + b"PUB t\n" + sized + b"PUB u\n" + sized,
        b"\4" * HEAD + b"MPUB t\n\0\0\0\x12\0\0\0\2" + sized + sized + b"MPUB t\n\0\0\0\x0b\0\0\0\1" + sized,
        b"\5" * HEAD + b"\0\0\0\2" + sized + sized,
        b"\6" * HEAD + b"\0\0\0\6\0\0\0\0OK" * 3,
        b"\7" * HEAD + b"".join(each.to_bytes(4, "little") for each in (0, 3, 8, 8, 20)) + b"z" * 30,
    ]


TARGET = Target(
    name="kernel",
    run=run,
    seeds=seeds,
    modules=("nsquark.kernel.pure",),
    words=(
        pure.MAGIC,
        b"PUB t\n",
        b"MPUB t\n",
        b"FIN 0000000000000001\n",
        b"\0\0\0\2",
        b"\0\0\0\x1e",
        b"\xff\xff\xff\xff",
    ),
    repair=repair,
    max_length=2000,
)
