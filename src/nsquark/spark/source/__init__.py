"""Reading nsquark's topic logs with Spark: as a table, and as the micro-batches of a stream."""

from .batch_reader import NsqBatchReader
from .log_stream import LogStream

__all__ = ["LogStream", "NsqBatchReader"]
