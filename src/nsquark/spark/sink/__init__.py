"""Writing rows to topics: at least once by publishing them, exactly once by staging them at nsqd first."""

from .writer import NsqBatchWriter, NsqStreamWriter

__all__ = ["NsqBatchWriter", "NsqStreamWriter"]
