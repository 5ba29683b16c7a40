"""The primary's side: the ordered stream of changes, its bounded backlog, and the followers that get it.

Changes are gathered as they are made, in any thread, and become one frame a turn. While no follower is
connected or catching up, nothing is gathered. The primary of a replica group counts its changes also then,
since what it commits has a sequence.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from nsquark import changes

from .frames import (
    APPEND,
    BATCHES,
    CREATE,
    CUT,
    DELETE,
    HANDOVER,
    MAX_PIECE,
    PUT,
    RENAME,
    PackedFrame,
    PackedOperation,
    is_copied,
    pack_operation,
    pack_path,
)

logger = logging.getLogger(__name__)

BACKLOG = 64 << 20  # bytes of frames that are kept for followers that come back
FRAME = 8 << 20  # bytes of operations after which a turn's frame is closed and another begun
HEARTBEAT = 0.2
MOST_NAMES = 4096
PATIENCE = 60.0  # seconds for which changes are gathered for a follower that is catching up
LATER = 0.002  # seconds for which a group's changes that nobody waits for may wait for others


class Receiver(Protocol):
    """A connected follower. It has acknowledged everything up to `written`."""

    written: int

    @property
    def unsent(self) -> int: ...
    def send(self, frame: PackedFrame) -> None: ...
    def close(self) -> None: ...
    def look(self) -> None: ...


class AppendedFile:
    """A file that grows, and how its operations begin. Its path is kept, and with it the path's identity."""

    __slots__ = ("head", "name", "path")

    def __init__(self, path: Path, name: str | None) -> None:
        self.path = path
        self.name = name
        letter = BATCHES if path.name.endswith(".log") else APPEND
        self.head = b"" if name is None else pack_path(letter, name)


