"""The filters that Spark pushes down to a table, and the part of the logs that they leave."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from .logs import LogRange


class FilterBounds:
    """Bounds on offset, timestamp, topic and nsqd. They may be too wide: Spark filters the rows again."""

    def __init__(self) -> None:
        self.first = 0  # the positions [first, end)
        self.end: int | None = None
        self.since: datetime | None = None  # the times [since, until]
        self.until: datetime | None = None
        self._names: dict[str, set[str]] = {}  # the values that `topic` and `nsqd` may have

    def add(self, condition: Filter) -> None:
        """Narrow the bounds by a filter. A filter of any other kind changes nothing."""
        match condition:
            case EqualTo(attribute=(name,), value=value) | EqualNullSafe(attribute=(name,), value=value):
                self._at_least(name, value)
                self._at_most(name, value)
                self._one_of(name, (value,))
            case In(attribute=(name,), value=values):
                self._one_of(name, values)
            case GreaterThan(attribute=(name,), value=value):
                self._at_least(name, value, 1)
            case GreaterThanOrEqual(attribute=(name,), value=value):
                self._at_least(name, value)
            case LessThan(attribute=(name,), value=value):
                self._at_most(name, value, 1)
            case LessThanOrEqual(attribute=(name,), value=value):
                self._at_most(name, value)

    def _at_least(self, name: str, value: Any, excluded: int = 0) -> None:
        if name == "offset" and isinstance(value, int):
            self.first = max(self.first, value + excluded)
        elif name == "timestamp" and isinstance(value, datetime):
            self.since = max(self.since or value, value)

    def _at_most(self, name: str, value: Any, excluded: int = 0) -> None:
        if name == "offset" and isinstance(value, int):
            end = value + 1 - excluded
            self.end = end if self.end is None else min(self.end, end)
        elif name == "timestamp" and isinstance(value, datetime):
            self.until = min(self.until or value, value)

    def _one_of(self, name: str, values: tuple[Any, ...]) -> None:
        if name in ("topic", "nsqd"):
            allowed = set(values)
            self._names[name] = self._names.get(name, allowed) & allowed

    def include(self, log: LogRange) -> bool:
        """Whether rows of the log may pass the filters on `topic` and `nsqd`."""
        names = {"topic": log.topic, "nsqd": log.node.name}
        return all(names[name] in allowed for name, allowed in self._names.items())


class PushFilters:
    """The `pushFilters` of a reader. Spark calls it if spark.sql.python.filterPushdown.enabled is set.

    If the setting is off, Spark refuses a reader whose class defines the method. Spark finds out by comparing
    `__func__`, so a reader that has this object in place of a method works with either setting.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, bounds: FilterBounds) -> None:
        self._bounds = bounds

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        """Returns all filters, which makes Spark apply them again: the bounds on times have a margin."""
        for each in filters:
            self._bounds.add(each)
        return filters
