"""The kernel in plain Python: the specification of `fast`, and what runs where there is no compiler.

Offsets count bytes in the buffer that the caller passes. No function keeps a reference to that buffer, except
that `gather` may return a slice of it.

A message frame, as it goes on the wire and lies in a batch:

    0       4       8          16         18           34
    | u32   | u32   | i64      | u16      | 16 ASCII   | ...
    | size  | 2     | time, ns | attempts | message id | body        size = 30 + len(body)

A batch:

    0       4       8        12      16         24         32         40        48
    | NQB1  | u32   | u32    | u32   | u64      | u64      | i64      | i64     | ...
    | magic | crc   | length | count | position | first id | time, ns | due, ns | frames

`length` is that of the whole batch. `due` is 0 unless the batch is deferred. The n-th message of a batch has
position `position + n` and id `first id + n`.

A block of records, and the one kind of record that the kernel knows:

    0       4       8        12             0        1        5       13      17
    | magic | u32   | u32    | ...          | letter | u32    | u64   | u32   |
    |       | crc   | length | records      |        | number | start | count |

`length` is that of the records. In a batch and in a block, `crc` is the CRC-32C of everything behind it.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Sequence
from typing import Any, Self, TypeVar

Buffer = bytes | bytearray | memoryview

MAGIC = b"NQB1"
HEADER = struct.Struct(">4sIIIQQqq")
FRAME = struct.Struct(">IIqH16s")
BLOCK = struct.Struct(">4sII")
RANGE = struct.Struct(">cIQI")
_U32 = struct.Struct(">I")
_FRAME_START = struct.Struct(">IIq")
_I32 = struct.Struct(">i")
_FIN_LENGTH = 21
_REQ = re.compile(rb"REQ ([0-9a-f]{16}) ([0-9]{1,10})\n")
_LONGEST_REQ = 32
_HEX = frozenset(b"0123456789abcdef")
SLICE_FROM = 4096  # gather() copies runs shorter than this and slices longer ones
MAX_BODY = 1 << 30  # bytes

# what scan_mpub returns as its status, and as the value of SHORT
COMPLETE, SHORT, BAD_COUNT, BAD_SIZE, TOO_BIG, BODY_TOO_BIG = range(6)
IN_COUNT, IN_SIZE, IN_BODY = range(3)


def _table() -> list[int]:
    table = []
    for n in range(256):
        for _ in range(8):
            n = (n >> 1) ^ 0x82F63B78 if n & 1 else n >> 1
        table.append(n)
    return table


_CRC = _table()


def keep_freed_memory(largest: int, most: int) -> bool:
    """Have the process keep blocks of up to `largest` bytes that it frees, `most` bytes at the heap's end.

    The next block of this size is then there at once, where the system would map and clear pages for it.
    Returns whether that is so: the twin in Python, and a C library other than GNU's, leave it as it is.
    """
    return False


def crc32c(data: Buffer, start: int, end: int) -> int:
    """The CRC-32C of data[start:end]."""
    crc = 0xFFFFFFFF
    table = _CRC
    for byte in bytes(data[start:end]):
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def scan_fins(data: Buffer, start: int, end: int) -> tuple[int, list[tuple[int, int]]]:
    """The run of well-formed `FIN <id>` lines at `start`: where it ends, and the ids as ranges.

    Ids that follow each other make one range (first, last + 1). Anything else ends the run.
    """
    ranges: list[tuple[int, int]] = []
    first = last = -1
    while end - start >= _FIN_LENGTH:
        line = bytes(data[start : start + _FIN_LENGTH])
        if line[:4] != b"FIN " or line[20] != 10 or not _HEX.issuperset(line[4:20]):
            break
        number = int(line[4:20], 16)
        if number != last or first < 0:
            if first >= 0:
                ranges.append((first, last))
            first = number
        last = number + 1
        start += _FIN_LENGTH
    if first >= 0:
        ranges.append((first, last))
    return start, ranges


def next_fins(data: Buffer, start: int, end: int) -> tuple[int, int]:
    """The FINs at `start` whose ids follow each other: the first id, and how many. (0, 0) if none do."""
    first = count = 0
    while end - start >= _FIN_LENGTH:
        line = bytes(data[start : start + _FIN_LENGTH])
        if len(line) < _FIN_LENGTH or line[:4] != b"FIN " or line[20] != 10:
            break
        if not _HEX.issuperset(line[4:20]):
            break
        number = int(line[4:20], 16)
        if not count:
            first = number
        elif number != first + count:
            break
        count += 1
        start += _FIN_LENGTH
    return first, count


def scan_reqs(data: Buffer, start: int, end: int) -> tuple[int, list[tuple[int, int]], bytes]:
    """The run of well-formed `REQ <id> <digits>` lines at `start`: its end, the ids as ranges, the digits.

    All of them have the digits of the first, one to ten. Ids that follow each other make one range
    (first, last + 1). Anything else ends the run.
    """
    ranges: list[tuple[int, int]] = []
    first = last = -1
    delay = b""
    while match := _REQ.match(bytes(data[start : min(end, start + _LONGEST_REQ)])):
        if first >= 0 and match[2] != delay:
            break
        delay = match[2]
        number = int(match[1], 16)
        if number != last or first < 0:
            if first >= 0:
                ranges.append((first, last))
            first = number
        last = number + 1
        start += match.end()
    if first >= 0:
        ranges.append((first, last))
    return start, ranges, delay


def scan_pubs(data: Buffer, start: int, end: int, max_size: int) -> tuple[int, int, int]:
    """The run of complete `PUB` commands at `start` that share one command line.

    Returns where it ends, how many there are, and the length of the line with its line feed. A count of 0
    means that no complete PUB with a short line and a body of acceptable size begins at `start`.
    """
    line_end = bytes(data[start : min(end, start + 80)]).find(b"\n")
    if line_end < 0 or bytes(data[start : start + 4]) != b"PUB ":
        return start, 0, 0
    length = line_end + 1
    line = bytes(data[start : start + length])
    count = 0
    while end - start >= length + 4 and (count == 0 or data[start : start + length] == line):
        (size,) = _I32.unpack_from(data, start + length)
        if not 0 < size <= max_size or end - start - length - 4 < size:
            break
        start += length + 4 + size
        count += 1
    return start, count, length


def scan_mpub(
    data: Buffer, start: int, end: int, max_msg_size: int, max_body_size: int, index: int, offset: int
) -> tuple[int, int, int, int]:
    """Check an MPUB body that begins (with its count) at `start`: (status, stop, number, value).

    COMPLETE: the body ends at `stop` and has `number` messages.
    SHORT: the data end within message `number`, which begins at `stop`; `value` says in which part. When
    there are more data, the caller passes `number` as `index` and `stop - start` as `offset` (0 at first).
    BAD_COUNT, TOO_BIG, BODY_TOO_BIG: `value` is the offending number.
    BAD_SIZE: `value` is the size of message `number`.
    """
    if end - start < 4:
        return SHORT, start, 0, IN_COUNT
    (count,) = _I32.unpack_from(data, start)
    if count <= 0 or count > (max_body_size - 4) // 5:
        return BAD_COUNT, start, 0, count
    at = start + (offset or 4)
    while index < count:
        if end - at < 4:
            return SHORT, at, index, IN_SIZE
        (size,) = _I32.unpack_from(data, at)
        if size <= 0:
            return BAD_SIZE, at, index, size
        if size > max_msg_size:
            return TOO_BIG, at, index, size
        if at + 4 + size - start > max_body_size:
            return BODY_TOO_BIG, at, index, at + 4 + size - start
        if end - at - 4 < size:
            return SHORT, at, index, IN_BODY
        at += 4 + size
        index += 1
    return COMPLETE, at, count, 0


def unfinished_command(
    data: Buffer, start: int, end: int, line: bytes, max_msg_size: int, max_body_size: int
) -> bytes:
    """A copy of [start, end) if a PUB or MPUB with this line begins so; nothing if it is whole or wrong."""
    beginning = bytes(memoryview(data)[start:end])
    return beginning if _begins(beginning, line, max_msg_size, max_body_size) else b""


def command_line(data: Buffer, start: int, end: int, command: bytes, longest: int) -> bytes:
    """The line at `start`, with its line feed, if it begins with `command` and is at most `longest` long."""
    if start < 0:
        raise ValueError(f"negative offset {start}")
    beginning = bytes(memoryview(data)[start : max(start, min(end, start + max(longest, len(command))))])
    stop = beginning[: max(longest, 0)].find(b"\n")
    return beginning[: stop + 1] if beginning.startswith(command) and stop >= 0 else b""


def _begins(data: bytes, line: bytes, max_msg_size: int, max_body_size: int) -> bool:
    if not data or data[: len(line)] != line[: len(data)]:
        return False
    body = len(line) + 4
    if len(data) < body:
        return True
    (size,) = _I32.unpack_from(data, body - 4)
    if size <= 0 or len(data) - body >= size:
        return False
    if not line.startswith(b"M"):
        return bool(size <= max_msg_size)
    if size > max_body_size:
        return False
    if len(data) < body + 4:
        return True
    (count,) = _I32.unpack_from(data, body)
    if not 0 < count <= (max_body_size - 4) // 5:
        return False
    at, stop = body + 4, body + size
    while count and len(data) - at >= 4:
        (size,) = _I32.unpack_from(data, at)
        if not 0 < size <= min(max_msg_size, stop - at - 4):
            return False
        at += 4 + size
        count -= 1
    # NSQ goes by the messages inside. If all are there, the command is whole, whatever size it claims.
    return bool(count > 0 or at > len(data))


def write_some(fd: int, data: Buffer, end: int = sys.maxsize) -> int:
    """Write what the descriptor takes of data[:end]; returns how many bytes. 0 where it is full or broken."""
    try:
        return os.write(fd, memoryview(data)[: max(end, 0)])
    except OSError:
        return 0


class LargePub:
    """A PUB whose body of `size` bytes comes in pieces, in memory of its own.

    The memory grows with what has come: a size that a client only claims costs nothing. `room` says for how
    much of the body there is memory at first.
    """

    def __init__(self, size: int, room: int) -> None:
        if not 0 < size <= MAX_BODY:
            raise ValueError(f"a body of {size} bytes")
        self.size = size
        self._body: bytearray | None = bytearray()

    @property
    def have(self) -> int:
        """How much of the body has come."""
        return self.size if self._body is None else len(self._body)

    @property
    def missing(self) -> int:
        return self.size - self.have

    def put(self, data: Buffer) -> int:
        """Add the next bytes of the body; returns how many of them belong to it."""
        if self._body is None:
            raise ValueError("the body is a batch")
        count = min(len(data), self.missing)
        self._body += memoryview(data)[:count]
        return count

    def command(self, line: bytes) -> bytes:
        """What has come of the command, from its line on."""
        if self._body is None:
            raise ValueError("the body is a batch")
        return line + _U32.pack(self.size) + self._body

    def take_body(self) -> bytes:
        """The whole body: for `BatchWriter.add_large` alone, which keeps it."""
        if self._body is None or len(self._body) != self.size:
            raise ValueError("the body is not whole")
        body, self._body = bytes(self._body), None
        return body


def begin_large_pub(
    data: Buffer, start: int, end: int, line: bytes, smallest: int, max_msg_size: int
) -> LargePub | None:
    """The PUB with this line at `start`, if it is not whole and its body has `smallest` bytes or more."""
    end = min(end, len(data))
    body = start + len(line) + 4
    if body > end or data[start : body - 4] != line:
        return None
    (size,) = _I32.unpack_from(data, body - 4)
    if not max(smallest, end - body + 1, 1) <= size <= min(max_msg_size, MAX_BODY):
        return None
    large = LargePub(size, end - body)
    large.put(data[body:end])
    return large


class BatchWriter:
    """Lays messages out as batches of frames, until `take` hands the bytes over.

    The writer numbers the messages: `position` and `next_id` are those of the next one. Messages with one due
    time share a batch; another due time begins the next batch.
    """

    def __init__(self, position: int, next_id: int) -> None:
        self.position = position
        self.next_id = next_id
        self._ids_end = next_id  # the ids from `next_id` up to this one may be used
        self.count = 0
        self.commands = 0  # that `add_whole_pubs` and `add_whole_mpubs` have added since the last `take`
        self.body_bytes = 0
        self._data = bytearray()
        self._batch = -1
        self._due = 0

    @property
    def size(self) -> int:
        return len(self._data)

    @property
    def ids_left(self) -> int:
        """How many messages can be added before the writer needs other ids: see `use_ids`.

        The caller asks before it adds. The writer itself does not refuse.
        """
        return self._ids_end - self.next_id

    def _open(self, timestamp: int, due: int) -> None:
        if self._batch >= 0 and self._due != due:
            self._seal()
        if self._batch < 0:
            self._batch = len(self._data)
            self._due = due
            self._data += HEADER.pack(MAGIC, 0, 0, 0, self.position, self.next_id, timestamp, due)

    def _seal(self) -> None:
        if self._batch < 0:
            return
        at = self._batch
        _, _, _, _, position, _, _, _ = HEADER.unpack_from(self._data, at)
        struct.pack_into(">II", self._data, at + 8, len(self._data) - at, self.position - position)
        _U32.pack_into(self._data, at + 4, crc32c(self._data, at + 8, len(self._data)))
        self._batch = -1

    def _add(self, data: Buffer, start: int, size: int, timestamp: int) -> None:
        self._data += FRAME.pack(size + 30, 2, timestamp, 1, b"%016x" % self.next_id)
        self._data += data[start : start + size]
        self.position += 1
        self.next_id += 1
        self.count += 1
        self.body_bytes += size

    def renumber(self, position: int, next_id: int) -> None:
        """Number the messages from here on with these."""
        self._seal()
        self.position = position
        self.next_id = next_id

    def use_ids(self, first: int, count: int) -> None:
        """Number the messages from here on with the `count` ids from `first` on."""
        self.renumber(self.position, first)
        self._ids_end = first + count

    def add_pubs(self, data: Buffer, start: int, count: int, line: int, timestamp: int) -> int:
        """Add the `count` PUB commands that `scan_pubs` found at `start`; returns the bytes of bodies."""
        self._open(timestamp, 0)
        total = 0
        for _ in range(count):
            (size,) = _I32.unpack_from(data, start + line)
            self._add(data, start + line + 4, size, timestamp)
            start += line + 4 + size
            total += size
        return total

    def add_mpub(self, data: Buffer, start: int, count: int, timestamp: int, due: int = 0) -> int:
        """Add the body that `scan_mpub` found complete at `start`; returns the bytes of bodies."""
        self._open(timestamp, due)
        start += 4
        total = 0
        for _ in range(count):
            (size,) = _I32.unpack_from(data, start)
            self._add(data, start + 4, size, timestamp)
            start += 4 + size
            total += size
        return total

    def add_bodies(self, bodies: Sequence[Buffer], timestamp: int, due: int) -> int:
        """Add whole bodies, deliverable from `due` (ns since the epoch, or 0); returns their bytes."""
        self._open(timestamp, due)
        total = 0
        for body in bodies:
            self._add(body, 0, len(body), timestamp)
            total += len(body)
        return total

    def add_whole_pubs(
        self, data: Buffer, start: int, end: int, line: bytes, max_msg_size: int, timestamp: int
    ) -> int:
        """Add the PUB commands with this line that are whole; returns where they end.

        Adds none of them where there are more than `ids_left`.
        """
        end, stop, count = min(end, len(data)), start, 0
        while (body := stop + len(line) + 4) <= end and data[stop : body - 4] == line:
            (size,) = _I32.unpack_from(data, body - 4)
            if not 0 < size <= min(max_msg_size, end - body):
                break
            stop = body + size
            count += 1
        if not 0 < count <= self.ids_left:
            return start
        self.add_pubs(data, start, count, len(line), timestamp)
        self.commands += count
        return stop

    def add_whole_mpubs(
        self,
        data: Buffer,
        start: int,
        end: int,
        line: bytes,
        max_msg_size: int,
        max_body_size: int,
        timestamp: int,
    ) -> int:
        """Add the MPUB commands with this line that are whole and of the size they claim, as above."""
        end, stop = min(end, len(data)), start
        bodies: list[tuple[int, int]] = []
        while (body := stop + len(line) + 4) <= end and data[stop : body - 4] == line:
            (size,) = _I32.unpack_from(data, body - 4)
            if not 0 < size <= min(max_body_size, end - body):
                break
            found = scan_mpub(data, body, body + size, max_msg_size, max_body_size, 0, 0)
            if found[:2] != (COMPLETE, body + size):
                break
            bodies.append((body, found[2]))
            stop = body + size
        total = sum(count for _, count in bodies)
        if not 0 < total <= self.ids_left:
            return start
        for body, count in bodies:
            self.add_mpub(data, body, count, timestamp)
        self.commands += len(bodies)
        return stop

    def add_large(self, large: LargePub, timestamp: int) -> None:
        """Add a PUB, all of which has come. Its memory becomes the batch if nothing is before it."""
        body = large.take_body()
        self.add_bodies([body], timestamp, 0)
        self.commands += 1

    def take(self) -> bytes:
        """Everything added since the last call, as whole batches."""
        self._seal()
        data = bytes(self._data)
        self._data.clear()
        self.count = self.commands = self.body_bytes = 0
        return data


def gather(
    data: Buffer,
    start: int,
    end: int,
    remaining: int,
    want: int,
    max_bytes: int,
    whatever_due: bool = False,
) -> tuple[Buffer, int, int, int, int]:
    """The next message frames of some batches, without the batch headers between them.

    `start` is at a frame of a batch with `remaining` messages to go, or at a header when that is 0. Takes at
    most `want` messages and (after the first) at most `max_bytes`. Stops where the data end, where ids do
    not follow each other, and at a deferred batch unless messages are taken `whatever_due`.
    Returns (frames, count, first id, stop, remaining).
    """
    first = expected = -1
    pieces: list[Buffer] = []
    piece = start
    count = total = 0
    at = start
    while count < want:
        if remaining == 0:
            if end - at < HEADER.size:
                break
            magic, _, _, number, _, first_id, _, due = HEADER.unpack_from(data, at)
            if magic != MAGIC or number == 0 or (due and not whatever_due):
                break
            if expected >= 0 and first_id != expected:
                break
            if end - at < HEADER.size + 34:
                break
            frame = at + HEADER.size
        else:
            frame = at
            if end - at < 34:
                break
        size = 4 + _U32.unpack_from(data, frame)[0]
        if size < 34 or end - frame < size or (count and total + size > max_bytes):
            break
        if expected < 0:
            message_id = bytes(data[frame + 18 : frame + 34])
            if not _HEX.issuperset(message_id):
                break
            first = expected = int(message_id, 16)
        if remaining == 0:
            if at > piece:
                pieces.append(data[piece:at])
            piece = frame
            remaining = number
        at = frame + size
        remaining -= 1
        expected += 1
        count += 1
        total += size
    if at > piece:
        pieces.append(data[piece:at])
    if len(pieces) == 1 and total >= SLICE_FROM:
        return memoryview(pieces[0]), count, first, at, remaining
    return b"".join(pieces), count, first, at, remaining


class BatchReader:
    """Takes runs of frames out of batches, one after the other.

    The next frame is in `data` at offset `at`, in a batch with `remaining` messages to go. When
    `remaining` is 0, there is a batch header instead. The caller sets these three. Deferred batches are read
    like others if the caller sets `whatever_due`.
    """

    __slots__ = ("at", "count", "data", "first_id", "remaining", "timestamp", "whatever_due")

    def __init__(self) -> None:
        self.data = b""
        self.at = 0
        self.remaining = 0
        self.whatever_due = False
        self.count = 0
        self.first_id = 0
        self.timestamp = 0

    def gather(self, want: int, max_bytes: int) -> Buffer:
        """Take the next frames, as the function `gather` does, and go on behind them.

        `count` says how many there are. If there are any, `first_id` and `timestamp` are the id and the time
        of the first of them. Otherwise the place stays as it was.
        """
        frames, self.count, first, at, remaining = gather(
            self.data, self.at, len(self.data), self.remaining, want, max_bytes, self.whatever_due
        )
        if self.count:
            self.first_id, self.at, self.remaining = first, at, remaining
            self.timestamp = int.from_bytes(frames[8:16], "big", signed=True)
        return frames


def _skip_frames(data: Buffer, start: int, end: int, count: int) -> int:
    """The offset behind `count` frames, or -1 if the data end before it."""
    for _ in range(count):
        if end - start < 4:
            return -1
        size = 4 + _U32.unpack_from(data, start)[0]
        if size < 34 or end - start < size:
            return -1
        start += size
    return start


def frame_ends(frames: Buffer) -> list[int]:
    """Where each of these whole frames ends."""
    ends = []
    at = 0
    while at + 4 <= len(frames):
        at += 4 + _U32.unpack_from(frames, at)[0]
        ends.append(at)
    return ends


def with_attempts(frames: Buffer, attempts: int) -> bytes:
    """A copy of these whole frames with another number of attempts (modulo 65536, as in NSQ)."""
    out = bytearray(frames)
    at = 0
    while at + 34 <= len(out):
        struct.pack_into(">H", out, at + 16, attempts & 0xFFFF)
        at += 4 + _U32.unpack_from(out, at)[0]
    return bytes(out)


def timestamps(frames: Buffer, first_id: int) -> list[tuple[int, int]]:
    """The times of these whole frames, whose ids begin with `first_id`: (id, timestamp) at each change."""
    steps: list[tuple[int, int]] = []
    at = 0
    while at + 34 <= len(frames):
        size, _, timestamp = _FRAME_START.unpack_from(frames, at)
        if not steps or timestamp != steps[-1][1]:
            steps.append((first_id, timestamp))
        first_id += 1
        at += 4 + size
    return steps


Batch = tuple[int, int, int, int, int, int, int]


def scan_batches(
    data: Buffer, start: int, end: int, verify: bool, stride: int
) -> tuple[int, int, list[Batch], Batch | None]:
    """Walk whole batches: (stop, needed, marks, last).

    `marks` has (offset, length, count, position, first id, time, due) of every deferred batch and of one
    plain batch in each `stride` bytes, `last` that of the last whole batch. The walk stops at the first batch
    that is not whole or (with `verify`) fails its CRC. `needed` is how many bytes from `stop` it takes to
    judge that batch: 0 when it is wrong in any case, 48 or its length when it is cut off.
    """
    marks: list[Batch] = []
    last: Batch | None = None
    marked = -stride
    expected = -1
    while True:
        if end - start < HEADER.size:
            return start, HEADER.size, marks, last
        magic, crc, length, count, position, first_id, timestamp, due = HEADER.unpack_from(data, start)
        if magic != MAGIC or length < HEADER.size + 34 or count == 0 or count > length // 34:
            return start, 0, marks, last
        if expected >= 0 and position != expected:
            return start, 0, marks, last
        if end - start < length:
            return start, length, marks, last
        if verify and crc32c(data, start + 8, start + length) != crc:
            return start, 0, marks, last
        last = (start, length, count, position, first_id, timestamp, due)
        if due or start - marked >= stride:
            marks.append(last)
            marked = start
        expected = position + count
        start += length


def find_message(data: Buffer, start: int, end: int, position: int) -> tuple[int, int, int]:
    """Where the message with this position lies: (offset, remaining, needed).

    `start` is at a batch header. The offset is that of the message's frame, with `remaining` messages of its
    batch to go, or that of the header with 0 for the first message of a batch. An offset of -1 means that the
    message is not in the data. `needed` is then how many bytes from `start` it takes to get further, or 0 if
    more bytes would not help.
    """
    at = start
    while True:
        if end - at < HEADER.size:
            return -1, 0, at - start + HEADER.size
        magic, _, length, count, first, _, _, _ = HEADER.unpack_from(data, at)
        if magic != MAGIC or position < first or length < HEADER.size:
            return -1, 0, 0
        if position == first:
            return at, 0, 0
        if position < first + count:
            offset = _skip_frames(data, at + HEADER.size, end, position - first)
            if offset < 0:
                return -1, 0, at - start + length if end - at < length else 0
            return offset, first + count - position, 0
        at += length


def index_frames(
    data: Buffer, end: int, at: int, remaining: int, base: int, skip: int, want: int
) -> tuple[bytes, int, int, int]:
    """Where messages begin in batches that are read piece by piece: (index, at, remaining, skip).

    `at` is where the next frame lies, or the next batch header when `remaining` is 0. Walks the frames and
    headers that begin before `end`; they may end behind it. The index is a big-endian u32 for each frame,
    counted from `base` before the data. The first `skip` frames have none, and the index stops after `want`.

    The caller goes on with the values returned; `at` counts in the same data, and lies mostly behind their
    end. An `at` of -1 means that these are not batches.
    """
    index = bytearray()
    end = min(end, len(data))
    while at < end and want > 0:
        if remaining == 0:
            if len(data) - at < HEADER.size:
                return bytes(index), -1, 0, skip
            magic, _, length, remaining, _, _, _, _ = HEADER.unpack_from(data, at)
            if magic != MAGIC or remaining == 0 or remaining > length // 34:
                return bytes(index), -1, 0, skip
            at += HEADER.size
            continue
        if len(data) - at < 4:
            return bytes(index), -1, 0, skip
        size = 4 + _U32.unpack_from(data, at)[0]
        if size < 34:
            return bytes(index), -1, 0, skip
        if skip:
            skip -= 1
        else:
            index += _U32.pack((base + at) & 0xFFFFFFFF)
            want -= 1
        at += size
        remaining -= 1
    return bytes(index), at, remaining, skip


# ---- blocks of records


class BlockWriter:
    """Lays records out as a block, until `take` hands the bytes over. `size` is the bytes of the records."""

    __slots__ = ("_block", "size")

    def __init__(self, magic: bytes) -> None:
        if len(magic) != 4:
            raise ValueError(f"a magic of {len(magic)} bytes")
        self._block = bytearray(BLOCK.pack(magic, 0, 0))
        self.size = 0

    def add(self, record: bytes) -> None:
        self._block += record
        self.size += len(record)

    def add_range(self, letter: bytes, number: int, start: int, count: int) -> None:
        """Add a record about the `count` positions from `start` on (see RANGE)."""
        if len(letter) != 1:
            raise ValueError(f"{letter!r} is not one letter")
        self.add(RANGE.pack(letter, number, start, count))

    def take(self) -> bytes:
        """The records added since the last call, as a block."""
        block = self._block
        _U32.pack_into(block, 8, self.size)
        _U32.pack_into(block, 4, crc32c(block, 8, len(block)))
        taken = bytes(block)
        self.drop()
        return taken

    def drop(self) -> None:
        """Forget the records added since the last call of `take`."""
        del self._block[BLOCK.size :]
        self.size = 0


# ---- columns: messages of batches in Arrow's layout

_COLUMN_OFFSETS = struct.Struct("<i")
_COLUMN_NUMBER = struct.Struct("<q")


def decode_batches(
    data: Buffer, first: int, count: int, bodies: bool, times: bool, ids: bool
) -> tuple[bytes, Buffer, bytes, bytes]:
    """`count` messages from position `first` on, column by column: (offsets, bodies, times, ids).

    `data` is batches that follow each other, from the one that holds `first` on. The offsets, i32, say where
    each body begins and ends in `bodies`; there is one more of them than messages. The times are i64,
    microseconds since the epoch. The ids have 16 bytes each. All is little-endian, as Arrow has it. A column
    that is not asked for is empty.
    Raises ValueError if those messages are not there, or have 2 GiB of bodies or more.
    """
    if not 0 <= count <= len(data) // FRAME.size:
        raise ValueError(f"too little for {count} messages")
    offsets, stamps, names = bytearray(), bytearray(), bytearray()
    pieces: list[Buffer] = []
    number = at = stop = remaining = skip = total = 0
    while number < count:
        bad = ValueError(f"no message at {at}")
        if remaining == 0:
            if at != stop or len(data) - at < HEADER.size:
                raise bad
            magic, _, length, remaining, position, _, _, _ = HEADER.unpack_from(data, at)
            if magic != MAGIC or length < HEADER.size or len(data) - at < length:
                raise bad
            skip = first + number - position
            if not 0 <= skip < remaining or (number and skip):
                raise bad
            stop = at + length
            at += HEADER.size
            continue
        if stop - at < FRAME.size:
            raise bad
        size, kind, time, _, name = FRAME.unpack_from(data, at)
        if size < 30 or kind != 2 or stop - at - 4 < size:
            raise bad
        body = data[at + FRAME.size : at + 4 + size]
        at += 4 + size
        remaining -= 1
        if skip:
            skip -= 1
            continue
        if bodies:
            if total + len(body) > 0x7FFFFFFF:
                raise bad
            offsets += _COLUMN_OFFSETS.pack(total)
            pieces.append(body)
            total += len(body)
        if times:
            stamps += _COLUMN_NUMBER.pack(time // 1000)
        if ids:
            names += name
        number += 1
    if remaining == 0 and at != stop:  # nor behind the last message of a batch
        raise ValueError(f"no message at {at}")
    if bodies:
        offsets += _COLUMN_OFFSETS.pack(total)
    return bytes(offsets), b"".join(pieces), bytes(stamps), bytes(names)


def count_column(first: int, count: int) -> bytes:
    """The numbers from `first` on as a column of i64."""
    return struct.pack(f"<{count}q", *range(first, first + count))


def stride_column(stride: int, count: int) -> bytes:
    """The offsets of `count` values that are all `stride` long: a column of i32, one more than values."""
    return struct.pack(f"<{count + 1}i", *range(0, stride * count + 1, stride))


# ---- the other end of the wire: what a client reads and writes


class Delivery:
    """A message as a client got it: the fields of the frame, the `source` it came from, and a time `stamp`.

    The client sets `answered` when it answers the message. One that is freed unanswered calls `dropped`.
    """

    __slots__ = ("answered", "attempts", "body", "id", "source", "stamp", "timestamp_ns")

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes
    source: Any
    stamp: float
    answered: bool

    def __new__(cls) -> Self:
        new = super().__new__(cls)
        new.timestamp_ns = new.attempts = 0
        new.id = new.body = b""
        new.source = None
        new.stamp = 0.0
        new.answered = True  # there is nothing to answer before the fields are set
        return new

    def dropped(self) -> None:
        """Called when there is no reference to the message any more, and it has not been answered."""

    def __del__(self) -> None:
        if not self.answered:
            self.dropped()


_DELIVERY = TypeVar("_DELIVERY", bound=Delivery)


def read_messages(
    data: Buffer, start: int, end: int, kind: type[_DELIVERY], source: Any, stamp: float
) -> tuple[int, list[_DELIVERY]]:
    """The run of whole message frames at `start`, each as a `kind`: where it ends, and the messages.

    Anything else ends the run: a frame of another type, one that is cut off, one too short for a message.
    """
    messages = []
    while end - start >= FRAME.size:
        size, frame_type, timestamp, attempts, message_id = FRAME.unpack_from(data, start)
        if frame_type != 2 or size < 30 or end - start - 4 < size:
            break
        message = kind()
        message.timestamp_ns = timestamp
        message.attempts = attempts
        message.id = message_id
        message.body = bytes(data[start + FRAME.size : start + 4 + size])
        message.source = source
        message.stamp = stamp
        message.answered = False
        messages.append(message)
        start += 4 + size
    return start, messages


_OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"


def scan_oks(data: Buffer, start: int, end: int) -> tuple[int, int]:
    """The run of `OK` frames at `start`: where it ends, and how many there are."""
    count = 0
    while end - start >= len(_OK) and data[start : start + len(_OK)] == _OK:
        start += len(_OK)
        count += 1
    return start, count


def pack_mpub(head: bytes, bodies: Sequence[Buffer], max_msg_size: int) -> tuple[int, bytes]:
    """A whole MPUB command behind its line `head`: (-1, command).

    (index, b"") if the message there is empty or longer than `max_msg_size`.
    """
    pieces = [b"", b"", _U32.pack(len(bodies))]
    for index, body in enumerate(bodies):
        size = memoryview(body).nbytes
        if not 0 < size <= max_msg_size:
            return index, b""
        pieces += (_U32.pack(size), bytes(body))
    pieces[0] = head
    pieces[1] = _U32.pack(sum(map(len, pieces)) - len(head))
    return -1, b"".join(pieces)


# ---- from Arrow to the wire
#
# A column of bodies is a buffer of bytes and a buffer of offsets: int32 or int64 by `width`, in the machine's
# byte order. Body n lies from offset n to offset n + 1.


def _offset(offsets: Buffer, width: int, index: int, size: int) -> int:
    at = index * width
    if at < 0 or at + width > len(offsets):
        raise ValueError("a row beyond the offsets")
    offset = int.from_bytes(offsets[at : at + width], sys.byteorder, signed=True)
    if not 0 <= offset <= size:
        raise ValueError("an offset beyond the data")
    return offset


def lay_mpub(
    head: bytes, data: Buffer, offsets: Buffer, width: int, first: int, last: int, max_bytes: int
) -> tuple[bytes, int]:
    """The bodies from row `first` on as an MPUB body, and the next row.

    The MPUB body has at most `max_bytes`, or a single message. With a `head`, the command's line, the result
    is the whole command. An empty body ends it, since NSQ does not accept one: if row `first` is empty,
    nothing is laid out, and the next row is `first`.
    """
    pieces: list[bytes] = []
    total, row = 4, first
    while row < last:
        begin = _offset(offsets, width, row, len(data))
        end = _offset(offsets, width, row + 1, len(data))
        if end < begin:
            raise ValueError("an offset beyond the data")
        if begin == end or (pieces and total + 4 + end - begin > max_bytes):
            break
        pieces += [_U32.pack(end - begin), bytes(data[begin:end])]
        total += 4 + end - begin
        row += 1
    if row == first:
        return b"", first
    sized = head + _U32.pack(total) if head else b""
    return b"".join([sized, _U32.pack(row - first), *pieces]), row


def lay_dpubs(
    name: bytes,
    data: Buffer,
    offsets: Buffer,
    width: int,
    defers: Buffer,
    first: int,
    last: int,
    max_bytes: int,
) -> tuple[bytes, int]:
    """The same as DPUB commands to `name`. Each has its row's milliseconds of `defers`, which are int64."""
    pieces: list[bytes] = []
    total, row = 0, first
    while row < last:
        begin = _offset(offsets, width, row, len(data))
        end = _offset(offsets, width, row + 1, len(data))
        if end < begin:
            raise ValueError("an offset beyond the data")
        if row < 0 or row * 8 + 8 > len(defers):
            raise ValueError("a row beyond the offsets")
        defer = int.from_bytes(defers[row * 8 : row * 8 + 8], sys.byteorder, signed=True)
        command = b"DPUB %b %d\n%b" % (name, defer, _U32.pack(end - begin))
        if begin == end or (pieces and total + len(command) + end - begin > max_bytes):
            break
        pieces += [command, bytes(data[begin:end])]
        total += len(command) + end - begin
        row += 1
    return b"".join(pieces), row
