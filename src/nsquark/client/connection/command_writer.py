"""The sending half of a connection: commands are collected and written once a turn of the event loop.

Each command that nsqd answers has a future here, in the order in which the commands are sent: nsqd answers in
the same order. The receiving half, `NsqdConnection`, takes the futures from the front.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from nsquark.errors import ConnectFailed, ConnectionLost, OutcomeUnknown, ProtocolError
from nsquark.wire.compression import Stream

_WRITE_AT = 64 << 10  # collected bytes that are written at once instead of at the end of the turn
_FINS_AT = 512  # FINs that are written at once, so that nsqd can send more while this client works

Unanswered = deque[asyncio.Future[bytes]]
Heir = Callable[[Unanswered, int, ProtocolError | None, Exception], None]
"""Takes the futures that a lost connection leaves unanswered, and decides what becomes of their commands.

The first `int` of them were sent. A ProtocolError is nsqd's answer to the oldest. The last argument is why
the connection was lost.
"""


class CommandWriter:
    """Collects commands for one transport."""

    def __init__(self, address: str, write_timeout: float) -> None:
        self.address = address
        self.open = False  # whether commands can be sent
        self.loop = asyncio.get_running_loop()
        self._write_timeout = write_timeout
        self._transport: asyncio.Transport | None = None
        self._stream: Stream | None = None  # compresses what is sent, once the handshake has agreed on it
        self._waiters: deque[asyncio.Future[bytes]] = deque()
        self._unsent = 0  # how many of the waiters, counted from the end, have their commands still in _out
        self._out: list[bytes] = []
        self._out_size = 0
        self._fins: list[bytes] = []
        self._flush_due = False
        self._write_resumed: asyncio.Future[None] | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self.heir: Heir | None = None  # without one, unanswered commands fail when the connection is lost
        self._refused: ProtocolError | None = None  # the answer to the oldest waiter, kept for the heir

    def abort(self, error: Exception | None = None) -> None:
        raise NotImplementedError

    # ---- commands

    def send(self, command: bytes) -> None:
        """Send a command that nsqd does not answer. It leaves at the end of the turn of the event loop."""
        if not self.open:
            return
        if self._fins:
            self._collect_fins()
        self._out.append(command)
        self._out_size += len(command)
        if not self._flush_due:
            self._flush_due = True
            self.loop.call_soon(self.flush)
        elif self._out_size > _WRITE_AT:
            self._write()

    def send_fin(self, message_id: bytes) -> None:
        """FIN. A consumer sends thousands of them, so their ids are collected apart."""
        self._fins.append(message_id)
        if not self._flush_due:
            self._flush_due = True
            self.loop.call_soon(self.flush)
        elif len(self._fins) >= _FINS_AT:
            self._write()

    def ask(self, command: bytes) -> asyncio.Future[bytes]:
        """Send a command that nsqd answers; the future gets the answer, or the ProtocolError.

        A future that is cancelled keeps its place in the order, and its answer is dropped.
        """
        waiter: asyncio.Future[bytes] = self.loop.create_future()
        if not self.open:
            waiter.set_exception(ConnectFailed(f"{self.address} is not connected"))
            return waiter
        self._waiters.append(waiter)
        self.send(command)
        return waiter

    def ask_in_pieces(
        self, command: Iterable[bytes], size: int, waiter: asyncio.Future[bytes] | None = None
    ) -> asyncio.Future[bytes]:
        """`ask` for many commands on an open connection: their pieces are joined once a turn.

        The answer goes to `waiter`, if there is a future for it already.
        """
        if waiter is None:
            waiter = self.loop.create_future()
        self._waiters.append(waiter)
        self._unsent += 1
        self._out += command
        self._out_size += size
        if not self._flush_due:
            self._flush_due = True
            self.loop.call_soon(self.flush)
        elif self._out_size > _WRITE_AT:
            self._write()
        return waiter

    @property
    def last_question(self) -> asyncio.Future[bytes] | None:
        """The future of the newest unanswered command. When it is done, all others are."""
        return self._waiters[-1] if self._waiters else None

    @property
    def unanswered(self) -> int:
        """How many commands wait for their answers."""
        return len(self._waiters)

    def _fail_waiters(self, error: Exception) -> None:
        """The connection is gone. A command that has left may have been carried out."""
        waiters, self._waiters = self._waiters, deque()
        sent = len(waiters) - self._unsent
        self._out.clear()
        self._fins.clear()
        self.resume_writing()
        if self.heir is not None:
            self.heir(waiters, sent, self._refused, error)
            return
        for place, waiter in enumerate(waiters):
            if not waiter.done():
                kind = OutcomeUnknown if place < sent else ConnectFailed
                waiter.set_exception(kind(str(error)))

    # ---- writing

    def _collect_fins(self) -> None:
        fins = b"FIN " + b"\nFIN ".join(self._fins) + b"\n"
        self._fins.clear()
        self._out.append(fins)
        self._out_size += len(fins)

    def flush(self) -> None:
        """Write what was collected."""
        self._flush_due = False
        self._write()

    def _write(self) -> None:
        if self._fins:
            self._collect_fins()
        if not self._out or not self.open:
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        self._out_size = self._unsent = 0
        assert self._transport is not None
        self._transport.write(data if self._stream is None else self._stream.compress(data))

    @property
    def write_resumed(self) -> asyncio.Future[None] | None:
        """None, or while nsqd does not read: a future that is done when it reads again."""
        return self._write_resumed

    def pause_writing(self) -> None:
        """asyncio calls this when the transport's buffer is full."""
        self._write_resumed = self.loop.create_future()
        late = ConnectionLost(f"nothing could be written for {self._write_timeout} s")
        self._write_timer = self.loop.call_later(self._write_timeout, self.abort, late)

    def resume_writing(self) -> None:
        """asyncio calls this when the transport's buffer has room again."""
        if self._write_timer is not None:
            self._write_timer.cancel()
        if self._write_resumed is not None and not self._write_resumed.done():
            self._write_resumed.set_result(None)
        self._write_resumed = None
