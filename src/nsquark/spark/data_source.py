"""`format("nsq")`: what Spark asks for, and the readers it gets.

Spark makes it in short-lived processes and ships what it makes to others, so nothing here holds a connection.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from .columns import SCHEMA, check_schema
from .errors import in_one_line
from .options import check_options, parse_batch_options, parse_stream_options
from .sink.options import parse_sink_options
from .sink.writer import NsqBatchWriter, NsqStreamWriter
from .source.batch_reader import NsqBatchReader
from .stream_reader import NsqStreamReader


class NsqDataSource(DataSource):
    """Topics of NSQ as tables and streams.

    Name: `nsq`

    Notes
    -----
    A stream is a channel: it is seen among the channels of its topics, with a depth, and messages are kept
    until the query has committed them. A batch reads ranges of the topics' logs and leaves no trace.

    Examples
    --------
    >>> (spark.readStream.format("nsq")
    ...     .option("lookupd.http.addresses", "127.0.0.1:4161")
    ...     .option("subscribe", "events").option("channel", "archive")
    ...     .option("startingOffsets", "earliest").load())
    >>> (spark.read.format("nsq")
    ...     .option("nsqd.http.addresses", "127.0.0.1:4151").option("subscribe", "events").load())
    """

    @in_one_line
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        check_options(options)
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def schema(self) -> StructType:
        return SCHEMA

    @in_one_line
    def reader(self, schema: StructType) -> NsqBatchReader:
        check_schema(schema)
        return NsqBatchReader(parse_batch_options(self.options), schema)

    @in_one_line
    def streamReader(self, schema: StructType) -> NsqStreamReader:
        check_schema(schema)
        return NsqStreamReader(parse_stream_options(self.options), schema)

    @in_one_line
    def writer(self, schema: StructType, overwrite: bool) -> NsqBatchWriter:
        return NsqBatchWriter(parse_sink_options(self.options, schema), overwrite)

    @in_one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> NsqStreamWriter:
        return NsqStreamWriter(parse_sink_options(self.options, schema))
