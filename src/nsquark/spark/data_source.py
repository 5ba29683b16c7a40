"""The data source behind `format("nsq")`: checks options and schemas, and makes readers and writers.

Spark creates the data source in short-lived processes and ships its readers and writers to other processes.
Nothing here holds a connection.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from .columns import check_source_schema, select_columns
from .errors import without_traceback
from .options import BATCH_NAMES, SINK_NAMES, STREAM_NAMES, check_options
from .sink import NsqBatchWriter, NsqStreamWriter
from .sink.options import SinkOptions, parse_sink_options
from .source import NsqBatchReader
from .source.options import parse_batch_options, parse_stream_options
from .stream_reader import NsqStreamReader
from .table_options import (
    complete_options,
    has_addresses,
    note_options,
    options_of_creation,
    options_of_table,
    options_of_written_table,
    topic_of_table,
)
from .worker_process import adapt_process

adapt_process()  # here, since every process of Spark that reads or writes a topic imports this module


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
        created = options_of_creation(options)
        self.options = dict(options) if created is None else created
        self._is_new_table = created is not None
        check_options(self.options, complete=False)

    @classmethod
    def name(cls) -> str:
        return "nsq"

    @without_traceback
    def schema(self) -> StructType:
        check_options(self.options)
        schema = select_columns(self.options)
        return note_options(schema, self.options) if self._is_new_table else schema

    @without_traceback
    def reader(self, schema: StructType) -> NsqBatchReader:
        return NsqBatchReader(parse_batch_options(self._source_options(schema, BATCH_NAMES)), schema)

    @without_traceback
    def streamReader(self, schema: StructType) -> NsqStreamReader:
        return NsqStreamReader(parse_stream_options(self._source_options(schema, STREAM_NAMES)), schema)

    def _source_options(self, schema: StructType, names: tuple[str, ...]) -> dict[str, str]:
        check_source_schema(schema)
        return complete_options(self.options, options_of_table(schema), names)

    @without_traceback
    def writer(self, schema: StructType, overwrite: bool) -> NsqBatchWriter:
        return NsqBatchWriter(self._sink_options(schema), overwrite)

    @without_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> NsqStreamWriter:
        return NsqStreamWriter(self._sink_options(schema))

    def _sink_options(self, schema: StructType) -> SinkOptions:
        noted = {} if has_addresses(self.options) else options_of_written_table(schema)
        # The topic of a table is the topic of the rows that have none. The option would be that of all rows.
        names = tuple(name for name in SINK_NAMES if name != "topic")
        return parse_sink_options(complete_options(self.options, noted, names), schema, topic_of_table(noted))
