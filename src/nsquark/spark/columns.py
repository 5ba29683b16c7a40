"""The columns of a message, and which of them a schema asks for.

pyspark is asked for types only, so that this can be read without a session.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .errors import OptionError

# As in Spark's Kafka connector; `offset` is Spark's word for a position. Nothing is ever null.
SCHEMA = StructType(
    [
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("nsqd", StringType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("id", StringType()),
    ]
)
_TYPES: dict[str, tuple[type[DataType], ...]] = {
    field.name: (type(field.dataType),) if field.name != "value" else (BinaryType, StringType)
    for field in SCHEMA.fields
}


def check_type(field: StructField, types: Sequence[type[DataType]]) -> None:
    """Raises OptionError if the column is of no such type."""
    if type(field.dataType) not in types:
        names = " or ".join(each().simpleString().upper() for each in types)
        given = field.dataType.simpleString().upper()
        raise OptionError("schema", f"column {field.name!r} is {names}, not {given}")


def check_schema(schema: StructType) -> None:
    """Raises OptionError if it is not a selection of our columns."""
    for field in schema.fields:
        types = _TYPES.get(field.name)
        if types is None:
            raise OptionError("schema", f"no column {field.name!r}: there are {', '.join(_TYPES)}")
        check_type(field, types)
