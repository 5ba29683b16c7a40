"""The options of a table: what Spark hands over at its creation, and where they are found again."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from nsquark.spark.columns import SCHEMA, select_columns
from nsquark.spark.errors import OptionError
from nsquark.spark.options import BATCH_NAMES, SINK_NAMES
from nsquark.spark.table_options import (
    complete_options,
    note_options,
    options_of_creation,
    options_of_table,
    options_of_written_table,
    topic_of_table,
)

# What Spark hands over for OPTIONS (subscribe 't', …) TBLPROPERTIES (team 'web', minpartitions '2')
CREATION = {
    "option.nsqd.http.addresses": "h:4151",
    "nsqd.http.addresses": "h:4151",
    "option.subscribe": "t",
    "subscribe": "t",
    "provider": "nsq",
    "owner": "root",
    "team": "web",
    "minpartitions": "2",
}
OPTIONS = {"nsqd.http.addresses": "h:4151", "subscribe": "t", "minpartitions": "2"}


def test_options_and_properties_of_a_new_table() -> None:
    assert options_of_creation(CREATION) == OPTIONS
    assert options_of_creation({"subscribe": "t"}) is None
    # a misspelt option is left in place, to be refused
    assert "subscribe" in (options_of_creation({**CREATION, "option.subscribe": "t"}) or {})
    with pytest.raises(OptionError, match=r"option 'auth.secret': a table does not keep it"):
        options_of_creation({**CREATION, "option.auth.secret": "s"})


def test_a_query_finds_the_options_and_may_replace_them() -> None:
    schema = StructType.fromJson(note_options(SCHEMA, OPTIONS).jsonValue())
    assert schema.simpleString() == SCHEMA.simpleString()
    noted = options_of_table(schema)
    assert noted == options_of_written_table(schema) == OPTIONS
    assert complete_options({}, noted, BATCH_NAMES) == OPTIONS
    assert complete_options({}, noted, SINK_NAMES) == {"nsqd.http.addresses": "h:4151"}
    replaced = complete_options({"lookupd.http.addresses": "l:4161", "assign": "{}"}, noted, BATCH_NAMES)
    assert replaced == {"lookupd.http.addresses": "l:4161", "assign": "{}", "minpartitions": "2"}
    assert topic_of_table(noted) == "t"
    assert topic_of_table({"subscribe": "t,u"}) == topic_of_table({"subscribe": "t*"}) == ""


def test_rows_are_not_sent_to_the_table_that_they_come_from() -> None:
    """Spark leaves the metadata of a column in place that goes from one table into another."""
    source = note_options(select_columns({"columns": "value STRING, topic"}), OPTIONS)
    assert options_of_table(source) == OPTIONS
    assert options_of_written_table(source) == {}
    assert options_of_table(StructType([StructField("value", StringType())])) == {}
