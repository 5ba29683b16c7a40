"""Opening a log whose file is damaged: what is whole is read, what is not is kept aside, twice the same.

The first byte chooses how much is read at a time, and whether the damaged file is the newest one.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from nsquark import kernel
from nsquark.errors import LogDamaged, UnknownVersion
from nsquark.kernel.pure import HEADER, MAGIC
from nsquark.log import Cursor, Limits, LogReader, Segment, TopicLog, read_messages, records
from reliability.fuzz.target import Target, Wrong, folder, require_same
from tests.log.contents import EVERYTHING, Ids, small_reads, split_frames

LIMITS = Limits(tail_messages=0, max_bytes_per_file=1 << 20)
BOUND = 40  # where the next file begins, if the damaged one is not the newest
_WINDOWS = (100, 500, 1 << 20)


def _contents(log: TopicLog) -> dict[int, bytes]:
    """The frame of every position, as a channel reads them; damage that it meets is left out."""
    cursor = Cursor(log, log.first, whatever_due=True)
    found: dict[int, bytes] = {}
    while True:
        try:
            run = cursor.read(EVERYTHING, EVERYTHING)
        except LogDamaged as error:
            log.leave_out(cast(Segment, error.part))
            cursor.let_go()
            continue
        if run is None:
            return found
        for number, frame in enumerate(split_frames(run.frames)):
            found[run.position + number] = frame


def _open(path: Path) -> tuple[dict[int, bytes], list[tuple[int, int]], int, int]:
    log = TopicLog(path, LIMITS, Ids())
    try:
        found = _contents(log)
        _check_reader(log, found)
        if log.end - log.first < 1000:
            missing = [
                each for each in range(log.first, log.end) if each not in found and each not in log.lost
            ]
            if missing:
                raise Wrong(f"{missing} are neither there nor lost")
        return found, list(log.lost), log.first, log.end
    finally:
        log.close(sync=False)


def _check_reader(log: TopicLog, found: dict[int, bytes]) -> None:
    """A reader of ranges, as /log/read has it, gives what the cursor gave."""
    for start in [position for position in found if position - 1 not in found][:5]:
        reader = LogReader(log, start, log.end, EVERYTHING)
        for message in read_messages(reader):
            require_same("the reader", found.get(message.position), bytes(message.frame))


def _whole_batches(data: bytes) -> list[tuple[int, int, int, int]] | None:
    """(offset, length, position, count) of everything that looks like a whole batch, one within another too.

    None if there is a batch with a right checksum whose frames or ids do not fit: no damage makes that.
    """
    found: list[tuple[int, int, int, int]] = []
    at = -1
    while (at := data.find(MAGIC, at + 1)) >= 0:
        if len(data) - at < HEADER.size:
            break
        _, crc, length, count, position, first_id, _, _ = HEADER.unpack_from(data, at)
        if not HEADER.size <= length <= len(data) - at or kernel.crc32c(data, at + 8, at + length) != crc:
            continue
        frames = data[at + HEADER.size : at + length]
        ends = kernel.frame_ends(frames)
        if not ends or len(ends) != count or ends[-1] != len(frames):
            return None
        for number, begin in enumerate((0, *ends[:-1])):
            if frames[begin + 4 : begin + 8] != b"\0\0\0\2" or position + count >= 1 << 63:
                return None
            if frames[begin + 18 : begin + 34] != b"%016x" % (first_id + number):
                return None
        found.append((at, length, position, count))
    return found


def _must_be_kept(
    data: bytes, found: list[tuple[int, int, int, int]], bound: int | None
) -> list[tuple[int, int, int, int]]:
    """The whole batches of the file, if their places and positions leave no doubt that they are the log's."""
    offset = position = 0
    places, stops = {each[0] for each in found}, {each[0] + each[1] for each in found}
    for at, length, first, count in found:
        least = position + (at > offset and _had_a_position(data, offset, position))
        if at < offset or not least <= first < position + 1000:
            return []
        if at > offset and _may_be_in_a_body(data, offset, at, position, places, stops):
            return []
        if at > offset and _has_that_position(data, offset, at, position, first):
            return []
        offset, position = at + length, first + count
    return [] if bound is not None and position > bound else found


def _had_a_position(data: bytes, offset: int, position: int) -> bool:
    """Whether a damaged batch begins there: by its magic, or by a header that is right about the position."""
    if data.startswith(MAGIC, offset):
        return True
    if len(data) - offset < HEADER.size:
        return False
    _, _, length, count, first, _, _, _ = HEADER.unpack_from(data, offset)
    return bool(first == position and 0 < count <= length // 34)


def _has_that_position(data: bytes, offset: int, at: int, position: int, first: int) -> bool:
    """Whether the damaged batch at `offset` has the position `first` itself, by its count.

    Its count is in doubt where the batch of that position begins right behind it, by its length.
    """
    if len(data) - offset < HEADER.size:
        return False
    _, _, length, count, begin, _, _, _ = HEADER.unpack_from(data, offset)
    return bool(
        begin == position and 0 < count <= length // 34 and first < begin + count and at != offset + length
    )


def _may_be_in_a_body(
    data: bytes, offset: int, at: int, position: int, places: set[int], stops: set[int]
) -> bool:
    """Whether the batch at `at` may be a client's, in a body of the damaged batch at `offset`.

    The damaged batch says so where its frames end with the file, or its length does and its position is
    right. It also does where its length leads beyond the end of the file, as after a write that was cut
    short, and no whole batch ends there. And it does where its length or its frames end behind `at`, where
    another whole batch begins, and its position is not there to contradict.
    """
    if len(data) - offset < HEADER.size:
        return False
    _, _, length, count, first, _, _, _ = HEADER.unpack_from(data, offset)
    by_frames = _frames_end(data, offset + HEADER.size)
    if by_frames == len(data):
        return True
    intact = first == position and 0 < count <= length // 34
    if intact and offset + length == len(data):
        return True
    if intact and offset + length > len(data):
        return len(data) not in stops
    return not intact and any(end > at and end in places for end in (offset + length, by_frames))


def _frames_end(data: bytes, at: int) -> int:
    """Where the frames end that begin at this offset."""
    while at + 34 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] != b"\0\0\0\2" or size < 30 or at + 4 + size > len(data):
            break
        at += 4 + size
    return at


