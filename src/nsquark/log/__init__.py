"""The segmented topic log, and the journal of what its channels have done."""

from nsquark.kernel import choose_sources

choose_sources(__path__)

from .archived import Archived, Expired, Store, archived_name, few_marks, pack_archived
from .cursor import Cursor, Run
from .damage import Damage, Record, acknowledge, keep, records
from .deferred import Deferred
from .file_names import names_in
from .journal import (
    ChannelState,
    InspectedJournal,
    Journal,
    JournalRecords,
    JournalState,
    inspect_journal,
    replace_journal,
)
from .opening import Inspected, inspect
from .ranges import Ranges
from .reader import LogReader, Stored, TimeSearch, read_messages
from .recent_reads import RECENT_READS
from .retention import UNLIMITED, Limits, Retention
from .segment import OPEN_FILES, NotIndexed, Segment
from .syncing import LogSync
from .tail import TailChunk
from .topic_log import IdLease, TopicLog
from .written_files import WRITTEN_FILES

__all__ = [
    "OPEN_FILES",
    "RECENT_READS",
    "UNLIMITED",
    "WRITTEN_FILES",
    "Archived",
    "ChannelState",
    "Cursor",
    "Damage",
    "Deferred",
    "Expired",
    "IdLease",
    "Inspected",
    "InspectedJournal",
    "Journal",
    "JournalRecords",
    "JournalState",
    "Limits",
    "LogReader",
    "LogSync",
    "NotIndexed",
    "Ranges",
    "Record",
    "Retention",
    "Run",
    "Segment",
    "Store",
    "Stored",
    "TailChunk",
    "TimeSearch",
    "TopicLog",
    "acknowledge",
    "archived_name",
    "few_marks",
    "inspect",
    "inspect_journal",
    "keep",
    "names_in",
    "pack_archived",
    "read_messages",
    "records",
    "replace_journal",
]
