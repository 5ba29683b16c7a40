"""Frames as their sender packs them, fed whole, in pieces and damaged."""

import struct

import pytest

from nsquark.kernel import crc32c
from nsquark.nsqd.replica.changes.frames import (
    APPEND,
    BATCHES,
    CREATE,
    HANDOVER,
    HEAD,
    MAX_FRAME,
    MAX_SEQUENCE,
    PUT,
    RENAME,
    BadFrame,
    Frame,
    FrameParser,
    Operation,
    is_copied,
    pack_answer,
    pack_frame,
    parse_answers,
)

SEGMENT = "topics/t/00000000000000000000.log"
FRAMES = [
    Frame(3, 7, [Operation(BATCHES, SEGMENT, 4096, b"batch" * 50), Operation(PUT, "nsqd.dat", 0, b"{}")]),
    Frame(3, 7, []),
    Frame(
        3,
        8,
        [
            Operation(CREATE, "topics/t/journal.1"),
            Operation(APPEND, "topics/t/journal.1", 0, b"block"),
            Operation(RENAME, "topics/t", 0, "topics/ü".encode()),
        ],
    ),
    Frame(3, 8, [Operation(HANDOVER, "")]),
]
WIRE = b"".join(pack_frame(each.term, each.sequence, each.operations) for each in FRAMES)


def plain(frames: list[Frame]) -> list[Frame]:
    return [
        Frame(
            frame.term,
            frame.sequence,
            [Operation(each.letter, each.path, each.offset, bytes(each.data)) for each in frame.operations],
        )
        for frame in frames
    ]


@pytest.mark.parametrize("step", [1, 3, HEAD.size - 1, HEAD.size, 100, len(WIRE)])
def test_frames_are_the_same_however_they_arrive(step: int) -> None:
    parser = FrameParser()
    found: list[Frame] = []
    for at in range(0, len(WIRE), step):
        found += parser.feed(WIRE[at : at + step])
    assert plain(found) == FRAMES


def test_a_flipped_bit_outside_of_batches_is_found() -> None:
    """Batches have checksums of their own, which the one that stores them checks."""
    frame = WIRE[: int.from_bytes(WIRE[8:12], "big")]
    batch = frame.index(b"batch")
    for at in range(len(frame)):
        damaged = bytearray(frame)
        damaged[at] ^= 4
        if batch <= at < batch + 250:
            assert len(list(FrameParser().feed(bytes(damaged)))) == 1
            continue
        parser = FrameParser()
        try:
            assert list(parser.feed(bytes(damaged))) == []  # a length that is larger: more is waited for
        except BadFrame:
            continue
        assert 8 <= at < 12


@pytest.mark.parametrize("length", [0, HEAD.size - 1, MAX_FRAME + 1, (1 << 32) - 1])
def test_no_memory_is_kept_for_a_length_that_no_frame_has(length: int) -> None:
    with pytest.raises(BadFrame):
        list(FrameParser().feed(HEAD.pack(b"NQF1", 0, length, 1, 1)))


def test_a_sequence_that_no_primary_reaches_is_refused() -> None:
    assert FrameParser().feed(pack_frame(1, MAX_SEQUENCE, [])) == [Frame(1, MAX_SEQUENCE, [])]
    head = HEAD.pack(b"NQF1", 0, HEAD.size, 1, MAX_SEQUENCE + 1)
    crc = crc32c(head, 8, HEAD.size)
    with pytest.raises(BadFrame, match="no frame"):
        FrameParser().feed(head[:4] + struct.pack(">I", crc) + head[8:])


def test_a_head_in_pieces_that_no_primary_sends_is_refused_at_once() -> None:
    head = HEAD.pack(b"NQF1", 0, MAX_FRAME, 1, MAX_SEQUENCE + 1)
    parser = FrameParser()
    assert parser.feed(head[:-1]) == []
    with pytest.raises(BadFrame, match="no frame"):
        parser.feed(head[-1:])


def signed(operation: bytes) -> bytes:
    """A frame of one operation with a right CRC, whatever the operation is."""
    checked = struct.pack(">IIQ", HEAD.size + len(operation), 1, 1) + operation
    return struct.pack(">4sI", b"NQF1", crc32c(checked, 0, len(checked))) + checked


def operation(letter: bytes, path: bytes, size: int | None = None, data: bytes = b"") -> bytes:
    length = len(data) if size is None else size
    return struct.pack(">cH", letter, len(path)) + path + struct.pack(">QI", 0, length) + data


@pytest.mark.parametrize(
    "path",
    [
        b"", b"/etc/passwd", b"../nsqd.dat", b"topics/../../x", b"topics/./x", b"topics//x", b"topics",
        b"nsquark.member", b"topics/t/\0", b"topics/t/x.doubt", b"other/x", b"topics/\xff",
    ],
)  # fmt: skip
def test_a_path_outside_of_the_copy_is_refused(path: bytes) -> None:
    with pytest.raises(BadFrame):
        list(FrameParser().feed(signed(operation(b"P", path))))


@pytest.mark.parametrize(
    "bad",
    [
        operation(b"X", b"nsqd.dat"),
        operation(b"P", b"nsqd.dat", size=1),
        operation(b"P", b"nsqd.dat", size=(1 << 32) - 1),
        operation(b"P", b"nsqd.dat", data=b"{}")[:-3],
        b"P",
    ],
)
def test_an_operation_that_does_not_fit_its_frame_is_refused(bad: bytes) -> None:
    with pytest.raises(BadFrame):
        list(FrameParser().feed(signed(bad)))


def test_what_belongs_to_a_copy() -> None:
    assert is_copied("nsqd.dat")
    assert is_copied(SEGMENT)
    assert is_copied("staged/app/1")
    assert not is_copied("nsquark.member")
    assert not is_copied("topics/t/x.tmp")


def test_the_last_of_many_answers_counts_and_half_an_answer_waits() -> None:
    buffer = bytearray(pack_answer(3, 7, 5) + pack_answer(3, 9, 9) + pack_answer(3, 10, 9)[:-1])
    assert parse_answers(buffer) == (3, 9, 9)
    assert parse_answers(buffer) is None
    buffer += b"\x09"
    assert parse_answers(buffer) == (3, 10, 9)
    assert not buffer


@pytest.mark.parametrize("answer", [b"NQA2" + bytes(20), pack_answer(1, 5, 6)])
def test_an_answer_that_cannot_be_is_refused(answer: bytes) -> None:
    with pytest.raises(BadFrame):
        parse_answers(bytearray(answer))
