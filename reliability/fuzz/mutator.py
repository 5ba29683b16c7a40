"""Seeded random mutations, for runs without atheris: the same seed makes the same inputs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from .target import Target

_NUMBERS = (0, 1, 2, 4, 26, 30, 34, 48, 63, 64, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 1 << 20)
_WIDE = (0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def mutations(target: Target, inputs: Sequence[bytes], seed: int, count: int) -> Iterator[bytes]:
    """`count` inputs, each made of one of `inputs`."""
    chance = random.Random(f"{seed} {target.name}")
    for _ in range(count):
        data = bytearray(chance.choice(inputs))
        for _ in range(chance.choice((1, 1, 1, 2, 2, 4, 8))):
            change(chance, data, target.words, inputs)
        made = bytes(data[: target.max_length])
        if target.repair is not None and chance.random() < 0.7:
            made = target.repair(made)
        yield made


def change(chance: random.Random, data: bytearray, words: Sequence[bytes], inputs: Sequence[bytes]) -> None:
    """Change the data at one place."""
    at = chance.randrange(len(data) + 1)
    end = min(len(data), at + chance.choice((1, 2, 4, 8, 30, 200)))
    match chance.randrange(10):
        case 0 if at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        case 1:
            data[at : at + 1] = bytes((chance.randrange(256),))
        case 2:
            del data[at:end]
        case 3:
            data[at:at] = data[at:end]
        case 4:
            data[at:at] = chance.randbytes(chance.choice((1, 3, 20)))
        case 5 if words:
            data[at:at] = chance.choice(words)
        case 6 if words:
            word = chance.choice(words)
            data[at : at + len(word)] = word
        case 7:
            width = chance.choice((1, 2, 4, 8))
            number = chance.choice(_NUMBERS + _WIDE) % (1 << 8 * width)
            data[at : at + width] = number.to_bytes(width, chance.choice(("big", "little")))
        case 8:
            other = chance.choice(inputs)
            begin = chance.randrange(len(other) + 1)
            data[at:] = other[begin:]
        case _:
            del data[at:]
