"""The kernel in plain Python: the specification of `fast`, and what runs where there is no compiler.

Offsets count bytes in the given buffer, which belongs to the caller; nothing here keeps a reference to it,
except that `gather` may return a slice.

A message frame, as it goes on the wire and lies in the log:

    0       4       8          16         18           34
    | u32   | u32   | i64      | u16      | 16 ASCII   | ...
    | size  | 2     | time, ns | attempts | message id | body        size = 30 + len(body)

A batch of the log:

    0       4       8        12      16         24         32         40        48
    | NQB1  | u32   | u32    | u32   | u64      | u64      | i64      | i64     | ...
    | magic | crc   | length | count | position | first id | time, ns | due, ns | frames

`crc` is the CRC-32C of everything behind it, `length` that of the whole batch, `due` 0 unless deferred. The
n-th message of a batch has position `position + n` and id `first id + n`.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from typing import Any, Self, TypeVar

Buffer = bytes | bytearray | memoryview

MAGIC = b"NQB1"
HEADER = struct.Struct(">4sIIIQQqq")
FRAME = struct.Struct(">IIqH16s")
_U32 = struct.Struct(">I")
_FRAME_START = struct.Struct(">IIq")
_I32 = struct.Struct(">i")
_FIN_LENGTH = 21
_HEX = frozenset(b"0123456789abcdef")
SLICE_FROM = 4096  # gather() copies runs shorter than this and slices longer ones

# what scan_mpub says of an MPUB body
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


def scan_pubs(data: Buffer, start: int, end: int, max_size: int) -> tuple[int, int, int]:
    """The run of complete `PUB` commands at `start` that share one command line.

    Returns where it ends, how many there are, and the length of the line with its line feed. A count of 0
    says that the command at `start` is not a complete PUB of acceptable size and a short plain line.
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

    COMPLETE: the body ends at `stop` and has `number` messages. SHORT: the data end within message `number`,
    which begins at `stop`; `value` says in which part. To go on when there is more, pass `number` as `index`
    and `stop - start` as `offset`, which are 0 at first. BAD_COUNT and TOO_BIG, BODY_TOO_BIG: `value` is the
    offending number; BAD_SIZE: `value` is the size of message `number`.
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


class BatchWriter:
    """Lays published messages out as batches of frames, until `take` hands the bytes over.

    Numbers the messages: `position` and `next_id` are those of the next one; `ids_left` is for the use of
    whoever gives ids out. Messages with one due time share a batch; another due time begins the next.
    """

    def __init__(self, position: int, next_id: int) -> None:
        self.position = position
        self.next_id = next_id
        self.ids_left = 0
        self.count = 0
        self.body_bytes = 0
        self._data = bytearray()
        self._batch = -1
        self._due = 0

    @property
    def size(self) -> int:
        return len(self._data)

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
        """Number from here on with these: at a new block of ids, or after a failed write."""
        self._seal()
        self.position = position
        self.next_id = next_id

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

    def take(self) -> bytes:
        """Everything added since the last call, as whole batches."""
        self._seal()
        data = bytes(self._data)
        self._data.clear()
        self.count = self.body_bytes = 0
        return data


def gather(
    data: Buffer, start: int, end: int, remaining: int, want: int, max_bytes: int
) -> tuple[Buffer, int, int, int, int]:
    """The next message frames of a piece of log, without the batch headers between them.

    `start` is at a frame of a batch with `remaining` messages to go, or at a header when that is 0. Takes at
    most `want` messages and (after the first) at most `max_bytes`, and stops where the data end, at a
    deferred batch, and where ids do not follow each other.
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
            if magic != MAGIC or due or number == 0 or (expected >= 0 and first_id != expected):
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


def _skip_frames(data: Buffer, start: int, end: int, count: int) -> int:
    """The offset behind `count` frames, or -1 when the data do not reach so far."""
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
    """When these whole frames, from `first_id` on, were published: (id, timestamp) at each change."""
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
    that is not whole or (with `verify`) fails its CRC. `needed` is how many bytes from `stop` would be needed
    to judge that batch: 0 when it is plainly wrong, 48 or its length when it is cut off.
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
    batch to go, or that of the header with 0 for the first message of a batch. An offset of -1 says that it
    is not there; `needed` is then how many bytes from `start` would get further, 0 if none would.
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
    """Where messages begin in a piece of log that is read piece by piece: (index, at, remaining, skip).

    `at` is where the next frame lies, or the next batch header when `remaining` is 0; everything before `end`
    is walked, headers and sizes that begin there may lie behind it. The index is a big-endian u32 for each
    frame, counted from `base` before the data; the first `skip` frames have none, and it stops after `want`.
    What is returned is how to go on, with `at` counted in the same data, mostly behind them. An `at` of -1
    says that this is no log.
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


# ---- columns: a range of the log as Arrow wants it

_COLUMN_OFFSETS = struct.Struct("<i")
_COLUMN_NUMBER = struct.Struct("<q")


def decode_batches(
    data: Buffer, first: int, count: int, bodies: bool, times: bool, ids: bool
) -> tuple[bytes, Buffer, bytes, bytes]:
    """`count` messages from position `first` on, column by column: (offsets, bodies, times, ids).

    `data` is batches that follow each other, from the one that holds `first` on. Offsets are one more than
    messages, i32, and say where each body begins and ends in `bodies`; times are i64, microseconds since the
    epoch; ids have 16 bytes each. Little-endian, as Arrow has it; what is not asked for is empty.
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
    """A message as a client got it: what was in the frame, who it came through, and when.

    `answered` is set by whoever answers it; one that is let go unanswered says so by `dropped`.
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
        new.answered = True  # nothing to answer before there is a message
        return new

    def dropped(self) -> None:
        """Called when nobody holds it any more and nobody has answered it."""

    def __del__(self) -> None:
        if not self.answered:
            self.dropped()


_DELIVERY = TypeVar("_DELIVERY", bound=Delivery)


def read_messages(
    data: Buffer, start: int, end: int, kind: type[_DELIVERY], source: Any, stamp: float
) -> tuple[int, list[_DELIVERY]]:
    """The run of whole message frames at `start`, each as a `kind`: where it ends, and the messages.

    Anything else ends the run: a frame of another type, one cut off, one too short for a message.
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
# A column of bodies is a buffer of bytes and one of offsets, int32 or int64 by `width`, in the machine's
# order: body n lies from offset n to offset n + 1.


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

    The body has at most `max_bytes`, or a single message. With a `head`, the command's line, it is the whole
    command. An empty body ends it, since NSQ takes none: nothing is laid out, and the next row is `first`,
    when that is the empty one.
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
    topic: bytes,
    data: Buffer,
    offsets: Buffer,
    width: int,
    defers: Buffer,
    first: int,
    last: int,
    max_bytes: int,
) -> tuple[bytes, int]:
    """The same as DPUB commands, each with its row's milliseconds of `defers`, which are int64."""
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
        command = b"DPUB %b %d\n%b" % (topic, defer, _U32.pack(end - begin))
        if begin == end or (pieces and total + len(command) + end - begin > max_bytes):
            break
        pieces += [command, bytes(data[begin:end])]
        total += len(command) + end - begin
        row += 1
    return b"".join(pieces), row
