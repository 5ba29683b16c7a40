"""The segmented topic log, and the journal of what its channels have done."""

from nsquark.kernel import Run

from .cursor import Cursor
from .journal import ChannelState, Journal, JournalState, replace_journal
from .ranges import Ranges
from .reader import LogReader, Stored, TimeSearch, read_messages
from .segment import NotIndexed, Segment
from .syncing import LogSync
from .topic_log import Deferred, Limits, TopicLog

__all__ = [
    "ChannelState",
    "Cursor",
    "Deferred",
    "Journal",
    "JournalState",
    "Limits",
    "LogReader",
    "LogSync",
    "NotIndexed",
    "Ranges",
    "Run",
    "Segment",
    "Stored",
    "TimeSearch",
    "TopicLog",
    "read_messages",
    "replace_journal",
]
