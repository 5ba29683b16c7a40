from collections.abc import Callable, Sized
from typing import Any

from .fast import BatchWriter, Buffer
from .fast_intake import Intake
from .pure_intake import Receipt

class Tally:
    count: int
    @property
    def counts(self) -> list[int]: ...
    @property
    def total_ns(self) -> int: ...
    def observe(self, ns: int, count: int = 1) -> None: ...

class Extent:
    end: int
    size: int
    stride: int
    marks: list[tuple[int, int]]
    marked_to: int
    def __init__(self, end: int, stride: int) -> None: ...
    def written(self, position: int, count: int, size: int) -> None: ...

class Chunk:
    def __init__(self, position: int, end: int, data: bytes, segment: Any, offset: int) -> None: ...
    @property
    def position(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    @property
    def segment(self) -> Any: ...
    @property
    def offset(self) -> int: ...

class LogEnd:
    writer: BatchWriter
    max_bytes_per_file: int
    max_messages: int
    max_bytes: int
    segments: list[Any]
    chunks: list[Chunk]
    chunk_bytes: int
    first: int
    end: int
    unsynced: int
    fd: int
    torn: bool
    def __init__(self, max_bytes_per_file: int, max_messages: int, max_bytes: int) -> None: ...
    def make_room(self, size: int) -> None: ...
    def undo(self) -> None: ...
    def shorten(self) -> None: ...
    def commit(self) -> int: ...
    def chunk_at(self, position: int) -> Chunk | None: ...

class Run:
    position: int
    count: int
    first_id: int
    frames: Buffer
    due: int
    published: int
    def __init__(
        self, position: int, count: int, first_id: int, frames: Buffer, due: int = 0, published: int = 0
    ) -> None: ...

class LogCursor:
    log: LogEnd
    position: int
    data: bytes
    at: int
    base: int
    remaining: int
    segment: Any
    def __init__(self, log: LogEnd, position: int) -> None: ...
    def take(self, want: int, max_bytes: int) -> Run | None: ...

class Records:
    fd: int
    size: int
    unsynced: bool
    copy: Callable[[bytes], None] | None
    def undo(self) -> None: ...
    @property
    def dirty(self) -> bool: ...
    def add(self, record: bytes) -> None: ...
    def finish(self, number: int, start: int, end: int) -> None: ...
    def drop(self) -> None: ...
    def block(self) -> bytes: ...
    def flush(self) -> None: ...

class Committer:
    log: LogEnd
    intake: Intake
    clock: Callable[[], int]
    publish_times: Tally
    heeded: tuple[Sized, ...]
    sync_every: int
    syncs_soon: bool
    exiting: bool
    message_count: int
    message_bytes: int
    active: bool
    pumped: int
    def __init__(
        self, clock: Callable[[], int], times: Tally, heeded: tuple[Sized, ...], sync_every: int
    ) -> None: ...
    def stored(self, first: int, receipts: list[Receipt]) -> None: ...
    def failed(self, error: OSError, first: int, receipts: list[Receipt]) -> None: ...
    def commit(self) -> None: ...
