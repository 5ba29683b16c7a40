"""The columns of a source and of a sink, and whether a schema fits them.

Only pyspark's types are used, so that a schema can be checked without a Spark session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .errors import OptionError
from .options import ALL_NAMES, OptionReader

# The columns of a source, named as in Spark's Kafka connector; `offset` is Spark's word for a position.
# None of them is ever null.
SCHEMA: Final = StructType(
    [
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("nsqd", StringType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("id", StringType()),
    ]
)
_Types = Mapping[str, Sequence[type[DataType]]]

_BODY: Final = (BinaryType, StringType)
_SOURCE_TYPES: Final[_Types] = {
    field.name: _BODY if field.name == "value" else (type(field.dataType),) for field in SCHEMA.fields
}
_SINK_TYPES: Final[_Types] = {
    "value": _BODY,
    "topic": (StringType,),
    "defer": (ByteType, ShortType, IntegerType, LongType),
}
# The columns of a source that a message gets from nsqd. A sink takes them too if they are null: an INSERT has
# all columns of its table.
COLUMNS_OF_NSQD: Final = ("nsqd", "offset", "timestamp", "id")


def select_columns(given: Mapping[str, str]) -> StructType:
    """The columns that the option `columns` names, or all columns.

    The option is a list such as `value STRING, offset`. Raises OptionError.
    """
    names = parse_columns(OptionReader(given, ALL_NAMES))
    fields = {field.name: field for field in SCHEMA.fields}
    return StructType([StructField(name, names[name] or fields[name].dataType) for name in names])


def parse_columns(options: OptionReader) -> dict[str, DataType | None]:
    """The columns that the option `columns` names, or all; with their types where the option tells them."""
    if not options.has("columns"):
        return dict.fromkeys(SCHEMA.names)
    wanted: dict[str, DataType | None] = {}
    for entry in options.texts("columns"):
        name, _, kind = (part.strip() for part in entry.partition(" "))
        types = _SOURCE_TYPES.get(name.lower())
        if types is None:
            raise options.error("columns", f"no column {name!r}: there are {', '.join(_SOURCE_TYPES)}")
        found = [each() for each in types if each().simpleString() == kind.lower()]
        if kind and not found:
            known = " or ".join(each().simpleString().upper() for each in types)
            raise options.error("columns", f"column {name!r} is {known}, not {kind.upper()}")
        wanted[name.lower()] = found[0] if found else None
    if not wanted:
        raise options.error("columns", "empty")
    return wanted


def check_source_schema(schema: StructType) -> None:
    """Raise OptionError unless the schema is a selection of the source's columns."""
    _check_columns(schema, _SOURCE_TYPES, "no column {!r}: there are {}")


def check_sink_schema(schema: StructType) -> None:
    """Raise OptionError unless a sink can publish rows of this schema."""
    fields = [field for field in schema.fields if not _is_column_of_nsqd(field)]
    _check_columns(StructType(fields), _SINK_TYPES, "column {!r}: a sink takes {}")
    if "value" not in schema.names:
        raise OptionError("schema", "there is no column 'value', which holds the messages")


def _is_column_of_nsqd(field: StructField) -> bool:
    """Whether the column may be one of a table; its rows are checked when they are there."""
    return (
        field.name in COLUMNS_OF_NSQD and field.nullable and type(field.dataType) in _SOURCE_TYPES[field.name]
    )


def _check_columns(schema: StructType, known: _Types, problem: str) -> None:
    """`problem` is the text for an unknown column, with places for its name and for the known names."""
    for field in schema.fields:
        types = known.get(field.name)
        if types is None:
            raise OptionError("schema", problem.format(field.name, ", ".join(known)))
        if type(field.dataType) not in types:
            names = " or ".join(each().simpleString().upper() for each in types)
            given = field.dataType.simpleString().upper()
            raise OptionError("schema", f"column {field.name!r} is {names}, not {given}")
