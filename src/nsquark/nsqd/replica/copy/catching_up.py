"""Making a directory what the primary's manifest says.

What is short is fetched, and what does not fit is moved aside.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from ..changes.follower_routes import PIECE
from ..changes.frames import BadFrame
from ..changes.manifest import WINDOW, Manifest, crc_before, list_files, parse_manifest
from .fetching import Primary, Refused
from .warm_copy import ANEW, CopyDiffers, WarmCopy

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
PROGRESS = 0.5  # seconds between two reports that a thread still works

# What may go wrong with a primary, whatever it sends: then everything is compared again.
FAILURES = (
    Refused, CopyDiffers, BadFrame, OSError, TimeoutError, ValueError, KeyError, TypeError, RecursionError,
)  # fmt: skip


async def fetch_manifest(primary: Primary) -> Manifest:
    """Raises one of FAILURES."""
    return parse_manifest(await primary.get("/replica/manifest", {}))


async def in_thread(work: Callable[[], _T], moved: Callable[[], None] = lambda: None) -> _T:
    """Work in a thread, and call `moved` again and again meanwhile.

    A caller that is cancelled waits for the end of the work: a thread cannot be stopped, and no file may
    change after the caller has ended.
    """
    task = asyncio.create_task(asyncio.to_thread(work))
    try:
        while not (await asyncio.wait([task], timeout=PROGRESS))[0]:
            moved()
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        task.exception()  # no caller waits for it
        raise
    return task.result()


class CatchUp:
    """One catch-up of a copy with its primary. `moved` is called as long as it goes on.

    After a power loss a file may have its end, and a hole before it. `compared` are then the files that were
    compared byte by byte, in this catch-up or an earlier one; it is added to.
    """

    def __init__(
        self,
        primary: Primary,
        copy: WarmCopy,
        moved: Callable[[], None] = lambda: None,
        compared: set[str] | None = None,
    ) -> None:
        self._primary = primary
        self._copy = copy
        self._moved = moved
        self._compared = compared

    async def run(self, files: dict[str, int], doubtful: Iterable[str] = ()) -> None:
        """Have at least the bytes that the manifest names. Raises one of FAILURES.

        Of files and folders that are `doubtful`, nothing is kept: they are fetched as a whole.
        """
        anew, below = set(doubtful), tuple(path + "/" for path in doubtful)
        aside = await self._in_thread(lambda: self._copy.put_unknown_aside(files))
        here = await self._in_thread(lambda: list_files(self._copy.directory))
        fetched = 0
        for path, size in files.items():
            if path in here and (path in anew or path.startswith(below)):
                fetched += await self._fetch_anew(path, size)
            else:
                fetched += await self._fetch(path, size, here.get(path))
        logger.info("REPLICA: fetched %d bytes, moved %d files aside", fetched, aside)

    async def _has_hole(self, path: str, size: int) -> bool:
        """Whether the first `size` bytes differ from the primary's, wherever that is."""
        for at in range(WINDOW, size, WINDOW):
            crc = await self._in_thread(partial(crc_before, self._copy.directory / path, at))
            try:
                await self._primary.get("/replica/file", {"path": path, "from": at, "size": 0, "crc": crc})
            except Refused as error:
                if error.status == 409:
                    return True
                if error.status == 404:  # deleted since: the stream tells
                    return False
                raise
            self._moved()
        return False

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await in_thread(work, self._moved)

    async def _fetch_anew(self, path: str, size: int) -> int:
        """Have another file in the place of this one; returns bytes fetched."""
        at = 0
        while True:
            request: dict[str, object] = {"path": path, "from": at, "size": min(PIECE, size - at)}
            try:
                piece = await self._primary.get("/replica/file", request)
            except Refused as error:
                if error.status == 404:  # deleted since: the stream tells
                    return at
                raise
            self._moved()
            await self._in_thread(partial(self._copy.write, path + ANEW, at, piece))
            at += len(piece)
            if at >= size or not piece:
                await self._in_thread(partial(self._copy.take_anew, path))
                return at

    async def _fetch(self, path: str, size: int, known: int | None) -> int:
        """Have at least the first `size` bytes of a file as the primary has them; returns bytes fetched."""
        if known is not None and self._compared is not None and path not in self._compared:
            if await self._has_hole(path, min(known, size)):
                await self._in_thread(lambda: self._copy.put_aside(path))
                known = None
            self._compared.add(path)
        at = min(known or 0, size)
        query: dict[str, object] = {}
        if known is not None:
            query["crc"] = await self._in_thread(
                lambda: crc_before(self._copy.directory / path, min(known, size))
            )
        begin = at
        while True:
            request: dict[str, object] = {"path": path, "from": at, "size": min(PIECE, size - at)} | query
            try:
                piece = await self._primary.get("/replica/file", request)
            except Refused as error:
                if error.status == 404:  # deleted since: the stream tells
                    return at - begin
                if error.status != 409 or not query:
                    raise
                await self._in_thread(lambda: self._copy.put_aside(path))
                at = begin = 0
                query = {}
                continue
            self._moved()
            if query and known is not None and known > at:
                await self._in_thread(partial(self._copy.cut_aside, path, at))
            query = {}
            if piece or not at:
                await self._in_thread(partial(self._copy.write, path, at, piece))
            at += len(piece)
            if at >= size or not piece:
                return at - begin
