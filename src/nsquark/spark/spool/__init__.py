"""Reading a stock NSQ nsqd, which keeps no log: messages are consumed into a folder that Spark reads."""

from .stream import StagedPartition, StagedStream

__all__ = ["StagedPartition", "StagedStream"]