class Recorder:
    """Listens to the changes of one data directory while a follower wants them."""

    def __init__(self, directory: Path, term: int, loop: asyncio.AbstractEventLoop) -> None:
        self.term = term
        self.sequence = 0  # of the last frame
        self.stream = os.urandom(8).hex()  # sequences mean something only together with this
        self.backlog_bytes = 0
        self.followers: set[Receiver] = set()
        self._root = os.path.abspath(directory) + os.sep
        self._relative = str(directory) + os.sep if str(directory) != "." else ""
        self._loop = loop
        self._thread = threading.get_ident()
        self._operations: deque[PackedOperation] = deque()
        self._scheduled = False  # there is something to flush
        self._awaited = False  # and somebody waits for it
        self._later: asyncio.TimerHandle | None = None
        self._backlog: deque[PackedFrame] = deque()
        self._names: dict[str, str | None] = {}  # of files by their paths
        self._appended: dict[int, AppendedFile] = {}  # by the identity of their paths
        self._wanted_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._flushed: Callable[[int], None] | None = None
        self._wake: Callable[[], None] | None = None
        self._gathers = False  # whether a follower gets the changes, or is about to
        self._changed = False  # since the last frame, while nothing is gathered
        self.touched: deque[str] | None = None  # files that have changed, where their fsync is to follow

    def record_always(
        self, flushed: Callable[[int], None], *, touched: bool, wake: Callable[[], None] | None = None
    ) -> None:
        """Count every change from now on: this is the primary of a replica group.

        `flushed` is called with the last sequence whenever frames have been sent. With `touched`, the files
        that change are noted there. `wake` has `flush_if_changed` called in this turn of the event loop.

        What nobody waits for, such as the FINs of consumers, goes with the next change that somebody waits
        for, or after `LATER`: a frame of its own would cost both members as much as one with messages.
        """
        self._flushed = flushed
        self._wake = wake
        if touched:
            self.touched = deque()
        if not self.active:
            changes.listeners.append(self)
            self._beat()

    # ---- being wanted

    @property
    def active(self) -> bool:
        return self in changes.listeners

    @property
    def lag(self) -> int:
        """How many frames the slowest follower has not written."""
        return max((self.sequence - each.written for each in self.followers), default=0)

    def want(self) -> None:
        """Gather changes, at least for some time: a follower is about to connect."""
        self._wanted_until = time.monotonic() + PATIENCE
        self._gathers = True
        if not self.active:
            changes.listeners.append(self)
            self._beat()

    def close(self) -> None:
        for timer in (self._timer, self._later):
            if timer is not None:
                timer.cancel()
        self._timer = self._later = None
        if self.active:
            changes.listeners.remove(self)
        self._operations.clear()
        self._forget_backlog()
        self._gathers = False

    def _forget_backlog(self) -> None:
        self._backlog.clear()
        self.backlog_bytes = 0

    async def finish(self) -> None:
        """Send the last changes, if the followers read, and end their streams."""
        self.flush()
        until = time.monotonic() + 1.0
        while any(each.unsent for each in self.followers) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for each in list(self.followers):
            each.close()
        self.close()
        await asyncio.sleep(0)

    def _beat(self) -> None:
        self._timer = self._loop.call_later(HEARTBEAT, self._beat)
        if not self.followers and self._gathers and time.monotonic() > self._wanted_until:
            # What changes from here on is in no frame: no follower may go on behind this sequence.
            self.flush()
            self._gathers = False
            self._forget_backlog()
            self.sequence += 1
            if self._flushed is None:
                self.close()
                return
            self._flushed(self.sequence)
        frame = PackedFrame(self.term, self.sequence, [])
        for each in list(self.followers):
            each.look()
            each.send(frame)

    # ---- changes, in any thread

    def appended(self, path: Path, offset: int, data: bytes | bytearray | memoryview) -> None:
        file = self._appended.get(id(path))
        if file is None:
            file = self._find_appended(path)
        if not self._gathers or file.name is None:
            self._changed_file(file.name)
            return
        if len(data) <= MAX_PIECE:
            self._add_operation(file.name, pack_operation(file.head, offset, bytes(data)))
            return
        view = memoryview(data)
        head = pack_path(APPEND, file.name)
        for at in range(0, len(data), MAX_PIECE):
            piece = bytes(view[at : at + MAX_PIECE])
            self._add_operation(file.name, pack_operation(head, offset + at, piece))

    def _find_appended(self, path: Path) -> AppendedFile:
        if len(self._appended) >= MOST_NAMES:
            self._appended.clear()
        file = self._appended[id(path)] = AppendedFile(path, self._name(path))
        return file

    def put(self, path: Path, data: bytes) -> None:
        self._add(PUT, path, 0, data)

    def created(self, path: Path) -> None:
        self._add(CREATE, path)

    def cut(self, path: Path, size: int) -> None:
        self._add(CUT, path, size)

    def renamed(self, old: Path, new: Path) -> None:
        target = self._name(new)
        if target is not None:
            self._add(RENAME, old, 0, target.encode())

    def deleted(self, path: Path) -> None:
        self._add(DELETE, path)

    def _name(self, path: Path) -> str | None:
        """The path in the data directory; None for a file that is not copied, or of another directory."""
        text = str(path)
        try:
            return self._names[text]
        except KeyError:
            if len(self._names) >= MOST_NAMES:
                self._names.clear()
            return self._names.setdefault(text, self._find_name(text))

    def _find_name(self, text: str) -> str | None:
        if self._relative and text.startswith(self._relative):
            text = text[len(self._relative) :]
        elif text.startswith(self._root):
            text = text[len(self._root) :]
        elif self._relative or os.path.isabs(text):
            return None
        return text if is_copied(text) else None

    def _add(self, letter: bytes, path: Path, offset: int = 0, data: bytes = b"") -> None:
        name = self._name(path)
        if self._gathers and name is not None:
            self._add_operation(name, pack_operation(pack_path(letter, name), offset, data))
        else:
            self._changed_file(name)

    def _add_operation(self, name: str, operation: PackedOperation) -> None:
        """A file has changed. What a follower gets of it is in the queue before `flush` can know of it."""
        if self.touched is not None:
            self.touched.append(name)
        self._operations.append(operation)
        self._schedule()

    def _changed_file(self, name: str | None) -> None:
        """A file has changed, and nobody wants to know how."""
        if name is None:
            return
        if self.touched is not None:
            self.touched.append(name)
        self._changed = True
        self._schedule()

    def _schedule(self) -> None:
        """Have `flush_if_changed` called before the event loop waits again. For any thread."""
        if not self._scheduled:
            self._scheduled = True
            if threading.get_ident() != self._thread:
                if not self._loop.is_closed():
                    self._loop.call_soon_threadsafe(self.flush_if_changed)
            elif self._wake is not None:
                self._wake()
            else:
                self._loop.call_soon(self.flush_if_changed)

    def schedule(self) -> None:
        """Somebody waits for all changes until now: have them flushed before the event loop waits again."""
        if not self._awaited:
            self._awaited = self._scheduled = True
            if self._wake is not None:
                self._wake()
            else:
                self._loop.call_soon(self.flush_if_changed)

    # ---- frames

    def flush(self) -> None:
        """Send what was gathered, and keep it for followers that come back."""
        self._scheduled = self._awaited = False
        if self._changed:  # while there was no recorder to say what
            self._changed = False
            self.sequence += 1
            self._forget_backlog()
        while self._operations:
            operations: list[PackedOperation] = []
            size = 0
            while self._operations and size < FRAME:
                operation = self._operations.popleft()
                operations.append(operation)
                size += len(operation[1])
            self.sequence += 1
            self._send(PackedFrame(self.term, self.sequence, operations))
        if self._flushed is not None:
            self._flushed(self.sequence)

    def _send(self, frame: PackedFrame) -> None:
        self._backlog.append(frame)
        self.backlog_bytes += frame.size
        while self.backlog_bytes > BACKLOG:
            self.backlog_bytes -= self._backlog.popleft().size
        if len(self.followers) == 1:
            (follower,) = self.followers
            follower.send(frame)
        else:
            for each in list(self.followers):
                each.send(frame)

    def flush_if_changed(self) -> None:
        """Send what was gathered if somebody waits for it, and else soon."""
        if not self._scheduled:
            return
        if self._awaited or self._wake is None:
            self.flush()
        elif self._later is None:
            self._later = self._loop.call_later(LATER, self._flush_later)

    def _flush_later(self) -> None:
        self._later = None
        if self._scheduled:
            self.flush()

    def send_handover(self) -> None:
        """Tell the followers that this primary has resigned."""
        frame = PackedFrame(self.term, self.sequence, [pack_operation(pack_path(HANDOVER, ""), 0, b"")])
        for each in list(self.followers):
            each.send(frame)

    def frames_after(self, sequence: int) -> list[PackedFrame] | None:
        """The frames behind this one; None if the backlog does not reach back to it."""
        self.flush()
        if not self.active or not 0 <= sequence <= self.sequence:
            return None
        if sequence + 1 < (self._backlog[0].sequence if self._backlog else self.sequence + 1):
            return None
        return [frame for frame in self._backlog if frame.sequence > sequence]
