"""The segmented topic log, and the journal of what its channels have done."""

from .cursor import Cursor, Run
from .journal import ChannelState, Journal, JournalState
from .ranges import Ranges
from .segment import Segment
from .topic_log import Deferred, Limits, TopicLog

__all__ = [
    "ChannelState",
    "Cursor",
    "Deferred",
    "Journal",
    "JournalState",
    "Limits",
    "Ranges",
    "Run",
    "Segment",
    "TopicLog",
]
