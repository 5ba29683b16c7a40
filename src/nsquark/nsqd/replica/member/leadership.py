"""A primary at work: what it writes goes to its followers, and what they acknowledge is answered and shown.

What a turn costs in addition to that of a single nsqd is here and in `changes/`, once for each frame.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from nsquark.errors import GROUP_REFUSES
from nsquark.nsqd.stats.histogram import Histogram

from ..automaton import actions
from ..automaton.group import BadGroup, check_incarnation, member_of
from ..changes.stream import FollowerStream
from ..copy.warm_copy import FsyncFailed, open_to_sync, sync
from .doubts import SYNC_AGAIN

if TYPE_CHECKING:
    from .member import Member

logger = logging.getLogger(__name__)


class Leadership:
    """What a member does between its acquisition of a term and its fence."""

    def __init__(self, member: Member) -> None:
        self.acknowledgement_times = Histogram()
        self._member = member
        self._automaton = member.automaton
        self._server = member.server
        self._synced = member.options.replica_ack == "synced"
        self._time = asyncio.get_running_loop().time
        self._syncing: asyncio.Task[None] | None = None
        self._flushed_at: deque[tuple[int, float]] = deque(maxlen=1000)  # what waits to be acknowledged

    # ---- what is written, and what is committed

    def flushed(self, sequence: int) -> None:
        """The recorder has sent everything up to `sequence`."""
        automaton, gate = self._automaton, self._server.broker.gate
        leading = automaton.leading
        if leading is None or gate is None:
            return
        gate.sent(sequence)
        if sequence > leading.written:
            now = self._time()
            self._flushed_at.append((sequence, now))
            automaton.written(now, sequence)
            if self._synced and self._syncing is None:
                self._syncing = asyncio.create_task(self._sync())
            if automaton.wanted:
                self._member.perform()

    async def _sync(self) -> None:
        """Bring what was written to the disk, as long as there is something."""
        recorder = self._server.broker.recorder
        touched = recorder.touched
        assert touched is not None
        try:
            while touched:
                sequence = recorder.sequence
                paths = {touched.popleft() for _ in range(len(touched))}
                try:
                    await asyncio.to_thread(sync, open_to_sync(self._member.directory, paths))
                except FsyncFailed as error:
                    logger.error("REPLICA: what was written is not on the disk: %s", error)
                    await self._member.doubts.give_up(error.paths)
                    return
                except OSError as error:
                    logger.error("REPLICA: what was written cannot be synced: %s", error)
                    touched.extend(paths)
                    await asyncio.sleep(SYNC_AGAIN)
                    continue
                self._automaton.synced(self._time(), sequence)
                self._member.perform()
        finally:
            self._syncing = None

    def release(self, action: actions.Release) -> None:
        sequence, waiting = action.sequence, self._flushed_at
        if waiting and waiting[0][0] <= sequence:
            now = self._time()
            while waiting and waiting[0][0] <= sequence:
                self.acknowledgement_times.observe(round((now - waiting.popleft()[1]) * 1e9))
        gate = self._server.broker.gate
        if gate is not None:
            gate.commit(sequence)

    # ---- publishes

    def refuse_publishes(self, action: actions.RefusePublishes) -> None:
        logger.warning("REPLICA: publishes are refused: %s", action.reason)
        self._set_refusing(action.reason)

    def accept_publishes(self, _action: actions.AcceptPublishes) -> None:
        logger.info("REPLICA: publishes are taken")
        self._set_refusing("")

    def _set_refusing(self, reason: str) -> None:
        broker = getattr(self._server, "broker", None)
        if broker is None or broker.gate is None:
            return  # the directory is being opened; the gate of a new broker refuses publishes by itself
        broker.gate.refusing = reason and GROUP_REFUSES + reason
        for topic in broker.topics.values():
            topic.publishing_changed()

    def write_everything(self) -> None:
        """Have everything that was published until now in a frame, so that the next primary gets it."""
        broker = self._server.broker
        broker.turn.run()
        broker.recorder.flush()

    # ---- followers

    def streams(self) -> list[FollowerStream]:
        if not hasattr(self._server, "broker"):
            return []
        return [each for each in self._server.broker.recorder.followers if isinstance(each, FollowerStream)]

    def send_handover(self, _action: actions.SendHandover) -> None:
        self._server.broker.recorder.send_handover()

    def disconnect(self, action: actions.Disconnect) -> None:
        for stream in self.streams():
            if stream.incarnation == action.incarnation:
                stream.drop(action.reason)

    def admit(self, incarnation: str, term: int) -> bool:
        """Whether a follower that asks for the stream of `term` gets it. Raises BadGroup for no member."""
        check_incarnation(incarnation)
        if member_of(incarnation) == self._member.options.replica_member:
            raise BadGroup(f"{incarnation} is the primary itself")
        if not self._automaton.follower_joined(self._time(), incarnation, term):
            return False
        for stream in self.streams():
            if member_of(stream.incarnation) == member_of(incarnation):
                stream.drop("the member has connected anew")
        return True

    def follower_answered(self, stream: FollowerStream, term: int) -> None:
        """What is committed now is delivered and answered at once, before anything else is read."""
        turn = self._server.broker.turn
        turn.hold()
        try:
            automaton = self._automaton
            automaton.acknowledged(self._time(), stream.incarnation, term, stream.written, stream.synced)
            if automaton.wanted:
                self._member.perform()
        finally:  # in any case: the turn is held, and no other call runs it
            turn.run()

    def follower_gone(self, stream: FollowerStream) -> None:
        if not any(each.incarnation == stream.incarnation for each in self.streams()):
            self._automaton.follower_left(self._time(), stream.incarnation)
            self._member.perform()
