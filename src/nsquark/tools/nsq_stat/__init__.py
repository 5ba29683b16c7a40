"""`nsq_stat`: the statistics of one channel, summed over all nsqds, in every interval."""

from .program import main

__all__ = ["main"]
