"""The segmented topic log, and the journal of what its channels have done."""

from nsquark.kernel import Run

from .cursor import Cursor
from .journal import ChannelState, Journal, JournalState
from .ranges import Ranges
from .reader import LogReader, Stored, TimeSearch, read_messages
from .segment import OPEN_FILES, NotIndexed, Segment
from .topic_log import Deferred, Limits, TopicLog

__all__ = [
    "OPEN_FILES",
    "ChannelState",
    "Cursor",
    "Deferred",
    "Journal",
    "JournalState",
    "Limits",
    "LogReader",
    "NotIndexed",
    "Ranges",
    "Run",
    "Segment",
    "Stored",
    "TimeSearch",
    "TopicLog",
    "read_messages",
]
