"""The data source as Spark creates it: found by its package, checked when it is made."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

import pyspark_nsq
from nsquark.spark import NsqDataSource
from nsquark.spark.columns import SCHEMA
from nsquark.spark.errors import OptionError

GIVEN = {"nsqd.http.addresses": "127.0.0.1:1", "subscribe": "t"}


def test_spark_finds_it_by_its_package() -> None:
    assert pyspark_nsq.DefaultSource is pyspark_nsq.NsqDataSource is NsqDataSource
    assert NsqDataSource.name() == "nsq"


def test_options_and_schemas_are_checked_before_anything_is_read() -> None:
    with pytest.raises(OptionError, match="option 'subcribe': unknown; did you mean 'subscribe'"):
        NsqDataSource({"subcribe": "t"})
    source = NsqDataSource(dict(GIVEN))
    assert source.schema() == SCHEMA
    with pytest.raises(OptionError, match="column 'offset' is BIGINT, not INT"):
        source.reader(StructType([StructField("offset", IntegerType())]))
    with pytest.raises(OptionError, match="option 'channel': missing"):
        source.streamReader(SCHEMA)


def test_readers_and_writers_can_be_shipped() -> None:
    source = NsqDataSource({**GIVEN, "channel": "c"})
    pickle.loads(pickle.dumps(source.streamReader(SCHEMA)))
    pickle.loads(pickle.dumps(NsqDataSource(dict(GIVEN)).reader(SCHEMA)))
    sink = NsqDataSource({"nsqd.http.addresses": "127.0.0.1:1", "topic": "t"})
    rows = StructType([StructField("value", StringType())])
    pickle.loads(pickle.dumps(sink.writer(rows, False)))
    pickle.loads(pickle.dumps(sink.streamWriter(rows, False)))
    with pytest.raises(OptionError, match="option 'mode': a topic can be appended to"):
        sink.writer(rows, True)
