"""The disk queues of Go's nsqd: their files, read as far as they can be read, and written."""

from .files import QUEUE_FILE, QueueFiles, QueueMeta, find_queues, pack_meta, parse_meta
from .queue_reader import Place, QueueReader
from .queue_writer import QueueWriter
from .records import MessageFinder, QueuedMessage, Unreadable, pack_record

__all__ = [
    "QUEUE_FILE",
    "MessageFinder",
    "Place",
    "QueueFiles",
    "QueueMeta",
    "QueueReader",
    "QueueWriter",
    "QueuedMessage",
    "Unreadable",
    "find_queues",
    "pack_meta",
    "pack_record",
    "parse_meta",
]
