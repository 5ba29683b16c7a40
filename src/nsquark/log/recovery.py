"""Finds the whole batches of a segment's file, and the damage between them. Changes nothing.

A batch whose magic, length, position or CRC is wrong is damaged. Two witnesses say where the next batch
begins: the length in the damaged header, and the sizes of its frames, walked from one to the next. If the CRC
fits the end of the frames, the length alone is damaged. If both witnesses fail, the file is searched for the
magic. Clients choose the bodies, so a body may hold the bytes of a whole batch with a right CRC. Therefore a
batch that a search finds must have a position that can follow. If there are several, the one is taken that
follows the damaged header's own count and from which whole batches reach to the end of the file.

Damage that was found before is not judged again: its record says where the log goes on. Otherwise a start
could decide in another way than the start before it, on which consumers and the journal have relied.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from nsquark import kernel
from nsquark.errors import UnknownVersion
from nsquark.kernel.pure import FRAME, HEADER, MAGIC

from .damage import Damage

_PREFIX = MAGIC[:3]
_LENGTH, _LENGTH_AT = struct.Struct(">I"), 8  # of a batch, and where it is in the header
_MAX_JUMP = 1 << 32  # positions that a single file can lose: it would have 140 GB
_SEARCHED = 16  # a search gives up after checking this many times the bytes that are left of a file
_LEAST_SEARCHED = 1 << 20  # bytes that a search may check in a file that is shorter than that
_GLANCE = 1024  # looking at a header counts as checking this many bytes


@dataclass(slots=True)
class Piece:
    """Whole batches that follow each other: the bytes [start, stop) and the positions [base, end)."""

    start: int
    base: int
    stop: int
    end: int
    marks: list[tuple[int, int]] = field(default_factory=list)  # (position, offset) of some batches


@dataclass(slots=True)
class Survey:
    pieces: list[Piece]
    damages: list[Damage]
    deferred: list[kernel.Batch]
    whole: int  # the offset at which the last whole batch ends
    end: int  # the position behind that batch
    exhausted: bool = False  # the search has given up: there may be whole batches behind the last one found


class _Head(NamedTuple):
    magic: bytes
    crc: int
    length: int
    messages: int
    position: int
    first_id: int
    time: int
    due: int


class _Found(NamedTuple):
    """A whole batch."""

    offset: int
    length: int
    position: int
    messages: int


def survey(
    fd: int,
    name: str,
    start: int,
    size: int,
    base: int,
    bound: int | None,
    window: int,
    stride: int,
    known: Iterable[Damage] = (),
) -> Survey:
    """Walk the bytes [start, size) of a file, which begin with position `base`, and check all of them.

    All positions are below `bound`, where the next file begins; None for the newest file. `known` is the
    damage of which there are records. Raises OSError, and UnknownVersion where a batch of another version
    begins.
    """
    return _Walk(fd, name, size, bound, window, stride, known).run(start, base)


class _Walk:
    def __init__(
        self,
        fd: int,
        name: str,
        size: int,
        bound: int | None,
        window: int,
        stride: int,
        known: Iterable[Damage],
    ) -> None:
        self._fd = fd
        self._name = name
        self._size = size
        self._bound = bound
        self._window = window
        self._stride = stride
        self._known = {(each.offset, each.first): each for each in known}
        self._allowance = 0  # bytes that a search may still check
        self.exhausted = False  # a search has given up before the end of the file

    def run(self, start: int, base: int) -> Survey:
        piece = Piece(start, base, start, base)
        found = Survey([], [], [], start, base)
        while True:
            self._walk(piece, found)
            found.whole, found.end = piece.stop, piece.end
            if piece.stop > piece.start:
                found.pieces.append(piece)
            if piece.stop >= self._size:
                return found
            following = self._following(piece.stop, piece.end)
            if following is None:
                found.exhausted = self.exhausted
                return found
            found.damages.append(
                Damage(piece.stop, following.offset - piece.stop, piece.end, following.position)
            )
            piece = Piece(following.offset, following.position, following.offset, following.position)

    def _walk(self, piece: Piece, found: Survey) -> None:
        """Go on over whole batches to the first that is not whole, or does not follow."""
        window = self._window
        while piece.stop < self._size:
            data = self._read(piece.stop, window)
            stop, needed, marks, last = kernel.scan_batches(data, 0, len(data), True, self._stride)
            if marks and marks[0][3] != piece.end:
                return
            if last is not None and not self._fits(
                last[3], last[2]
            ):  # take them one by one, as long as they do
                stop, needed, marks, last = kernel.scan_batches(data, 0, marks[0][1], True, self._stride)
                if last is None or not self._fits(last[3], last[2]):
                    return
            for mark in marks:
                piece.marks.append((mark[3], piece.stop + mark[0]))
                if mark[6]:
                    found.deferred.append(mark)
            if last is not None:
                piece.end = last[3] + last[2]
            piece.stop += stop
            if not needed or piece.stop + needed > self._size or not data:
                return
            window = max(self._window, needed)

    def _fits(self, position: int, count: int) -> bool:
        return self._bound is None or position + count <= self._bound

    # ---- behind damage

    def _following(self, offset: int, expected: int) -> _Found | None:
        """The batch with which the log goes on behind the damage at `offset`; None if there is none.

        `expected` is the position that the damaged batch would have.
        """
        known = self._known.get((offset, expected))
        if known is not None and known.end is not None:
            following = self._whole_at(offset + known.length, known.end)
            if following is not None and following.position == known.end:
                return following
        self._check_version(offset)
        head = self._head(offset)
        if head is None:
            return None
        here = self._whole_at(offset, expected)
        if here is not None:  # a whole batch: something before it is missing
            return here
        by_frames, torn, frames = self._walk_frames(offset + HEADER.size)
        length = head.length
        if frames == head.messages and offset + length != by_frames:
            if self._fits_up_to(by_frames, offset, head):
                length = by_frames - offset  # nothing else of the batch is damaged
        # The header is believed about its count if its position is the expected one.
        intact = head.position == expected and 0 < head.messages <= length // 34
        exact = expected + head.messages if intact else None
        least = expected + 1 if intact or head.magic == MAGIC else expected
        by_length = offset + length if length >= HEADER.size + 34 else -1
        if by_frames == self._size or (intact and by_length == self._size):
            return self._behind_the_last(by_length, exact)
        told = []
        for each in dict.fromkeys((by_frames, by_length)):
            if offset < each < self._size:
                self._check_version(each)
                batch = self._whole_at(each, least)
                if batch is not None:
                    told.append(batch)
        if told:
            best = self._best(told, exact)
            if best is None or exact is None or best.position == exact:
                return best
            # Bytes are missing, so the length in the header leads past whole batches that reach to there.
            skipped = self._search(offset, least, best.offset)
            before = (each for each in skipped if each.offset < best.offset < self._run(each).stop)
            return next(before, best)
        # A batch whose write was cut short: what is found in there is in a body, unless whole batches go on
        # from it to the end of the file, to the byte.
        last = intact and torn and by_length > self._size
        limit = offset + 2 * length + self._window
        found = self._search(offset, least, limit if intact else offset)
        if last and exact is not None:
            found = self._before_the_end([each for each in found if each.position >= exact])
        return self._best(found, exact)

    def _fits_up_to(self, end: int, offset: int, head: _Head) -> bool:
        """Whether the CRC of a batch is right if the batch ends there: then its length alone is damaged."""
        data = bytearray(self._read(offset, end - offset))
        if head.magic != MAGIC or len(data) < HEADER.size + FRAME.size:
            return False
        _LENGTH.pack_into(data, _LENGTH_AT, len(data))
        return kernel.crc32c(data, _LENGTH_AT, len(data)) == head.crc

    def _behind_the_last(self, by_length: int, exact: int | None) -> _Found | None:
        """What follows on the last batch: nothing, and whatever lies in it is in a body.

        It is not the last where its header leads to the very next batch: then its frames are damaged, and
        lead to the end of the file by chance.
        """
        if exact is None or not 0 < by_length < self._size:
            return None
        batch = self._whole_at(by_length, exact)
        return batch if batch is not None and batch.position == exact else None

    def _before_the_end(self, found: list[_Found]) -> list[_Found]:
        """The first of them from which whole batches reach the end, and those that can come before it.

        That one says that the log went on. So the others count as anywhere else, if their positions fit.
        """
        end = next((each for each in found if self._reaches_end(each)), None)
        if end is None:
            return []
        before = [each for each in found if each.offset < end.offset]
        return [*(each for each in before if self._run(each).end <= end.position), end]

    def _best(self, found: list[_Found], exact: int | None) -> _Found | None:
        """The batch that follows exactly and from which whole batches reach the end, or the next best."""
        following = [each for each in found if each.position == exact] or found[:1]
        if len(following) < 2:
            return following[0] if following else None
        return min(following, key=lambda each: not self._reaches_end(each))

    def _walk_frames(self, at: int) -> tuple[int, bool, int]:
        """Where these frames end, whether another goes beyond the end of the file, and their number."""
        data, start = b"", at
        number = 0
        while True:
            if at + FRAME.size > start + len(data):
                data, start = self._read(at, self._window), at
            if len(data) < at - start + FRAME.size:
                return at, self._size > at, number
            size, kind, _, _, _ = FRAME.unpack_from(data, at - start)
            if kind != 2 or size < 30:
                return at, False, number
            if at + 4 + size > self._size:
                return at, True, number
            at += 4 + size
            number += 1

    def _search(self, offset: int, least: int, limit: int) -> list[_Found]:
        """The first whole batch behind `offset`, and the others up to `limit`, one of each run of them."""
        self._allowance = max(_SEARCHED * (self._size - offset), _LEAST_SEARCHED)
        found: list[_Found] = []
        for batch in self._candidates(offset + 1, least):
            found.append(batch)
            if batch.offset > limit:
                break
        self.exhausted = self.exhausted or (not found and self._allowance <= 0)
        return found

    def _candidates(self, at: int, least: int) -> Iterator[_Found]:
        most = least + _MAX_JUMP if self._bound is None else self._bound
        plausible = _header_between(least, max(least, most))
        while at < self._size and self._allowance > 0:
            data = self._read(at, self._window)
            jump = at + max(1, len(data) - HEADER.size + 1)
            match = plausible.search(data)
            while match is not None and self._allowance > 0:
                self._allowance -= _GLANCE
                batch = self._whole_at(at + match.start(), least)
                begin = match.start() + 1
                if batch is not None:
                    yield batch
                    end = self._run(batch).stop  # what lies before need not be searched again
                    begin, jump = end - at, max(jump, end)
                match = plausible.search(data, begin) if begin < len(data) else None
            at = jump

    def _run(self, batch: _Found) -> Piece:
        """The run of whole batches that begins with this one."""
        piece = Piece(batch.offset, batch.position, batch.offset, batch.position)
        self._walk(piece, Survey([], [], [], 0, 0))
        self._allowance -= piece.stop - piece.start
        return piece

    def _reaches_end(self, batch: _Found) -> bool:
        return self._run(batch).stop >= self._size

    def _head(self, offset: int) -> _Head | None:
        data = self._read(offset, HEADER.size)
        return _Head(*HEADER.unpack(data)) if len(data) == HEADER.size else None

    def _whole_at(self, offset: int, least: int) -> _Found | None:
        """The batch that begins there, if every byte of it is right and its position can follow."""
        head = self._head(offset)
        if head is None or head.magic != MAGIC or head.length < HEADER.size + 34:
            return None
        if not 0 < head.messages <= head.length // 34 or offset + head.length > self._size:
            return None
        most = least + _MAX_JUMP if self._bound is None else self._bound - head.messages
        if not least <= head.position <= most:
            return None
        self._allowance -= head.length
        data = self._read(offset, head.length)
        if len(data) < head.length or kernel.crc32c(data, 8, head.length) != head.crc:
            return None
        frames = kernel.frame_ends(memoryview(data)[HEADER.size :])
        if len(frames) != head.messages or frames[-1] != head.length - HEADER.size:
            return None
        return _Found(offset, head.length, head.position, head.messages)

    def _check_version(self, offset: int) -> None:
        magic = self._read(offset, len(MAGIC))
        check_magic(self._name, offset, magic)

    def _read(self, offset: int, size: int) -> bytes:
        return os.pread(self._fd, max(0, min(size, self._size - offset)), offset)


def _header_between(least: int, most: int) -> re.Pattern[bytes]:
    """Matches the magic, and the leading bytes that all positions from `least` to `most` have in common.

    A body may be full of magics. This pattern leaves few of them to be looked at one by one.
    """
    low, high = least.to_bytes(8, "big"), most.to_bytes(8, "big")
    same = next((at for at in range(8) if low[at] != high[at]), 8)
    return re.compile(re.escape(MAGIC) + b".{12}" + re.escape(low[:same]), re.DOTALL)


def check_magic(name: str, offset: int, magic: bytes) -> None:
    """Raises UnknownVersion if this is how a batch of another version begins."""
    if magic[:3] == _PREFIX and magic[3:4].isdigit() and magic != MAGIC:
        shown = magic.decode("ascii")
        raise UnknownVersion(name, f"has a batch of format {shown} at offset {offset}, not {MAGIC.decode()}")
