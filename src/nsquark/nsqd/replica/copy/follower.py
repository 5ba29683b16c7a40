"""The follower: copies what the primary has, and then applies its stream, until it is stopped or promoted."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path

from nsquark.cli.flags import StartError
from nsquark.net.machine import boot_id
from nsquark.nsqd.options import Options
from nsquark.nsqd.storage import node as node_file

from ..changes.frames import BadFrame, FrameParser, pack_answer
from .catching_up import FAILURES, CatchUp, fetch_manifest
from .fetching import Primary
from .promotion import CATCHING_UP, IN_SYNC
from .warm_copy import STATE, FsyncFailed, Unsynced, WarmCopy, sync, write_state

logger = logging.getLogger(__name__)

AGAIN = 0.5  # seconds until the next attempt
SILENCE = 5.0  # seconds without a frame or heartbeat after which the stream is given up
SYNC_INTERVAL = 1.0
READ = 1 << 20


def _whose(directory: Path) -> tuple[str, int, str]:
    """The node of a directory, its term and the boot it is whole since: ("", 0, "") if there is nothing yet.

    Raises StartError.
    """
    try:
        known = json.loads((directory / STATE).read_bytes())
        return str(known["node"]), int(known["term"]), str(known.get("boot", ""))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StartError(f"{directory / STATE} does not read - {error!r}") from None
    try:
        name, _, _, term = node_file.parse((directory / node_file.FILE_NAME).read_bytes())
    except FileNotFoundError:
        if (directory / node_file.TOPICS).is_dir():
            raise StartError(f"{directory} holds topics and no node: it cannot become a copy") from None
        return "", 0, ""
    except (OSError, *node_file.UNREADABLE) as error:
        raise StartError(f"{directory / node_file.FILE_NAME} does not read - {error!r}") from None
    return name, term, ""


class Follower:
    """`state`, `term`, `written`, `synced` and `end` (the primary's sequence) tell how far the copy is."""

    def __init__(self, options: Options) -> None:
        """Raises StartError."""
        self.directory = Path(options.data_path or ".")
        self.primary = Primary(options, options.replica_of, "--replica-of")
        self.state = CATCHING_UP
        # Whose files the directory has, "" if it has none, and the highest term that it has seen.
        self.node, self.term, boot = _whose(self.directory)
        self._boot = boot_id()
        # Files that have no holes; None if power was not lost since all were known to have none.
        self._compared: set[str] | None = None if boot and boot == self._boot else set()
        self.written = self.synced = self.end = 0
        self.connected = False
        self.heard = 0.0  # when the primary was last heard of, by the monotonic clock
        self.problem = ""
        self._copy = WarmCopy(self.directory)
        self._doubtful: frozenset[str] = frozenset()  # files whose fsync has failed

    @property
    def lag(self) -> int:
        return max(0, self.end - self.written)

    async def run(self) -> None:
        """Follow for ever. Never raises, but when it is cancelled."""
        while True:
            try:
                await self._follow()
            except FAILURES as error:
                text = f"{type(error).__name__}: {error}"
                if text != self.problem:
                    logger.warning("REPLICA: %s", text)
                self.problem = text
                if isinstance(error, FsyncFailed):  # the next fsync may succeed although bytes are lost
                    self._doubtful |= error.paths
            finally:
                self.connected = False
                self._copy.close()
            await asyncio.sleep(AGAIN)

    async def _follow(self) -> None:
        node, term, stream, sequence, files = await fetch_manifest(self.primary)
        if self.node and node != self.node:  # nothing of another node is moved aside
            raise BadFrame(f"the primary is node {node}, and {self.directory} belongs to node {self.node}")
        if term < self.term:
            raise BadFrame(f"the primary has term {term}, and this copy has term {self.term}")
        self._copy = WarmCopy(self.directory)
        self._note(CATCHING_UP, node, term)
        await CatchUp(self.primary, self._copy, compared=self._compared).run(files, self._doubtful)
        self._compared = None
        if self._doubtful:
            await asyncio.to_thread(sync, self._copy.start_sync())
            self._doubtful = frozenset()
        reader, writer, end = await self.primary.follow(stream, sequence)
        try:
            await self._apply(reader, writer, sequence, end)
        finally:
            writer.close()

    def _note(self, state: str, node: str, term: int) -> None:
        write_state(self.directory, state, node, term, self._boot if self._compared is None else "")
        self.state, self.node, self.term = state, node, term

    # ---- the stream

    async def _apply(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sequence: int, end: int
    ) -> None:
        """Apply frames until the stream ends. From `end` on the copy is what the primary was."""
        parser = FrameParser()
        self.written, self.synced, self.end = sequence, sequence, max(end, sequence)
        self.connected = True
        syncing: asyncio.Task[int] | None = None
        last_sync = time.monotonic()
        try:
            self._became(end)
            while True:
                async with asyncio.timeout(SILENCE):
                    data = await reader.read(READ)
                if not data:
                    raise ConnectionError("the primary has ended the stream")
                self.heard = time.monotonic()
                for frame in parser.feed(data):
                    if frame.term != self.term:
                        raise BadFrame(f"a frame of term {frame.term}, not {self.term}")
                    if frame.operations:
                        if frame.sequence != self.written + 1:
                            raise BadFrame(f"frame {frame.sequence} follows {self.written}")
                        self._copy.apply(frame, lenient=frame.sequence <= end)
                        self.written = frame.sequence
                        self._became(end)
                    self.end = max(self.end, frame.sequence)
                if syncing is not None and syncing.done():
                    self.synced = syncing.result()
                    syncing = None
                if syncing is None and self.heard - last_sync >= SYNC_INTERVAL and self.synced < self.written:
                    last_sync = self.heard
                    syncing = asyncio.create_task(self._sync(self.written, self._copy.start_sync()))
                writer.write(pack_answer(self.term, self.written, self.synced))
                await writer.drain()
        finally:
            if syncing is not None:
                try:
                    await asyncio.shield(syncing)
                except FsyncFailed as error:
                    self._doubtful |= error.paths

    def _became(self, end: int) -> None:
        if self.state != IN_SYNC and self.written >= end:
            self._note(IN_SYNC, self.node, self.term)
            self.problem = ""
            logger.info("REPLICA: in sync with %s:%d", self.primary.host, self.primary.port)

    @staticmethod
    async def _sync(sequence: int, unsynced: Unsynced) -> int:
        await asyncio.to_thread(sync, unsynced)
        return sequence
