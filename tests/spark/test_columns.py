"""Which schemas a source and a sink accept."""

from __future__ import annotations

import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from nsquark.spark.columns import SCHEMA, check_sink_schema, check_source_schema, select_columns
from nsquark.spark.errors import OptionError


def test_a_schema_of_a_source_is_a_selection() -> None:
    check_source_schema(SCHEMA)
    check_source_schema(StructType([StructField("id", StringType()), StructField("value", StringType())]))
    with pytest.raises(OptionError, match="no column 'body': there are value, topic, nsqd, offset"):
        check_source_schema(StructType([StructField("body", StringType())]))
    with pytest.raises(OptionError, match="column 'offset' is BIGINT, not INT"):
        check_source_schema(StructType([StructField("offset", IntegerType())]))
    with pytest.raises(OptionError, match="column 'value' is BINARY or STRING, not INT"):
        check_source_schema(StructType([StructField("value", IntegerType())]))


def test_an_option_selects_columns_and_the_type_of_the_body() -> None:
    assert select_columns({}) == SCHEMA
    chosen = select_columns({"COLUMNS": "Value string, offset"})
    assert chosen.simpleString() == "struct<value:string,offset:bigint>"
    check_source_schema(chosen)
    with pytest.raises(OptionError, match="option 'columns': column 'topic' is STRING, not BINARY"):
        select_columns({"columns": "topic BINARY"})


def test_a_sink_takes_the_columns_of_a_table_that_nsqd_fills() -> None:
    check_sink_schema(SCHEMA)
    for kind, nullable in ((StringType(), False), (IntegerType(), True)):
        with pytest.raises(OptionError, match="column 'id': a sink takes value, topic, defer"):
            check_sink_schema(StructType([*SCHEMA.fields[:1], StructField("id", kind, nullable)]))


def test_a_sink_needs_a_value_and_takes_a_topic_and_a_delay() -> None:
    value = StructField("value", StringType())
    check_sink_schema(StructType([value]))
    check_sink_schema(
        StructType([value, StructField("topic", StringType()), StructField("defer", IntegerType())])
    )
    with pytest.raises(OptionError, match="column 'key': a sink takes value, topic, defer"):
        check_sink_schema(StructType([value, StructField("key", StringType())]))
    with pytest.raises(OptionError, match="there is no column 'value'"):
        check_sink_schema(StructType([StructField("topic", StringType())]))
