"""The bytes of a V2 client, turned into commands. No sockets, tasks or clocks.

Bytes come in through `get_buffer` and `received`, as asyncio's BufferedProtocol gives them; events come out
of `next_event`. What a command may look like depends on the state of the connection, so the parser hands out
the line first, and the connection asks for the body: `expect_body` and `expect_mpub` say what comes next.

Runs of FIN, of REQ with one timeout, and of PUB to one topic, come as one event: the kernel finds them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from nsquark import kernel
from nsquark.errors import BadBody, BadMessage, BadProtocol, ConnectionLost, ProtocolError
from nsquark.kernel import Buffer
from nsquark.kernel.pure import BAD_COUNT, BAD_SIZE, COMPLETE, IN_COUNT, IN_SIZE, SHORT, TOO_BIG

MAGIC = b"  V2"
MAX_LINE = 16384  # with its line feed
MAX_NAME_LINE = 80  # a command and a name; longer lines take the long way
_SIZE = struct.Struct(">i")
_FIRST_ROOM = 4096
_JOINED = 16  # the part of the shared buffer that an incomplete command may take to read on behind it
_F, _M, _P, _R = b"FMPR"


@dataclass(slots=True)
class Line:
    """A command line, split at its spaces: the name and the parameters."""

    params: list[bytes]


@dataclass(slots=True)
class Body:
    """The body that `expect_body` asked for. The data are the parser's: use them before the next event."""

    data: memoryview


@dataclass(slots=True)
class Fins:
    """A run of FIN: the ids as ranges (first, last + 1)."""

    ranges: list[tuple[int, int]]


@dataclass(slots=True)
class Reqs:
    """A run of REQ with one timeout: the ids as ranges (first, last + 1), and the timeout as it was sent."""

    ranges: list[tuple[int, int]]
    timeout: bytes


@dataclass(slots=True)
class Pubs:
    """A run of complete PUB commands with the same line, as kernel.scan_pubs finds it in `data`."""

    data: bytearray
    start: int
    count: int
    length: int  # of the line

    @property
    def line(self) -> bytes:
        return bytes(self.data[self.start : self.start + self.length])


@dataclass(slots=True)
class Mpub:
    """A checked MPUB body, as kernel.scan_mpub finds it in `data`.

    With a `line` it is the whole command; without, the line came before.
    """

    data: Buffer
    start: int
    count: int
    line: bytes = b""


Event = Line | Body | Fins | Reqs | Pubs | Mpub


@dataclass(slots=True, frozen=True)
class BodyRule:
    """How NSQ checks the size of a body, in which order, and what it says."""

    command: str
    error: type[ProtocolError]
    body: str  # "body" or "message body"
    too_big: str  # "body too big" or "message too big"
    too_big_first: bool

    def unreadable(self) -> ProtocolError:
        return self.error(f"{self.command} failed to read {self.body} size")

    def short(self) -> ProtocolError:
        return self.error(f"{self.command} failed to read {self.body}")

    def check(self, size: int, limit: int) -> None:
        if self.too_big_first and size > limit:
            raise self.error(f"{self.command} {self.too_big} {size} > {limit}")
        if size <= 0:
            raise self.error(f"{self.command} invalid {self.body} size {size}")
        if size > limit:
            raise self.error(f"{self.command} {self.too_big} {size} > {limit}")


IDENTIFY_BODY = BodyRule("IDENTIFY", BadBody, "body", "body too big", True)
AUTH_BODY = BodyRule("AUTH", BadBody, "body", "body too big", True)
PUB_BODY = BodyRule("PUB", BadMessage, "message body", "message too big", False)
DPUB_BODY = BodyRule("DPUB", BadMessage, "message body", "message too big", False)
MPUB_BODY = BodyRule("MPUB", BadBody, "body", "body too big", False)


