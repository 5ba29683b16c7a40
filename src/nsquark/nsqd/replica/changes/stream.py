"""A follower's connection to its primary, after the Upgrade: frames out, answers in."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Protocol, cast

from nsquark.net.congestion import do_not_pace
from nsquark.net.layered_transport import Layers

from .frames import ANSWER_SIZE, BadFrame, Data, PackedFrame, parse_answer, parse_answers
from .recorder import Recorder

logger = logging.getLogger(__name__)

MOST_PARTS = 512  # that one call writes; the system takes 1024
MOST_UNSENT = 32 << 20  # bytes that wait for a follower that does not read
SILENCE = 10.0  # seconds without an answer after which a follower is dropped


def write_at_once(transport: asyncio.Transport, fd: int, parts: list[Data], size: int) -> bool:
    """Write past the transport, which would wait for the end of the loop's turn, if nothing waits there.

    `fd` is -1 where something lies between the transport and the socket, such as TLS. `size` is that of all
    parts. Returns whether all is written, and nothing waits in the transport.
    """
    done = 0
    if fd >= 0 and not transport.get_write_buffer_size() and not transport.is_closing():
        try:
            done = os.writev(fd, parts if len(parts) <= MOST_PARTS else parts[:MOST_PARTS])
        except OSError:
            done = 0  # the transport finds out why the socket takes no more
    if done < size:
        rest = b"".join(parts)[done:]
        if isinstance(transport, Layers):
            transport.write_now(rest)  # a handover must be on its way before the process is another one
        else:
            transport.write(rest)
        return False
    return True


class Leader(Protocol):
    """The primary of a replica group: it is told what its followers say."""

    def follower_answered(self, stream: FollowerStream, term: int) -> None: ...
    def follower_gone(self, stream: FollowerStream) -> None: ...


class FollowerStream:
    """`written` and `synced` are the sequences that the follower has acknowledged.

    A protocol of asyncio: the transport calls it.
    """

    __slots__ = (
        "__weakref__", "_buffer", "_fd", "_heard", "_leader", "_limit", "_recorder", "_transport",
        "incarnation", "peer", "synced", "written",
    )  # fmt: skip

    def __init__(
        self,
        recorder: Recorder,
        peer: str,
        sequence: int,
        unsent: int,
        incarnation: str = "",
        leader: Leader | None = None,
    ) -> None:
        """`unsent` bytes of the backlog may wait in addition. `leader` and `incarnation` are a group's."""
        self.peer = peer
        self.incarnation = incarnation
        self._leader = leader
        self.written = self.synced = sequence
        self._recorder = recorder
        self._limit = MOST_UNSENT + unsent
        self._transport: asyncio.Transport | None = None
        self._fd = -1  # of the socket, where nothing lies between it and the transport
        self._buffer = bytearray()
        self._heard = time.monotonic()

    def start(self, transport: asyncio.BaseTransport, frames: list[PackedFrame]) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        self._fd = -1 if sock is None else sock.fileno()
        if self._fd >= 0:
            do_not_pace(self._fd)
        self._recorder.followers.add(self)
        for frame in frames:
            self.send(frame)

    @property
    def unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, frame: PackedFrame) -> None:
        transport = self._transport
        if transport is None or write_at_once(transport, self._fd, frame.parts, frame.size):
            return
        if transport.get_write_buffer_size() > self._limit:
            self.drop("does not read")

    def look(self) -> None:
        """Called with every heartbeat."""
        if time.monotonic() - self._heard > SILENCE:
            self.drop("is silent")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Nothing to do: `start` gives it the transport."""

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """Nothing to do: `send` looks at what waits."""

    def resume_writing(self) -> None:
        """Nothing to do: `send` looks at what waits."""

    def data_received(self, data: bytes) -> None:
        try:
            last: tuple[int, int, int] | None
            if len(data) == ANSWER_SIZE and not self._buffer:
                last = parse_answer(data)
            else:
                self._buffer += data
                last = parse_answers(self._buffer)
            if last is not None:
                term, written, synced = last
                if term != self._recorder.term or written > self._recorder.sequence:
                    raise BadFrame(f"sequence {written} of term {term} was never sent")
                self.written, self.synced = max(self.written, written), max(self.synced, synced)
                self._heard = time.monotonic()
                if self._leader is not None:
                    self._leader.follower_answered(self, term)
        except BadFrame as error:
            self.drop(str(error))

    def drop(self, why: str) -> None:
        logger.warning("REPLICA: follower %s is dropped: %s", self.peer, why)
        if self._transport is not None:
            self._transport.abort()
        self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fd = -1
        self._recorder.followers.discard(self)
        leader, self._leader = self._leader, None
        if leader is not None:
            leader.follower_gone(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
