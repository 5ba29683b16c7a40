"""Reading a stock NSQ nsqd, which keeps no log: messages are consumed into a folder that Spark reads."""

from .stream import SpoolPartition, SpoolStream, is_spool_offset, read_spool

__all__ = ["SpoolPartition", "SpoolStream", "is_spool_offset", "read_spool"]