class CommandParser:
    """Reads into `shared`, a buffer for all connections of one thread, and keeps only what is incomplete."""

    __slots__ = (
        "_data", "_index", "_joined", "_limit", "_magic", "_max_body_size", "_max_msg_size", "_needed",
        "_offset", "_own", "_rule", "_shared", "_view", "end", "start",
    )  # fmt: skip

    def __init__(self, shared: bytearray, max_msg_size: int, max_body_size: int) -> None:
        self._shared = shared
        self._view = memoryview(shared)
        self._max_msg_size = max_msg_size
        self._max_body_size = max_body_size
        self._own = False
        self._data = shared
        self.start = self.end = 0  # what lies between has come and is not understood yet
        self._joined = False  # it lies in the shared buffer, too, before what is read next
        self._needed = 0
        self._magic = False
        self._rule: BodyRule | None = None
        self._limit = 0
        self._index = -1  # of the MPUB message that was incomplete; -1 when the outer size is yet to be read
        self._offset = 0

    def get_buffer(self) -> memoryview:
        """Where the next bytes are to be read to, and at once: all connections may share it."""
        self._joined = False
        if not self._own:
            return self._view
        have = self.end - self.start
        if not have:
            self.let_go()
            return self._view
        if have > len(self._shared) // _JOINED:
            return memoryview(self._data)[self.end :]
        # Where the rest of a small command is read to a buffer for it alone, many that follow it are read one
        # by one as well.
        self._joined = True
        self._view[:have] = memoryview(self._data)[self.start : self.end]
        return self._view[have:]

    def let_go(self) -> None:
        """Forget everything that has come: the next bytes are read to the shared buffer."""
        self._own = self._joined = False
        self._data = self._shared
        self.start = self.end = 0

    def received(self, count: int, taken: int = 0) -> None:
        """Take note of `count` bytes read into the buffer. The caller has understood the first `taken`."""
        if self._joined and count:
            have = self.end - self.start
            self.let_go()
            self.end = have + count
        elif self._own:
            self.end += count
        else:
            self.start = 0
            self.end = count
        self.start += taken

    def begins_with(self, line: bytes) -> bool:
        """Whether what comes next may be a command of this line; nothing may be anything."""
        have = self.end - self.start
        return self._data.startswith(line[:have], self.start, self.end)

    def shows(self, look: Callable[[bytearray, int, int], bool]) -> bool:
        """What `look` finds in what has come and is not understood yet: (data, start, end)."""
        return look(self._data, self.start, self.end)

    def hand_over(self) -> tuple[bytearray, int, int]:
        """What has come and is not understood yet, for another to understand: the parser has it no longer."""
        rest = self._data, self.start, self.end
        self.let_go()
        return rest

    def put_back(self, data: Buffer) -> None:
        """Bytes that another has not understood: they come next, with `received(0)`."""
        own = bytearray(len(data) + _FIRST_ROOM)
        own[: len(data)] = data
        self._data, self.start, self.end, self._own = own, 0, len(data), True

    def keep(self, event: Event) -> Event:
        """Put off what comes after `event`, the last one; gives the event with data of its own.

        What was read and is not understood yet is kept; it goes on with `received(0)`.
        """
        if type(event) is Body:
            event = Body(memoryview(bytes(event.data)))
        elif type(event) is Pubs:
            event = Pubs(self._data[event.start : self.start], 0, event.count, event.length)
        elif type(event) is Mpub:
            event = Mpub(bytes(memoryview(event.data)[event.start : self.start]), 0, event.count, event.line)
        if self.start == self.end:
            self.let_go()
        elif not self._own:
            self.put_back(self._view[self.start : self.end])
        return event

    def feed(self, data: bytes) -> None:
        """Copy bytes into the buffer, at most as many as it has room for."""
        self.get_buffer()[: len(data)] = data
        self.received(len(data))

    @property
    def greeted(self) -> bool:
        """Whether the client has sent its magic."""
        return self._magic

    @property
    def idle(self) -> bool:
        """Whether the next bytes begin a command, and are read to the shared buffer."""
        return self._magic and self.start == self.end and self._rule is None

    def _wait(self, needed: int) -> None:
        """Keep the incomplete command (of about `needed` bytes) in a buffer of its own."""
        have = self.end - self.start
        if have == 0:
            return
        if self._own and self.end < len(self._data):
            return  # moved only when it is full: small pieces of a large body are not copied again and again
        # Grow by doubling: a size that a client only claims costs nothing.
        room = max(have + 1, min(max(needed, _FIRST_ROOM), max(_FIRST_ROOM, 4 * have)))
        own = bytearray(room)
        own[:have] = memoryview(self._data)[self.start : self.end]
        self._data, self.start, self.end, self._own = own, 0, have, True

    def next_event(self) -> Event | None:
        """The next event, or None when more bytes are needed.

        Raises ProtocolError where NSQ answers with an error, ConnectionLost where it just closes.
        """
        if self._rule is not None:
            return self._next_mpub() if self._rule is MPUB_BODY else self._next_body()
        start, end = self.start, self.end
        if start == end:
            return None
        data = self._data
        if not self._magic:
            return self._next_magic()
        first = data[start]
        if first == _F:
            stop, ranges = kernel.scan_fins(data, start, end)
            if ranges:
                self.start = stop
                return Fins(ranges)
        elif first == _P:
            stop, count, length = kernel.scan_pubs(data, start, end, self._max_msg_size)
            if count:
                self.start = stop
                return Pubs(data, start, count, length)
        elif first == _R:
            stop, ranges, timeout = kernel.scan_reqs(data, start, end)
            if ranges:
                self.start = stop
                return Reqs(ranges, timeout)
        elif first == _M:
            whole = self._whole_mpub(data, start, end)
            if whole is not None:
                return whole
        line_end = data.find(b"\n", start, min(end, start + MAX_LINE))
        if line_end < 0:
            if end - start >= MAX_LINE:
                raise ConnectionLost("a line without end")
            self._wait(MAX_LINE)
            return None
        self.start = line_end + 1
        line = bytes(data[start:line_end])
        if line.endswith(b"\r"):
            line = line[:-1]
        return Line(line.split(b" "))

    def _whole_mpub(self, data: bytearray, start: int, end: int) -> Mpub | None:
        """The MPUB at `start`, if all of it is there and nothing is wrong with it."""
        body = data.find(b"\n", start, min(end, start + MAX_NAME_LINE)) + 5
        if body < 5 or end < body or not data.startswith(b"MPUB ", start):
            return None
        (size,) = _SIZE.unpack_from(data, body - 4)
        limit = self._max_body_size
        if not 0 < size <= limit or size > end - body:
            return None
        status, stop, count, _ = kernel.scan_mpub(data, body, end, self._max_msg_size, limit, 0, 0)
        if status != COMPLETE:
            return None
        self.start = stop
        return Mpub(data, body, count, bytes(data[start : body - 4]))

    def _next_magic(self) -> Event | None:
        if self.end - self.start < 4:
            self._wait(MAX_LINE)
            return None
        if self._data[self.start : self.start + 4] != MAGIC:
            raise BadProtocol
        self._magic = True
        self.start += 4
        return self.next_event()

    def expect_body(self, rule: BodyRule, limit: int) -> None:
        """The next event is the Body of the command whose line came last."""
        self._rule = rule
        self._limit = limit
        self._needed = 0

    def expect_mpub(self) -> None:
        """The next event is an Mpub."""
        self._rule = MPUB_BODY
        self._index = -1

    def _next_body(self) -> Body | None:
        rule = self._rule
        assert rule is not None
        have = self.end - self.start
        if have < 4:
            self._wait(4)
            return None
        (size,) = _SIZE.unpack_from(self._data, self.start)
        if not self._needed:
            rule.check(size, self._limit)
            self._needed = 4 + size
        if have < self._needed:
            self._wait(self._needed)
            return None
        self._rule = None
        start = self.start + 4
        self.start = start + size
        return Body(memoryview(self._data)[start : self.start])

    def _scan_mpub(self) -> tuple[int, int, int, int]:
        limits = self._max_msg_size, self._max_body_size
        return kernel.scan_mpub(self._data, self.start, self.end, *limits, self._index, self._offset)

    def _next_mpub(self) -> Mpub | None:
        if self._index < 0:
            if self.end - self.start < 4:
                self._wait(4)
                return None
            (size,) = _SIZE.unpack_from(self._data, self.start)
            MPUB_BODY.check(size, self._max_body_size)
            # NSQ goes by the counts and sizes inside; the outer size only says how much to expect.
            self.start += 4
            self._needed = size
            self._index = self._offset = 0
        start = self.start
        status, stop, number, value = self._scan_mpub()
        if status == COMPLETE:
            self._rule = None
            self.start = stop
            return Mpub(self._data, start, number)
        if status == SHORT:
            if value != IN_COUNT:
                self._index, self._offset = number, stop - start
            have = self.end - start
            self._wait(self._needed if have < self._needed else 2 * have)
            return None
        if status == BAD_COUNT:
            raise BadBody(f"MPUB invalid message count {value}")
        if status == BAD_SIZE:
            raise BadMessage(f"MPUB invalid message({number}) body size {value}")
        if status == TOO_BIG:
            raise BadMessage(f"MPUB message too big {value} > {self._max_msg_size}")
        raise BadBody(f"MPUB body too big {value} > {self._max_body_size}")

    def cut_short(self) -> ProtocolError | None:
        """What NSQ says, if anything, when nothing more comes in the middle of a command."""
        rule = self._rule
        if rule is None:
            return None
        have = self.end - self.start
        if rule is not MPUB_BODY:
            return rule.unreadable() if have < 4 else rule.short()
        if self._index < 0:
            return rule.unreadable()
        _, _, number, where = kernel.scan_mpub(
            self._data,
            self.start,
            self.end,
            self._max_msg_size,
            self._max_body_size,
            self._index,
            self._offset,
        )
        if where == IN_COUNT:
            return BadBody("MPUB failed to read message count")
        if where == IN_SIZE:
            return BadMessage(f"MPUB failed to read message({number}) body size")
        return BadMessage("MPUB failed to read message body")
