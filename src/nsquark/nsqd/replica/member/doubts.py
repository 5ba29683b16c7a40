"""Files whose fsync has failed: another one may succeed although bytes are lost, so it would prove nothing.

A standby begins a new incarnation and fetches them. A member that has won its campaign stores them anew
before it leads. A primary lets another member lead, if one can, also where the fsync began while it was a
standby.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from ..automaton import actions
from ..automaton.states import State
from ..copy.warm_copy import rewrite

if TYPE_CHECKING:
    from .member import Member

logger = logging.getLogger(__name__)

SYNC_AGAIN = 1.0  # seconds until what failed at the disk is tried again


class Doubts:
    """The files of a member that are in doubt since an fsync of this process has failed."""

    def __init__(self, member: Member) -> None:
        self.paths: set[str] = set()
        self.giving_up: asyncio.Task[None] | None = None
        self._member = member
        self._leads_from_files = False  # the directory is open

    def fsync_failed(self, paths: frozenset[str]) -> None:
        """These files may not be on the disk, whatever the next fsync says: nothing of them counts now."""
        logger.error("REPLICA: an fsync has failed, for %s", ", ".join(sorted(paths)[:10]))
        self.paths |= paths
        self.begin_anew()
        self._give_up_if_leading()

    def directory_opened(self) -> None:
        """The member leads from its files, and what is in doubt from here on is so while it leads."""
        self._leads_from_files = True
        self._give_up_if_leading()

    def _give_up_if_leading(self) -> None:
        if self.paths and self._leads_from_files and self.giving_up is None:
            self.giving_up = asyncio.create_task(self.give_up(frozenset(self.paths)))

    def begin_anew(self) -> None:
        """Be another process and incarnation, if an fsync has failed. Until that is noted, do nothing."""
        member = self._member
        if not self.paths or member.leading is not None or member.automaton.state is State.CAMPAIGN:
            return
        member.automaton.leave()
        member.perform()
        try:
            member.file.distrust(self.paths)
        except OSError as error:  # the next tick tries again
            logger.error("REPLICA: %s cannot be written: %s", member.file.path, error)
        else:
            member.fence(actions.Fence("its files are in doubt, since an fsync has failed"))

    async def store(self) -> None:
        """Store the files whose fsync has failed anew, with what they read now. Raises OSError."""
        member = self._member
        if self.paths:
            member.file.doubt(self.paths)
        if member.file.stored.doubtful:
            known = set(self.paths)
            await asyncio.to_thread(rewrite, member.directory, member.file.stored.doubtful)
            self.paths -= known

    def note_at_stop(self, *, leads: bool) -> None:
        """The process stops, and not everything is on the disk."""
        file = self._member.file
        with contextlib.suppress(OSError):
            (file.doubt if leads else file.distrust)(self.paths)

    async def give_up(self, doubtful: frozenset[str]) -> None:
        """An fsync of the primary has failed: another member leads, if one can.

        If not, a new process stores the files anew, and leads again.
        """
        member, loop = self._member, asyncio.get_running_loop()
        while True:
            try:
                member.file.doubt(doubtful)
                break
            except OSError as error:
                logger.error("REPLICA: %s cannot be written: %s", member.file.path, error)
                await asyncio.sleep(SYNC_AGAIN)
        while member.automaton.hand_over(loop.time(), drain=False):
            member.perform()
            await asyncio.sleep(SYNC_AGAIN)
        member.fence(actions.Fence("an fsync has failed"))
