"""One charted thing: four columns of the last POINTS observations, as a ring of 32-bit floats."""

from __future__ import annotations

import math
from array import array
from typing import NamedTuple

POINTS = 360
COLUMNS = 4
_NOTHING = array("f", [math.nan]) * (POINTS * COLUMNS)


class Values(NamedTuple):
    rate: float  # messages a second; NaN where it is not known
    depth: float
    in_flight: float
    latency: float  # seconds; NaN where nsqd does not tell


class Series:
    """Observation `number` lies in slot `number % POINTS`; a slot without an observation holds NaN.

    A depth of more than 16 million is rounded to 24 bits, which no chart shows.
    """

    __slots__ = ("_cells", "seen")

    def __init__(self) -> None:
        self._cells = array("f", _NOTHING)
        self.seen = -1

    def put(self, number: int, values: Values) -> None:
        slot = number % POINTS * COLUMNS
        self._cells[slot : slot + COLUMNS] = array("f", values)
        self.seen = number

    def clear(self, number: int) -> None:
        """Nothing is known of observation `number`: forget the one that was in its slot."""
        slot = number % POINTS * COLUMNS
        self._cells[slot : slot + COLUMNS] = _NOTHING[:COLUMNS]

    def column(self, name: str, numbers: range) -> list[float | None]:
        offset = Values._fields.index(name)
        cells = (self._cells[number % POINTS * COLUMNS + offset] for number in numbers)
        return [None if math.isnan(cell) else cell for cell in cells]
