"""The segmented topic log, and the journal of what its channels have done."""

from nsquark.kernel import Run

from .cursor import Cursor
from .damage import Damage, Record, acknowledge, keep, records
from .journal import (
    ChannelState,
    GatheredRecords,
    InspectedJournal,
    Journal,
    JournalState,
    inspect_journal,
    replace_journal,
)
from .ranges import Ranges
from .reader import LogReader, Stored, TimeSearch, read_messages
from .segment import OPEN_FILES, NotIndexed, Segment
from .syncing import LogSync
from .topic_log import Deferred, Inspected, Limits, TopicLog, inspect

__all__ = [
    "OPEN_FILES",
    "ChannelState",
    "Cursor",
    "Damage",
    "Deferred",
    "GatheredRecords",
    "Inspected",
    "InspectedJournal",
    "Journal",
    "JournalState",
    "Limits",
    "LogReader",
    "LogSync",
    "NotIndexed",
    "Ranges",
    "Record",
    "Run",
    "Segment",
    "Stored",
    "TimeSearch",
    "TopicLog",
    "acknowledge",
    "inspect",
    "inspect_journal",
    "keep",
    "read_messages",
    "records",
    "replace_journal",
]
