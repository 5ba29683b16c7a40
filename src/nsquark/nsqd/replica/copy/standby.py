"""A standby of a replica group at work: it follows the stream that its automaton chooses, and reports.

    manifest ──▶ fetch, if the automaton says so ──▶ frames up to the end that the primary had ──▶ frames

Files are fetched while the primary goes on writing. So the copy is one that a killed primary could have left
only when it has the frames up to the sequence at which the stream began: until then nothing is acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Protocol

from nsquark.cli.flags import StartError
from nsquark.nsqd.options import Options
from nsquark.nsqd.storage import node as node_file

from ..changes.frames import HANDOVER, BadFrame, Data, Frame, FrameParser, pack_answer
from ..changes.manifest import Manifest
from .catching_up import FAILURES, CatchUp, fetch_manifest, in_thread
from .fetching import FrameConnection, Primary, Refused
from .warm_copy import FsyncFailed, WarmCopy, sync, sync_everything

logger = logging.getLogger(__name__)

SYNC_INTERVAL = 1.0  # seconds between two fsyncs, where acknowledgements do not wait for them
ENDINGS = (*FAILURES, StartError)  # what a stream ends with
NOT_PRIMARY = 503  # the status of a member that does not lead the term that it is asked for


class Reports(Protocol):
    """The inputs of the automaton that a stream has. Each is followed by what the automaton wants done."""

    @property
    def settled(self) -> bool:
        """Whether the directory is a whole one, and no catch-up was left half done."""
        ...

    def stream_refused(self) -> None: ...
    def stream_lost(self) -> None: ...
    def manifest_received(self, term: int, sequence: int, alters: bool) -> None: ...
    def fetched(self, term: int, sequence: int) -> None: ...
    def heard(self, term: int) -> None: ...
    def frames_written(self, term: int, first: int, last: int) -> None: ...
    def frame_synced(self, term: int, sequence: int) -> None: ...
    def fsync_failed(self, paths: frozenset[str]) -> None: ...
    def handover_received(self, term: int) -> None: ...


class Standby:
    def __init__(
        self,
        options: Options,
        incarnation: str,
        reports: Reports,
        doubtful: Iterable[str] = (),
        *,
        torn: bool = False,
    ) -> None:
        """`doubtful` files are fetched as a whole: an fsync of an earlier process has failed for them.

        In a `torn` directory every byte is compared once, since power was lost.
        """
        self.directory = Path(options.data_path or ".")
        self.problem = ""
        self.connected = False
        self.written = self.synced = self.end = 0
        self._options = options
        self._incarnation = incarnation
        self._reports = reports
        self._waits_for_disk = options.replica_ack == "synced"
        self._copy = WarmCopy(self.directory)
        self._doubtful = frozenset(doubtful)
        self._compared: set[str] | None = set() if torn else None  # files that have no holes
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()  # dropped, and perhaps still in a thread
        # The stream that is followed: its connection, its name and term, and what has come of a frame.
        self._connection: FrameConnection | None = None
        self._stream, self._term = "", 0
        self._parser = FrameParser()
        self._settled_at = 0  # the sequence from which on the copy is what the primary was
        self._settled = False
        self._syncing: asyncio.Task[None] | None = None
        self._sync_at = 0.0
        self._may_fetch = asyncio.Event()
        self._known: tuple[str, int, int] | None = (
            None  # the stream, its term, and the sequence that is applied
        )

    # ---- what the automaton wants

    def connect(self, address: str, term: int) -> None:
        """Follow the primary of `term` at this URL."""
        self.drop()
        self._task = asyncio.create_task(self._run(address, term))

    def drop(self) -> None:
        """Leave the stream. Not a byte of it is applied or acknowledged from here on."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        self.connected = False
        self._may_fetch = asyncio.Event()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def fetch(self) -> None:
        """Make the directory what the manifest says, which the task waits to do."""
        self._known = None  # of the old directory
        self._may_fetch.set()

    def acknowledge(self, term: int, written: int, synced: int) -> None:
        if self._connection is not None:
            self._connection.write(pack_answer(term, written, synced))

    async def close(self, *, sync_files: bool = True) -> None:
        """Leave the stream, and bring everything to the disk, or report what failed. Raises OSError.

        Without `sync_files` an fsync that is under way goes on, and is reported if it fails.
        """
        self.drop()
        await self._dropped()
        if sync_files:
            if self._syncing is not None:
                await asyncio.wait([self._syncing])
            try:
                await asyncio.to_thread(sync, self._copy.start_sync())
            except FsyncFailed as error:
                self._reports.fsync_failed(error.paths)
        self._copy.close()

    async def _dropped(self) -> None:
        """Return when nothing is left that changes files for a stream that was dropped."""
        while self._ending:
            await asyncio.wait(self._ending)

    # ---- the stream

    async def _run(self, address: str, term: int) -> None:
        report: Callable[[], None] = self._reports.stream_lost
        try:
            await self._dropped()
            await self._follow(Primary(self._options, address, "the primary's address"), term)
        except ENDINGS as error:
            if isinstance(error, ConnectionRefusedError) or getattr(error, "status", 0) == NOT_PRIMARY:
                report = self._reports.stream_refused
            elif isinstance(error, FsyncFailed):
                report = partial(self._reports.fsync_failed, error.paths)
            self._tell(f"the primary at {address}: {type(error).__name__}: {error}")
        if self._task is asyncio.current_task():
            self._task = None
            self.drop()
            report()

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            logger.warning("REPLICA: %s", problem)
        self.problem = problem

    async def _follow(self, primary: Primary, term: int) -> None:
        whom: dict[str, object] = {"incarnation": self._incarnation, "term": term}
        connection = None
        if self._waits_for_disk and self._syncing is not None:
            await asyncio.wait([self._syncing])
        if self._known is not None and self._known[1] == term:  # the stream broke off: go on where it did
            stream, _, sequence = self._known
            end = sequence
            if self._waits_for_disk:  # what is taken up is acknowledged as synced
                known, self._known = self._known, None
                await in_thread(partial(sync, self._copy.start_sync()), partial(self._reports.heard, term))
                self._known = known
            with contextlib.suppress(Refused):
                connection = await primary.open_stream(stream, sequence, whom)
        if connection is not None:
            self._reports.manifest_received(term, sequence, False)
        else:
            manifest = await fetch_manifest(primary)
            self._check(manifest, term)
            self._reports.manifest_received(term, manifest.sequence, True)
            await self._may_fetch.wait()
            self._copy = WarmCopy(self.directory)
            heard = partial(self._reports.heard, term)
            await CatchUp(primary, self._copy, heard, self._compared).run(manifest.files, self._doubtful)
            if self._waits_for_disk:
                # What fitted the manifest was not fetched, and may be in the memory of the system alone.
                await in_thread(partial(sync_everything, self.directory), heard)
            elif self._doubtful:
                await in_thread(partial(sync, self._copy.start_sync()), heard)
            stream, sequence = manifest.stream, manifest.sequence
            connection = await primary.open_stream(stream, sequence, whom)
            end = connection.end
        self._stream, self._term, self._settled_at, self._settled = stream, term, end, False
        self._parser = FrameParser()
        self.written = self.synced = sequence
        self.end = max(end, sequence)
        self._connection = connection
        self.connected = True
        self.problem = ""
        try:
            self._settle()
            connection.start(self._received)
            await connection.ended
        finally:
            connection.close()
            self._copy.close()

    def _check(self, manifest: Manifest, term: int) -> None:
        if manifest.term != term:
            raise Refused(NOT_PRIMARY, f"the primary has term {manifest.term}, and term {term} is wanted")
        path = self.directory / node_file.FILE_NAME
        if not self._reports.settled:
            return  # an earlier catch-up has looked, and may have broken off while it replaced this file
        try:
            node = node_file.parse(path.read_bytes())[0]
        except FileNotFoundError:
            if any((self.directory / node_file.TOPICS).glob("*")):
                raise BadFrame(
                    f"{self.directory} holds topics and no node: it cannot become a copy"
                ) from None
            return
        except node_file.UNREADABLE as error:
            raise BadFrame(f"{path} does not read - {error!r}") from None
        if node != manifest.node:  # nothing of another node is moved aside
            raise BadFrame(
                f"the primary is node {manifest.node}, and {self.directory} belongs to node {node}"
            )

    def _received(self, data: Data) -> None:
        """Apply the frames that have come. Raises one of FAILURES, which ends the stream."""
        term, before = self._term, self.written
        try:
            for frame in self._parser.feed(data):
                self._apply(frame, term)
                if self._connection is None:  # a handover, say: the automaton has dropped the stream
                    break
        except Exception:
            self._known = None  # a frame may be done in part, and cannot be done once more
            raise
        if self._connection is None:
            return  # a handover: the automaton has dropped the stream
        if not self._settled:
            self._settle()
        elif self.written > before:
            self._known = (self._stream, term, self.written)
            self._reports.frames_written(term, before + 1, self.written)
        if self.written == before:
            self._reports.heard(term)
        if self._syncing is None and self._settled and (self.synced < self.written or self._copy.changed):
            now = time.monotonic()
            if self._waits_for_disk or now >= self._sync_at:
                self._sync_at = now + SYNC_INTERVAL
                self._syncing = asyncio.create_task(self._sync(term))

    def _settle(self) -> None:
        """From `_settled_at` on the copy is what the primary was: report it, if need be once it is synced."""
        if self.written < self._settled_at or self._syncing is not None:
            return
        if self._waits_for_disk:
            self._syncing = asyncio.create_task(self._sync(self._term))
        else:
            self._has_settled(self.written)

    def _has_settled(self, synced: int) -> None:
        self._settled = True
        self.synced = synced
        self._known = (self._stream, self._term, self.written)
        self._doubtful = frozenset()
        self._compared = None
        self._reports.fetched(self._term, self.written)

    def _apply(self, frame: Frame, term: int) -> None:
        sequence, operations = frame.sequence, frame.operations
        if frame.term != term:
            raise BadFrame(f"a frame of term {frame.term}, not {term}")
        if sequence > self.end:
            self.end = sequence
        if not operations:
            return
        if operations[0].letter == HANDOVER:
            self._reports.handover_received(term)
            return
        if sequence != self.written + 1:
            raise BadFrame(f"frame {sequence} follows {self.written}")
        self._copy.apply(frame, lenient=sequence <= self._settled_at)
        self.written = sequence

    async def _sync(self, term: int) -> None:
        """Bring what is applied to the disk, again and again as long as acknowledgements wait for that."""
        connection = self._connection
        try:
            while connection is not None and connection is self._connection:
                sequence = self.written
                await asyncio.to_thread(sync, self._copy.start_sync())
                if connection is not self._connection:
                    return
                if not self._settled:
                    if sequence < self.written:
                        continue  # all that is reported first is on the disk
                    self._has_settled(sequence)
                else:
                    self.synced = sequence
                    self._reports.frame_synced(term, sequence)
                if not self._waits_for_disk or self.synced >= self.written:
                    return
        except OSError as error:
            self._known = None  # nothing says any more which files are not on the disk
            if connection is not None:
                connection.fail(error)
            if isinstance(error, FsyncFailed):
                self._reports.fsync_failed(error.paths)
        finally:
            self._syncing = None
