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


def check_source_schema(schema: StructType) -> None:
    """Raise OptionError unless the schema is a selection of the source's columns."""
    _check_columns(schema, _SOURCE_TYPES, "no column {!r}: there are {}")


def check_sink_schema(schema: StructType) -> None:
    """Raise OptionError unless a sink can publish rows of this schema."""
    _check_columns(schema, _SINK_TYPES, "column {!r}: a sink takes {}")
    if "value" not in schema.names:
        raise OptionError("schema", "there is no column 'value', which holds the messages")


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
