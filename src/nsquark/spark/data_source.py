"""The data source behind `format("nsq")`: checks options and schemas, and makes readers and writers.

Spark creates the data source in short-lived processes and ships its readers and writers to other processes.
Nothing here holds a connection.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from .columns import SCHEMA, check_source_schema
from .errors import without_traceback
from .options import check_options
from .sink import NsqBatchWriter, NsqStreamWriter
from .sink.options import parse_sink_options
from .source import NsqBatchReader
from .source.options import parse_batch_options, parse_stream_options
from .stream_reader import NsqStreamReader


class NsqDataSource(DataSource):
    """Topics of NSQ as tables and streams.

    Name: `nsq`

    Notes
    -----
    A stream reads through a channel: nsqd shows the channel among those of the topic, with its depth, and
    keeps messages until the query has committed them. A batch reads ranges of the topics' logs and leaves
    no trace.

    Examples
    --------
    >>> (spark.readStream.format("nsq")
    ...     .option("lookupd.http.addresses", "127.0.0.1:4161")
    ...     .option("subscribe", "events").option("channel", "archive")
    ...     .option("startingOffsets", "earliest").load())
    >>> (spark.read.format("nsq")
    ...     .option("nsqd.http.addresses", "127.0.0.1:4151").option("subscribe", "events").load())
    """

    @without_traceback
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        check_options(options)
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def schema(self) -> StructType:
        return SCHEMA

    @without_traceback
    def reader(self, schema: StructType) -> NsqBatchReader:
        check_source_schema(schema)
        return NsqBatchReader(parse_batch_options(self.options), schema)

    @without_traceback
    def streamReader(self, schema: StructType) -> NsqStreamReader:
        check_source_schema(schema)
        return NsqStreamReader(parse_stream_options(self.options), schema)

    @without_traceback
    def writer(self, schema: StructType, overwrite: bool) -> NsqBatchWriter:
        return NsqBatchWriter(parse_sink_options(self.options, schema), overwrite)

    @without_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> NsqStreamWriter:
        return NsqStreamWriter(parse_sink_options(self.options, schema))