def run(data: bytes) -> object:
    choice, data = (data or b"\0")[0], data[1:]
    window, older = _WINDOWS[choice % 3], choice & 128
    whole = _whole_batches(data)
    if whole is None:
        return "forged"
    expected = _must_be_kept(data, whole, BOUND if older else None)
    with folder() as parent, small_reads(window):
        path = parent / "topic"
        path.mkdir()
        damaged = path / f"{0:020d}.log"
        damaged.write_bytes(data)
        if older:
            (path / f"{BOUND:020d}.log").write_bytes(_batches(BOUND, [[b"newest"]]))
        try:
            first = _open(path)
        except UnknownVersion as error:
            require_same("the file of another version", data, damaged.read_bytes())
            return str(error).replace(str(parent), "")
        names = sorted(each.name for each in path.iterdir())
        again = _open(path)
        require_same("opened again", first, again)
        require_same("the files", names, sorted(each.name for each in path.iterdir()))
        for at, length, position, count in expected:
            frames = split_frames(data[at + HEADER.size : at + length])
            for number in range(count):
                if first[0].get(position + number) != frames[number]:
                    raise Wrong(f"position {position + number} at offset {at} is whole, and is not kept")
        for record in records(path):
            damage = record.damage
            kept = record.path.read_bytes()
            if kept != data[damage.offset : damage.offset + damage.length] and record.file == damaged.name:
                raise Wrong(f"{record} does not keep what was there")
        _append(path, first)
        return first, names


def _append(path: Path, before: tuple[dict[int, bytes], list[tuple[int, int]], int, int]) -> None:
    """The log goes on, and what was there is still there."""
    log = TopicLog(path, LIMITS, Ids(first=9 << 54))
    try:
        log.add_bodies([b"more"], 1, 0)
        log.commit()
        found = _contents(log)
    finally:
        log.close(sync=False)
    require_same("the new message", b"more", found.pop(before[3], b"")[34:])
    require_same("the old messages", before[0], found)


def _batches(position: int, commits: list[list[bytes]], due: int = 0) -> bytes:
    from nsquark.kernel.pure import BatchWriter

    data = b""
    for bodies in commits:
        writer = BatchWriter(position, (5 << 54) + position)
        writer.add_bodies(bodies, 1_700_000_000_000_000_000 + position, due)
        data += writer.take()
        position += len(bodies)
    return data


def repair(data: bytes) -> bytes:
    """Give every batch that ends where another begins, or the file ends, the checksum of its bytes."""
    out, at = bytearray(data), 1
    while (at := out.find(MAGIC, at)) >= 0 and at + HEADER.size <= len(out):
        length = int.from_bytes(out[at + 8 : at + 12], "big")
        if HEADER.size <= length <= len(out) - at:
            out[at + 4 : at + 8] = kernel.crc32c(bytes(out), at + 8, at + length).to_bytes(4, "big")
        at += 4
    return bytes(out)


def seeds() -> list[bytes]:
    plain = _batches(0, [[b"one"], [b"two", b"three" * 10], [b"x"] * 5, [b"last"]])
    deferred = _batches(0, [[b"a", b"b"]]) + _batches(2, [[b"later"]], 1_800_000_000_000_000_000)
    hidden = _batches(0, [[b"body " + _batches(1, [[b"hidden"]])], [b"behind"]])
    return [
        b"\0" + plain,
        b"\1" + deferred + _batches(3, [[b"c"]]),
        b"\2" + hidden,
        b"\x80" + plain,
        b"\x81" + plain + _batches(9, [[b"y"] * 31]),
        b"\2" + plain + plain[:70],
        b"\0" + plain[:60] + bytes(50) + plain[110:],
        b"\2" + plain.replace(b"NQB1", b"NQB2", 1),
        b"\x82",
    ]


TARGET = Target(
    name="segments",
    run=run,
    seeds=seeds,
    modules=(
        "nsquark.log.recovery",
        "nsquark.log.opening",
        "nsquark.log.damage",
        "nsquark.log.segment",
        "nsquark.log.cursor",
        "nsquark.log.reader",
        "nsquark.log.sources",
    ),
    words=(MAGIC, _batches(9, [[b"w"]]), b"\0\0\0\2", b"\0\0\0\x1e", b"\xff\xff\xff\xff", bytes(60)),
    repair=repair,
    max_length=1500,
)
