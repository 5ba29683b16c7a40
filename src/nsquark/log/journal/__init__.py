"""The journal of a topic: what its channels have done with the log."""

from nsquark.kernel import choose_sources

choose_sources(__path__)

from .copy import JournalCopy
from .inspection import InspectedJournal, inspect_journal
from .journal import Journal, replace_journal
from .records import JournalRecords
from .state import ChannelState, JournalState

__all__ = [
    "ChannelState",
    "InspectedJournal",
    "Journal",
    "JournalCopy",
    "JournalRecords",
    "JournalState",
    "inspect_journal",
    "replace_journal",
]
