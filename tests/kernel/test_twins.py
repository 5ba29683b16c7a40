"""The kernel's twins: each against known values, and against each other on whatever bytes there are."""

from __future__ import annotations

import fcntl
import importlib
import itertools
import os
import platform
import random
import socket
import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark import kernel
from nsquark.kernel import pure
from nsquark.kernel.pure import (
    BAD_COUNT,
    BAD_SIZE,
    BODY_TOO_BIG,
    COMPLETE,
    IN_BODY,
    IN_COUNT,
    IN_SIZE,
    SHORT,
    SLICE_FROM,
    TOO_BIG,
)

fast: Any = importlib.import_module("nsquark.kernel.fast") if kernel.COMPILED else None

TWINS = [pure, fast] if fast else [pure]
LAST_ID = 2**64 - 1
HEADER, FRAME = 48, 34

each_twin = pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__.rpartition(".")[2])
agree = pytest.mark.skipif(fast is None, reason="the compiled kernel is not in use")


# ---- known values


@each_twin
@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (b"a", 0xC1D04330),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_crc32c_has_the_values_of_rfc_3720(twin: ModuleType, data: bytes, crc: int) -> None:
    assert twin.crc32c(data, 0, len(data)) == crc
    assert twin.crc32c(b"xx" + data + b"yyy", 2, 2 + len(data)) == crc


@agree
@pytest.mark.parametrize("around", [256, 512, 768, 1024, 3072, 4096])
def test_the_twins_agree_where_another_way_to_sum_begins(around: int) -> None:
    data = random.Random(around).randbytes(around + 9)
    for end in range(around - 8, around + 9):
        assert fast.crc32c(data, 0, end) == pure.crc32c(data, 0, end)


@each_twin
def test_a_batch_is_laid_out_as_documented(twin: ModuleType) -> None:
    writer = twin.BatchWriter(7, 0x1234)
    assert writer.add_bodies([b"one", b"three"], 0x0102030405060708, 0x7000000000000001) == 8
    assert (writer.position, writer.next_id, writer.count) == (9, 0x1236, 2)
    data = writer.take()
    assert data.hex(" ", 4).split(" ", 2)[0] == b"NQB1".hex()
    assert data[8:16].hex() == "0000007c" + "00000002"  # length, count
    assert data[16:24].hex() == "0000000000000007"  # position
    assert data[24:32].hex() == "0000000000001234"  # first id
    assert data[32:40].hex() == "0102030405060708"
    assert data[40:48].hex() == "7000000000000001"
    assert data[48:85] == (
        bytes.fromhex("00000021 00000002 0102030405060708 0001") + b"0000000000001234" + b"one"
    )
    assert data[85:] == (
        bytes.fromhex("00000023 00000002 0102030405060708 0001") + b"0000000000001235" + b"three"
    )
    assert len(data) == 0x7C
    assert int.from_bytes(data[4:8], "big") == pure.crc32c(data, 8, len(data))


@each_twin
def test_fins_that_follow_each_other_make_one_range(twin: ModuleType) -> None:
    data = fins(5, 6, 7, 9, 8, 9) + b"RDY 1\n"
    assert twin.scan_fins(data, 0, len(data)) == (6 * 21, [(5, 8), (9, 10), (8, 10)])


@each_twin
def test_the_last_id_has_an_end_and_no_successor(twin: ModuleType) -> None:
    data = fins(LAST_ID - 1, LAST_ID, 0, 1)
    assert twin.scan_fins(data, 0, len(data)) == (len(data), [(LAST_ID - 1, 2**64), (0, 2)])


@each_twin
def test_the_next_fins_are_those_whose_ids_follow_each_other(twin: ModuleType) -> None:
    data = fins(5, 6, 7, 9) + b"RDY 1\n"
    assert twin.next_fins(data, 0, len(data)) == (5, 3)
    assert twin.next_fins(data, 0, 62) == (5, 2)
    assert twin.next_fins(data, 63, len(data)) == (9, 1)
    assert twin.next_fins(data, 84, len(data)) == twin.next_fins(data, 500, 600) == (0, 0)
    last = fins(LAST_ID - 1, LAST_ID, 0)
    assert twin.next_fins(bytearray(last), 0, 1000) == (LAST_ID - 1, 2)


@each_twin
@pytest.mark.parametrize("first", [0, 0xFFF0, 0xFFFFFFF0, 0x9FFFFFFFF0, 2**63 - 16, 2**64 - 300])
def test_ids_follow_each_other_over_every_digit(twin: ModuleType, first: int) -> None:
    run = range(first, first + 300)
    data = fins(*run)
    assert twin.next_fins(data, 0, len(data)) == (first, 300)
    for number in (0, 1, 8, 9, 10, 14, 15, 16, 17, 255, 256, 298):
        gap = fins(*run[: number + 1], *run[number + 2 :])
        assert twin.next_fins(gap, 0, len(gap)) == (first, number + 1)
        twice = fins(*run[: number + 1], *run[number:])
        assert twin.next_fins(twice, 0, len(twice)) == (first, number + 1)


@each_twin
def test_an_id_has_sixteen_lower_case_hex_digits(twin: ModuleType) -> None:
    """Every byte, in every place of an id, beside digits that are all low or all high."""
    digits = b"0123456789abcdef"
    for place, byte in itertools.product(range(16), range(256)):
        for rest in (b"0", b"f"):
            written = rest * place + bytes([byte]) + rest * (15 - place)
            expected = (int(written, 16), 1) if byte in digits else (0, 0)
            found = twin.next_fins(b"FIN " + written + b"\n", 0, 21)
            assert found == expected, written


@each_twin
def test_what_a_descriptor_does_not_take_is_not_written(twin: ModuleType) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        assert twin.write_some(ours.fileno(), b"one") == 3
        assert twin.write_some(ours.fileno(), memoryview(b"xtwox")[1:4]) == 3
        assert theirs.recv(100) == b"onetwo"
        assert 0 < twin.write_some(ours.fileno(), bytes(16 << 20)) < 16 << 20
        assert twin.write_some(ours.fileno(), b"more") == 0
        theirs.close()
        assert twin.write_some(ours.fileno(), b"broken") == 0
    assert twin.write_some(-1, b"closed") == 0


@each_twin
@pytest.mark.parametrize(
    "line",
    [
        b"FIN 000000000000000A\n",
        b"FIN 00000000000000 1\n",
        b"FIN 0x00000000000001\n",
        b"FIN 00000000000000_1\n",
        b"FIN 000000000000001\n\n",
        b"FIN 0000000000000001\r\n",
        b"fin 0000000000000001\n",
        b"FIN 0000000000000001",
        b"FIN\n",
        b"",
    ],
)
def test_what_is_no_plain_fin_ends_the_run(twin: ModuleType, line: bytes) -> None:
    assert twin.scan_fins(line, 0, len(line)) == (0, [])
    data = fins(3) + line
    assert twin.scan_fins(data, 0, len(data)) == (21, [(3, 4)])


@each_twin
def test_reqs_with_one_timeout_make_one_run(twin: ModuleType) -> None:
    data = reqs(b"0", 5, 6, 7, 9, 8, 9) + reqs(b"15", 10)
    assert twin.scan_reqs(data, 0, len(data)) == (6 * 23, [(5, 8), (9, 10), (8, 10)], b"0")
    assert twin.scan_reqs(data, 6 * 23, len(data)) == (len(data), [(10, 11)], b"15")
    assert twin.scan_reqs(data, 23, 3 * 23 - 1) == (46, [(6, 7)], b"0")
    last = reqs(b"1234567890", LAST_ID, 0)
    assert twin.scan_reqs(bytearray(last), 0, 1000) == (64, [(LAST_ID, 2**64), (0, 1)], b"1234567890")


@each_twin
@pytest.mark.parametrize(
    "line",
    [
        b"REQ 000000000000000A 0\n",
        b"REQ 0000000000000001 00\n",
        b"REQ 0000000000000001 1\n",
        b"REQ 0000000000000001 -0\n",
        b"REQ 0000000000000001 \n\n",
        b"REQ 0000000000000001\n",
        b"REQ 0000000000000001 0\r\n",
        b"REQ 0000000000000001 0 \n",
        b"REQ 0000000000000001  0\n",
        b"REQ 0000000000000001 0",
        b"FIN 0000000000000001 0\n",
        b"REQ\n",
        b"",
    ],
)
def test_what_is_no_plain_req_with_that_timeout_ends_the_run(twin: ModuleType, line: bytes) -> None:
    data = reqs(b"0", 3) + line
    assert twin.scan_reqs(data, 0, len(data)) == (23, [(3, 4)], b"0")


@each_twin
@pytest.mark.parametrize("timeout", [b"", b"-1", b"x", b"/", b":", b"12345678901", b"1x"])
def test_a_timeout_has_one_to_ten_digits(twin: ModuleType, timeout: bytes) -> None:
    data = reqs(timeout, 3)
    assert twin.scan_reqs(data, 0, len(data)) == (0, [], b"")


@each_twin
def test_freed_memory_is_kept_where_the_c_library_can(twin: ModuleType) -> None:
    kept = twin.keep_freed_memory(1 << 20, 1 << 20)
    assert kept == (twin is fast and platform.libc_ver()[0] == "glibc")


@each_twin
def test_pubs_with_one_line_make_one_run(twin: ModuleType) -> None:
    data = pub(b"t", b"one") + pub(b"t", b"three") + pub(b"u", b"x")
    length = len(b"PUB t\n")
    assert twin.scan_pubs(data, 0, len(data), 5) == (2 * (length + 4) + 8, 2, length)
    assert twin.scan_pubs(data, 0, len(data), 4) == (length + 4 + 3, 1, length)
    assert twin.scan_pubs(data, 0, len(data), 2) == (0, 0, length)
    writer = twin.BatchWriter(0, 0)
    assert writer.add_pubs(data, 0, 2, length, 1) == 8
    assert [body for _, body in messages(writer.take())] == [b"one", b"three"]


@each_twin
@pytest.mark.parametrize(("topic", "count"), [(b"t" * 75, 1), (b"t" * 76, 0)])
def test_a_long_line_is_left_to_the_parser(twin: ModuleType, topic: bytes, count: int) -> None:
    data = pub(topic, b"one")
    assert twin.scan_pubs(data, 0, len(data), 100)[1] == count


@each_twin
def test_an_mpub_body_is_judged_as_far_as_it_is_there(twin: ModuleType) -> None:
    body = mpub(b"one", b"three")
    verdicts = [twin.scan_mpub(body, 0, end, 5, 100, 0, 0) for end in range(len(body) + 1)]
    assert verdicts[:4] == [(SHORT, 0, 0, IN_COUNT)] * 4
    assert verdicts[4:8] == [(SHORT, 4, 0, IN_SIZE)] * 4
    assert verdicts[8:11] == [(SHORT, 4, 0, IN_BODY)] * 3
    assert verdicts[11:15] == [(SHORT, 11, 1, IN_SIZE)] * 4
    assert verdicts[15:20] == [(SHORT, 11, 1, IN_BODY)] * 5
    assert verdicts[20:] == [(COMPLETE, 20, 2, 0)]
    writer = twin.BatchWriter(0, 0)
    assert writer.add_mpub(body, 0, 2, 1) == 8
    assert [body for _, body in messages(writer.take())] == [b"one", b"three"]


@each_twin
@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        (struct.pack(">i", 0), (BAD_COUNT, 0, 0, 0)),
        (struct.pack(">i", -1), (BAD_COUNT, 0, 0, -1)),
        (struct.pack(">i", 20), (BAD_COUNT, 0, 0, 20)),  # (100 - 4) // 5 is 19
        (struct.pack(">i", 19), (SHORT, 4, 0, IN_SIZE)),
        (struct.pack(">ii", 2, 0), (BAD_SIZE, 4, 0, 0)),
        (struct.pack(">ii", 2, -(2**31)), (BAD_SIZE, 4, 0, -(2**31))),
        (struct.pack(">ii", 2, 51), (TOO_BIG, 4, 0, 51)),
        (struct.pack(">ii50si", 2, 50, b"", 39), (BODY_TOO_BIG, 58, 1, 101)),
        (struct.pack(">ii50si", 2, 50, b"", 38), (SHORT, 58, 1, IN_BODY)),
    ],
)
def test_an_mpub_body_is_refused_by_its_first_mistake(
    twin: ModuleType, body: bytes, verdict: tuple[int, int, int, int]
) -> None:
    assert twin.scan_mpub(body, 0, len(body), 50, 100, 0, 0) == verdict


@each_twin
def test_gather_leaves_the_headers_out(twin: ModuleType) -> None:
    data = written(twin, [(0, [b"a", b"bb"]), (9, [b"later"]), (0, [b"ccc"])])
    frames, count, first, stop, remaining = twin.gather(data, 0, len(data), 0, 100, 10**6)
    assert (count, first, remaining) == (2, 0, 0)
    assert frames == data[HEADER:stop]
    more = twin.BatchWriter(4, 4)
    more.add_bodies([b"d"], 1, 0)
    following = data[stop + HEADER + FRAME + 5 :] + more.take()
    frames, count, first, stop, remaining = twin.gather(following, 0, len(following), 0, 100, 10**6)
    assert (count, first, stop, remaining) == (2, 3, len(following), 0)
    assert frames == following[HEADER : HEADER + FRAME + 3] + following[-FRAME - 1 :]


@each_twin
def test_gather_takes_deferred_batches_where_it_may(twin: ModuleType) -> None:
    data = written(twin, [(0, [b"a", b"bb"]), (9, [b"later"]), (8, [b"c"]), (0, [b"d"])])
    frames, *rest = twin.gather(data, 0, len(data), 0, 100, 10**6, True)
    assert rest == [5, 0, len(data), 0]
    assert [frames[end - 1 : end] for end in twin.frame_ends(frames)] == [b"a", b"b", b"r", b"c", b"d"]
    assert twin.gather(data, 0, len(data), 0, 3, 10**6, True)[1] == 3
    reader = twin.BatchReader()
    assert not reader.whatever_due
    reader.data, reader.whatever_due = data, True
    assert (reader.gather(100, 10**6), reader.count) == (frames, 5)


@each_twin
def test_gather_stops_at_its_bounds(twin: ModuleType) -> None:
    data = written(twin, [(0, [b"a" * 10, b"b" * 20, b"c" * 30])])
    size = FRAME + 10
    assert twin.gather(data, 0, len(data), 0, 1, 10**6)[1:] == (1, 0, HEADER + size, 2)
    assert twin.gather(data, 0, len(data), 0, 9, 1)[1:] == (1, 0, HEADER + size, 2)
    assert twin.gather(data, 0, len(data), 0, 9, 2 * size + 9)[1] == 1
    assert twin.gather(data, 0, len(data), 0, 9, 2 * size + 10)[1] == 2
    assert twin.gather(data, HEADER + size, len(data), 2, 9, 10**6)[1:] == (2, 1, len(data), 0)
    assert twin.gather(data, 0, HEADER + size - 1, 0, 9, 10**6) == (b"", 0, -1, 0, 0)


@each_twin
@pytest.mark.parametrize(
    "message_id",
    [b"000000000000000G", b"000000000000000A", b" 000000000000001", b"0x00000000000001", b"00000000_0000001"],
)
def test_gather_does_not_begin_with_a_damaged_id(twin: ModuleType, message_id: bytes) -> None:
    data = written(twin, [(0, [b"a", b"b"])])
    data = data[: HEADER + 18] + message_id + data[HEADER + 34 :]
    assert twin.gather(data, 0, len(data), 0, 9, 10**6) == (b"", 0, -1, 0, 0)
    assert twin.gather(data, HEADER, len(data), 2, 9, 10**6) == (b"", 0, -1, HEADER, 2)


@each_twin
def test_gather_slices_what_is_long(twin: ModuleType) -> None:
    data = written(twin, [(0, [b"x" * (SLICE_FROM - FRAME)])])
    frames = twin.gather(data, 0, len(data), 0, 1, 1)[0]
    assert isinstance(frames, memoryview)
    assert frames == data[HEADER:]


@each_twin
def test_attempts_are_changed_in_a_copy(twin: ModuleType) -> None:
    data = written(twin, [(0, [b"a", b"bb", b""])])
    frames = data[HEADER:]
    changed = twin.with_attempts(frames, 65536 + 258)
    assert [changed[at + 16 : at + 18] for at in (0, 35, 71)] == [b"\x01\x02"] * 3
    assert twin.with_attempts(changed, 1) == frames == data[HEADER:]
    assert twin.frame_ends(frames) == [35, 71, 105]
    assert twin.frame_ends(b"") == []


@each_twin
def test_timestamps_are_told_where_they_change(twin: ModuleType) -> None:
    writer = twin.BatchWriter(0, 7)
    for timestamp, bodies in [(5, [b"a", b"bb"]), (5, [b"c"]), (6, [b""]), (0, [b"d", b"e"])]:
        writer.add_bodies(bodies, timestamp, 0)
    data = writer.take()
    frames = twin.gather(data, 0, len(data), 0, 100, 10**6)[0]
    assert twin.timestamps(frames, 7) == [(7, 5), (10, 6), (11, 0)]
    assert twin.timestamps(b"", 7) == []
    assert twin.timestamps(memoryview(frames)[:33], 7) == []


@each_twin
def test_batches_are_walked_and_marked(twin: ModuleType) -> None:
    data = written(twin, [(0, [b"a"]), (5, [b"b", b"c"]), (0, [b"d"])])
    first, second, third = (0, 83, 1, 0, 0, 1, 0), (83, 118, 2, 1, 1, 1, 5), (201, 83, 1, 3, 3, 1, 0)
    assert twin.scan_batches(data, 0, len(data), True, 1000) == (284, 48, [first, second], third)
    assert twin.scan_batches(data, 0, len(data), True, 1) == (284, 48, [first, second, third], third)
    assert twin.scan_batches(data, 0, 283, True, 1000) == (201, 83, [first, second], second)
    assert twin.scan_batches(data, 0, 240, True, 1000) == (201, 48, [first, second], second)
    torn = data[:150] + b"?" + data[151:]
    assert twin.scan_batches(torn, 0, len(data), True, 1000) == (83, 0, [first], first)
    assert twin.scan_batches(torn, 0, len(data), False, 1000)[0] == 284


@each_twin
def test_a_message_is_found_by_its_position(twin: ModuleType) -> None:
    data = written(twin, [(0, [b"a"]), (5, [b"b", b"c"]), (0, [b"d"])])
    found = [twin.find_message(data, 0, len(data), position) for position in range(5)]
    assert found == [(0, 0, 0), (83, 0, 0), (83 + 48 + 35, 1, 0), (201, 0, 0), (-1, 0, 284 + 48)]
    assert twin.find_message(data, 83, len(data), 0) == (-1, 0, 0)
    assert twin.find_message(data, 0, 83 + 48 + 10, 2) == (-1, 0, 201)


@each_twin
def test_messages_are_read_in_runs(twin: ModuleType) -> None:
    frames = twin.with_attempts(written(twin, [(0, [b"a", b"", b"ccc"])], first=5)[HEADER:], 258)
    ok = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
    data = b"--" + frames + ok
    stop, run = twin.read_messages(data, 2, len(data), twin.Delivery, "source", 2.5)
    assert stop == 2 + len(frames)
    assert [told(each) for each in run] == [
        (1, 258, b"%016x" % number, body, "source", 2.5, False)
        for number, body in zip((5, 6, 7), (b"a", b"", b"ccc"), strict=True)
    ]
    stop, run = twin.read_messages(frames, 0, len(frames) - 1, twin.Delivery, None, 0.0)
    assert (stop, [told(each)[3] for each in run]) == (35 + 34, [b"a", b""])
    assert twin.read_messages(ok + frames, 0, len(ok + frames), twin.Delivery, None, 0.0) == (0, [])
    assert twin.scan_oks(ok * 3 + frames, 0, len(ok * 3 + frames)) == (30, 3)
    assert twin.scan_oks(ok * 3, 10, 29) == (20, 1)


@each_twin
def test_a_message_that_is_let_go_unanswered_says_so(twin: ModuleType) -> None:
    dropped: list[bytes] = []

    class Message(twin.Delivery):  # type: ignore[misc, name-defined]
        __slots__ = ()

        def dropped(self) -> None:
            dropped.append(self.body)

    frames = written(twin, [(0, [b"a", b"b", b"c"])])[HEADER:]
    _, run = twin.read_messages(frames, 0, len(frames), Message, None, 0.0)
    run[1].answered = True
    del run[:]
    assert sorted(dropped) == [b"a", b"c"]
    Message()  # one that never was a message has nothing to say
    assert sorted(dropped) == [b"a", b"c"]


@each_twin
def test_only_deliveries_are_made(twin: ModuleType) -> None:
    if twin is not pure:
        with pytest.raises(TypeError):
            twin.read_messages(b"", 0, 0, dict, None, 0.0)


@each_twin
def test_mpub_is_packed(twin: ModuleType) -> None:
    bodies = [b"a", bytearray(b"bb"), memoryview(b"ccc")]
    packed = mpub(b"a", b"bb", b"ccc")
    assert twin.pack_mpub(b"MPUB t\n", bodies, 3) == (
        -1,
        b"MPUB t\n" + struct.pack(">i", len(packed)) + packed,
    )
    assert twin.pack_mpub(b"MPUB t\n", bodies, 2) == (2, b"")
    assert twin.pack_mpub(b"MPUB t\n", [b"a", b""], 2) == (1, b"")
    with pytest.raises(TypeError):
        twin.pack_mpub(b"", [b"a", "text"], 5)


# ---- what the tests are made of


@each_twin
@pytest.mark.parametrize("size", [1, 33, 34, 60, 10_000])
def test_an_index_is_the_same_in_pieces(twin: ModuleType, size: int) -> None:
    batches = [(0, [b"one", b"two"]), (5, [b"three"]), (0, [b"x" * 200, b"four"])]
    data = written(twin, batches)
    index, at, remaining, skip = b"", 0, 0, 1
    for start in range(0, len(data), size):
        piece = data[start : start + size + HEADER]
        more, at, remaining, skip = twin.index_frames(
            piece, size, at - start, remaining, start, skip, 4 - len(index) // 4
        )
        assert at >= 0
        index, at = index + more, at + start
    offsets = struct.unpack(f">{len(index) // 4}I", index)
    assert offsets[0] == HEADER + FRAME + 3
    sizes = [struct.unpack_from(">I", data, offset)[0] for offset in offsets]
    bodies = [data[at + FRAME : at + 4 + size] for at, size in zip(offsets, sizes, strict=True)]
    assert bodies == [b"two", b"three", b"x" * 200, b"four"]


@each_twin
def test_what_is_no_log_has_no_index(twin: ModuleType) -> None:
    data = written(twin, [(0, [b"one", b"two"])])
    assert twin.index_frames(b"NQB2" + data[4:], len(data), 0, 0, 0, 0, 9)[1] == -1
    assert twin.index_frames(bytes(60), 60, 0, 1, 0, 0, 9)[1] == -1
    assert twin.index_frames(data[:40], 40, 0, 0, 0, 0, 9)[1] == -1


def told(each: Any) -> tuple[Any, ...]:
    """What is in a Delivery, which does not mind being dropped any more."""
    fields = (each.timestamp_ns, each.attempts, each.id, each.body, each.source, each.stamp, each.answered)
    each.answered = True
    return fields


def fins(*ids: int) -> bytes:
    return b"".join(b"FIN %016x\n" % number for number in ids)


def reqs(timeout: bytes, *ids: int) -> bytes:
    return b"".join(b"REQ %016x %b\n" % (number, timeout) for number in ids)


def pub(topic: bytes, body: bytes) -> bytes:
    return b"PUB " + topic + b"\n" + struct.pack(">i", len(body)) + body


def mpub(*bodies: bytes) -> bytes:
    return struct.pack(">i", len(bodies)) + b"".join(struct.pack(">i", len(each)) + each for each in bodies)


def whole_mpub(topic: bytes, *bodies: bytes) -> bytes:
    body = mpub(*bodies)
    return b"MPUB " + topic + b"\n" + struct.pack(">i", len(body)) + body


def written(
    twin: ModuleType, batches: list[tuple[int, list[bytes]]], position: int = 0, first: int = 0
) -> bytes:
    writer = twin.BatchWriter(position, first)
    for due, bodies in batches:
        writer.add_bodies(bodies, 1, due)
    data: bytes = writer.take()
    return data


def messages(batch: bytes) -> list[tuple[int, bytes]]:
    ends = pure.frame_ends(batch[HEADER:])
    frames = [batch[HEADER + begin : HEADER + end] for begin, end in zip([0, *ends], ends, strict=False)]
    return [(int(frame[18:34], 16), frame[34:]) for frame in frames]


KINDS: list[Callable[[bytes], Any]] = [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))]


class Draw(random.Random):
    """Pieces of log and wire from a seed: such an example is a hundred times cheaper than one that hypothesis
    puts together byte by byte, so there can be many."""

    def kind(self, data: bytes) -> Any:
        return self.choice(KINDS)(data)

    def bodies(self) -> list[bytes]:
        return [self.randbytes(self.choice([1, 2, 5, 40])) for _ in range(self.choice([1, 1, 2, 3, 5]))]

    def stamp(self) -> int:
        return self.choice([0, 1, -1, 1_700_000_000 * 10**9, 2**63 - 1, -(2**63)])

    def mangled(self, whole: bytes) -> bytes:
        """The bytes as they are, or with some of them flipped, cut off, lost or repeated."""
        data = bytearray(whole)
        for _ in range(self.choice([0, 0, 1, 1, 1, 2, 3])):
            if not data:
                break
            at = self.randrange(min(len(data), self.choice([50, 90, len(data)])))
            match self.randrange(8):
                case 0:
                    del data[at:]
                case 1:
                    del data[at : at + self.randint(1, 8)]
                case 2:
                    data[at:at] = data[at : at + self.randint(1, 50)]
                case 3 | 4:
                    data[at] = self.choice(b"\x00\xff\x7f\x80\n aA_fF0x")
                case _:
                    data[at] ^= 1 << self.randrange(8)
        return bytes(data)

    def span(self, data: bytes) -> tuple[int, int]:
        """A start and an end within the buffer: mostly all of it."""
        start = self.choice([0, 0, self.randint(0, len(data))])
        return start, self.choice([len(data), len(data), self.randint(start, len(data))])

    def log(self) -> bytes:
        """Batches as a log has them: plain and deferred, ids with and without gaps."""
        batches = [self.bodies() for _ in range(self.randint(0, 5))]
        slack = sum(map(len, batches)) + 3 * len(batches) + 1
        first = self.choice([0, 1 << 54, 2**64 - slack, self.randrange(2**63)])
        writer = pure.BatchWriter(self.choice([0, 7, 2**40]), first)
        pieces = []
        for bodies in batches:
            writer.add_bodies(bodies, self.stamp(), self.choice([0, 0, 0, 5, 2**63 - 1]))
            if self.random() < 0.5:
                pieces.append(writer.take())
            if self.random() < 0.2:
                writer.renumber(writer.position, writer.next_id + self.randint(1, 3))
        return b"".join([*pieces, writer.take()])


SEEDS = st.integers(0, 2**64).map(Draw)
often = settings(max_examples=500)


def both(name: str, data: Any, *arguments: Any) -> Any:
    """Call both twins, check that they agree, and give what they say."""
    expected = getattr(pure, name)(data, *arguments)
    assert getattr(fast, name)(data, *arguments) == expected
    return expected


# ---- the twins agree


@agree
@given(SEEDS, st.binary(max_size=300), st.sampled_from([1, 40, 90]))
def test_the_twins_agree_on_crc32c(draw: Draw, data: bytes, times: int) -> None:
    data *= times  # long ones are summed in several lanes
    both("crc32c", draw.kind(data), *draw.span(data))


@agree
@often
@given(SEEDS)
def test_the_twins_agree_on_scan_fins(draw: Draw) -> None:
    run: list[int] = []
    for _ in range(draw.randint(0, 5)):
        first = draw.choice([draw.randint(0, 3), LAST_ID - draw.randint(0, 3), draw.randrange(2**64)])
        run += range(first, min(first + draw.randint(1, 4), 2**64))
    data = draw.mangled(fins(*run))
    _, ranges = both("scan_fins", draw.kind(data), *draw.span(data))
    assert all(first < end for first, end in ranges)


@agree
@often
@given(SEEDS)
def test_the_twins_agree_on_scan_reqs(draw: Draw) -> None:
    data = b""
    for _ in range(draw.randint(0, 5)):
        first = draw.choice([draw.randint(0, 3), LAST_ID - draw.randint(0, 3), draw.randrange(2**64)])
        run = range(first, min(first + draw.randint(1, 4), 2**64))
        data += reqs(draw.choice([b"0", b"0", b"0", b"7", b"1234567890", b"12345678901"]), *run)
    data = draw.mangled(data)
    start, end = draw.span(data)
    stop, ranges, timeout = both("scan_reqs", draw.kind(data), start, end)
    assert all(first < last for first, last in ranges)
    assert stop - start == sum(last - first for first, last in ranges) * (22 + len(timeout))


@agree
@often
@given(SEEDS)
def test_the_twins_agree_on_next_fins(draw: Draw) -> None:
    first = draw.choice([draw.randint(0, 3), LAST_ID - draw.randint(0, 3), draw.randrange(2**64)])
    run = [number % 2**64 for number in range(first, first + draw.randint(0, 6))]
    data = draw.mangled(fins(*run) + fins(*run[:2]))
    start, end = draw.span(data)
    found, count = both("next_fins", draw.kind(data), start, end)
    _, ranges = both("scan_fins", data, start, end)
    assert [(found, found + count)] == ranges[:1] or (found, count, ranges) == (0, 0, [])


@agree
@often
@given(SEEDS)
def test_the_twins_agree_on_scan_pubs(draw: Draw) -> None:
    topics = [b"t", b"u", b"t extra", b"t\r", b"", b"t" * 75, b"t" * 76, b"t" * 90]
    topic = draw.choice(topics)
    pubs = [
        pub(
            topic if draw.random() < 0.9 else draw.choice(topics),
            draw.randbytes(draw.choice([0, 1, 1, 5, 20])),
        )
        for _ in range(draw.randint(0, 6))
    ]
    data = draw.mangled(b"".join(pubs))
    start, end = draw.span(data)
    buffer = draw.kind(data)
    _, count, length = both("scan_pubs", buffer, start, end, draw.choice([0, 1, 10, 20, 2**31, 2**40]))
    if count:
        one, other = pure.BatchWriter(0, 5), fast.BatchWriter(0, 5)
        arguments = (buffer, start, count, length, draw.stamp())
        assert one.add_pubs(*arguments) == other.add_pubs(*arguments)
        assert one.take() == other.take()


@agree
@often
@given(SEEDS)
def test_the_twins_agree_on_scan_mpub(draw: Draw) -> None:
    whole = mpub(*draw.bodies())
    data = draw.mangled(draw.choice([b"", b"", b"xyz"]) + whole + b"NOP\n")
    start, end = draw.span(data)
    buffer = draw.kind(data)
    limits = (
        draw.choice([1, 39, 40, 2**31]),
        draw.choice([len(whole), 2**40, 5, 0]) + draw.randint(-2, 2),
    )
    verdict = both("scan_mpub", buffer, start, end, *limits, 0, 0)
    # in two steps it comes out the same
    middle = draw.randint(start, end)
    status, stop, number, value = both("scan_mpub", buffer, start, middle, *limits, 0, 0)
    if status == SHORT and value != IN_COUNT:
        assert both("scan_mpub", buffer, start, end, *limits, number, stop - start) == verdict
    elif status != SHORT:
        assert (status, stop, number, value) == verdict
    if verdict[0] == COMPLETE:
        one, other = pure.BatchWriter(0, 5), fast.BatchWriter(0, 5)
        arguments = (buffer, start, verdict[2], draw.stamp())
        assert one.add_mpub(*arguments) == other.add_mpub(*arguments)
        assert one.take() == other.take()


@agree
@often
@given(SEEDS)
def test_the_twins_write_the_same_batches(draw: Draw) -> None:
    steps = [draw.bodies() for _ in range(draw.randint(0, 8))]
    count = sum(map(len, steps))
    position = draw.choice([0, 2**40])
    # the last message may have the last id
    first = draw.choice([0, 1 << 54, 2**64 - count - len(steps) - 1])
    one, other = pure.BatchWriter(position, first), fast.BatchWriter(position, first)
    for bodies in steps:
        stamp = draw.stamp()
        kind = draw.choice(["bodies", "bodies", "pubs", "mpub", "take", "renumber"])
        if kind == "bodies":
            arguments = ([draw.kind(body) for body in bodies], stamp, draw.choice([0, 0, 7, 2**63 - 1]))
            assert one.add_bodies(*arguments) == other.add_bodies(*arguments)
        elif kind == "pubs":
            run = b"--" + b"".join(pub(b"topic", body) for body in bodies)
            assert one.add_pubs(run, 2, len(bodies), 10, stamp) == other.add_pubs(
                run, 2, len(bodies), 10, stamp
            )
        elif kind == "mpub":
            data = draw.kind(mpub(*bodies))
            assert one.add_mpub(data, 0, len(bodies), stamp) == other.add_mpub(data, 0, len(bodies), stamp)
        elif kind == "take":
            assert one.take() == other.take()
        else:
            for writer in (one, other):
                writer.renumber(writer.position + 2, writer.next_id + 1)
        assert (one.position, one.next_id, one.count) == (other.position, other.next_id, other.count)
        assert one.size == other.size
    assert one.take() == other.take()
    assert one.size == other.size == one.count == other.count == 0


@each_twin
def test_whole_commands_are_added_as_far_as_there_are_ids(twin: ModuleType) -> None:
    data = pub(b"t", b"one") + pub(b"t", b"three") + pub(b"u", b"x")
    writer = twin.BatchWriter(0, 0)
    writer.use_ids(writer.next_id, 1)
    assert writer.add_whole_pubs(data, 0, len(data), b"PUB t\n", 5, 1) == 0
    writer.use_ids(writer.next_id, 2)
    assert writer.add_whole_pubs(data, 0, len(data), b"PUB t\n", 5, 1) == len(data) - 11
    assert (writer.count, writer.commands, writer.body_bytes, writer.ids_left) == (2, 2, 8, 0)
    assert [body for _, body in messages(writer.take())] == [b"one", b"three"]
    assert (writer.count, writer.commands, writer.body_bytes) == (0, 0, 0)
    data = b"..." + whole_mpub(b"t", b"one", b"three") + whole_mpub(b"t", b"x") + whole_mpub(b"t", b"")
    writer.use_ids(writer.next_id, 9)
    assert writer.add_whole_mpubs(data, 3, len(data), b"MPUB t\n", 5, 99, 1) == len(data) - 19
    assert (writer.count, writer.commands, writer.body_bytes, writer.ids_left) == (3, 2, 9, 6)
    assert [body for _, body in messages(writer.take())] == [b"one", b"three", b"x"]


@each_twin
def test_a_command_is_unfinished_until_it_is_whole_or_wrong(twin: ModuleType) -> None:
    for whole, line in ((pub(b"t", b"one"), b"PUB t\n"), (whole_mpub(b"t", b"one", b"x"), b"MPUB t\n")):
        for end in range(len(whole) + 1):
            unfinished = whole[:end] if end < len(whole) else b""
            assert twin.unfinished_command(whole, 0, end, line, 5, 99) == unfinished
        assert not twin.unfinished_command(whole, 0, 12, line, 2, 6)
        assert not twin.unfinished_command(b"FIN", 0, 3, line, 5, 99)
    assert not twin.unfinished_command(whole_mpub(b"t", b"", b"one")[:-1], 0, 99, b"MPUB t\n", 5, 99)


@each_twin
def test_a_large_pub_is_taken_in_pieces_and_becomes_a_batch(twin: ModuleType) -> None:
    body = random.Random(5).randbytes(30_000)
    command = pub(b"t", body)
    for first in (10, 11, 5000, len(command) - 1):
        large = twin.begin_large_pub(b"x" + command + b"y", 1, 1 + first, b"PUB t\n", 20_000, 40_000)
        assert (large.size, large.have, large.missing) == (30_000, first - 10, 30_010 - first)
        at = first
        while large.missing:
            assert large.command(b"PUB t\n") == command[:at]
            at += large.put(command[at : at + 7000] + b"z" * (at + 7000 > len(command)))
        assert at == len(command)
        assert large.put(b"more") == 0
        expected, writer = pure.BatchWriter(3, 4), twin.BatchWriter(3, 4)
        for each in (writer, expected):
            each.use_ids(4, 9)
        expected.add_bodies([body, b"small"], 77, 0)
        expected.add_bodies([body], 78, 0)
        writer.add_large(large, 77)
        writer.add_bodies([b"small"], 77, 0)
        second = twin.LargePub(30_000, 1)
        second.put(body)
        writer.add_large(second, 78)  # it is copied: something is before it
        assert (writer.count, writer.commands, writer.body_bytes) == (3, 2, 60_005)
        assert (writer.position, writer.next_id, writer.ids_left) == (6, 7, 6)
        assert writer.take() == expected.take()


@each_twin
def test_only_a_pub_that_is_large_and_not_whole_begins_a_large_one(twin: ModuleType) -> None:
    whole = pub(b"t", bytes(100))
    line = b"PUB t\n"
    assert twin.begin_large_pub(whole, 0, 109, line, 100, 100) is not None
    for data, end, smallest, most in (
        (whole, 110, 100, 100),  # all of it is there
        (whole, 9, 100, 100),  # its size is not
        (whole, 109, 101, 200),
        (whole, 109, 50, 99),
        (b"PUB u\n" + whole[6:], 109, 100, 100),
        (line + bytes(4), 10, 0, 100),
        (line + b"\xff" * 4, 10, 0, 100),
    ):
        assert twin.begin_large_pub(data, 0, end, line, smallest, most) is None


@each_twin
def test_a_large_pub_that_is_not_whole_or_is_a_batch_is_refused(twin: ModuleType) -> None:
    for size in (0, -1, (1 << 30) + 1):
        with pytest.raises(ValueError, match="bytes"):
            twin.LargePub(size, 10)
    large = twin.LargePub(3, 9)
    writer = twin.BatchWriter(0, 0)
    writer.use_ids(0, 9)
    with pytest.raises(ValueError, match="whole"):
        writer.add_large(large, 1)
    assert (large.put(b"abcd"), writer.size) == (3, 0)
    writer.add_large(large, 1)
    for attempt in (lambda: writer.add_large(large, 1), lambda: large.put(b""), lambda: large.command(b"")):
        with pytest.raises(ValueError, match="the body is"):
            attempt()
    assert writer.count == 1


@each_twin
def test_the_line_of_a_command_is_found_if_it_is_whole_and_short_enough(twin: ModuleType) -> None:
    data = b"..PUB one\nPUB two"
    assert twin.command_line(data, 2, 99, b"PUB ", 8) == b"PUB one\n"
    assert twin.command_line(bytearray(data), 2, 10, b"PUB ", 99) == b"PUB one\n"
    for start, end, command, longest in (
        (2, 9, b"PUB ", 99),
        (2, 99, b"PUB ", 7),
        (2, 99, b"PUB ", 0),
        (2, 99, b"MPUB ", 99),
        (10, 99, b"PUB ", 99),
        (len(data), 99, b"PUB ", 99),
        (99, 9, b"", 99),
        (4, 2, b"PUB ", 99),
    ):
        assert twin.command_line(data, start, end, command, longest) == b""
    with pytest.raises(ValueError, match="negative"):
        twin.command_line(data, -1, 99, b"PUB ", 99)


@each_twin
def test_as_much_is_written_as_the_descriptor_takes(twin: ModuleType) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    assert twin.write_some(write, memoryview(b"xonex")[1:4]) == 3
    assert os.read(read, 100) == b"one"
    assert [twin.write_some(write, b"two", end) for end in (-1, 0, 2, 9)] == [0, 0, 2, 3]
    assert os.read(read, 100) == b"twtwo"
    size = fcntl.fcntl(write, fcntl.F_GETPIPE_SZ)
    assert twin.write_some(write, bytes(size + 100)) == size
    assert twin.write_some(write, b"one") == 0
    os.close(read)
    assert twin.write_some(write, b"one") == 0
    os.close(write)
    assert twin.write_some(write, b"one") == 0


@agree
@often
@given(SEEDS)
def test_the_twins_add_the_same_commands(draw: Draw) -> None:
    topics = [b"t"] * 9 + [b"u"]
    data = b""
    for _ in range(draw.randint(1, 5)):
        bodies = draw.bodies()
        data += pub(draw.choice(topics), bodies[0]) if draw.random() < 0.5 else whole_mpub(b"t", *bodies)
    data = draw.mangled(data)
    start, end = draw.choice([0, 0, 1]), draw.choice([len(data), len(data) + 9, draw.randint(0, len(data))])
    ids, sizes = draw.choice([0, 1, 99]), (draw.choice([4, 40]), draw.choice([20, 300]))
    results = []
    for twin in TWINS:
        writer = twin.BatchWriter(3, 5)
        writer.use_ids(writer.next_id, ids)
        stops = [
            writer.add_whole_pubs(draw.kind(data), start, end, b"PUB t\n", sizes[0], 7),
            writer.add_whole_mpubs(draw.kind(data), start, end, b"MPUB t\n", *sizes, 7),
        ]
        begun = [
            twin.unfinished_command(data, stop, end, line, *sizes)
            for stop, line in zip(stops, (b"PUB t\n", b"MPUB t\n"), strict=True)
        ]
        begun += [twin.command_line(draw.kind(data), stop, end, b"PUB ", sizes[0]) for stop in stops]
        numbers = writer.count, writer.commands, writer.body_bytes, writer.ids_left, writer.next_id
        results.append((stops, begun, numbers, writer.take()))
    assert results[0] == results[1]


@each_twin
def test_a_writer_counts_the_ids_that_are_left(twin: ModuleType) -> None:
    writer = twin.BatchWriter(0, 7)
    assert writer.ids_left == 0
    writer.use_ids(LAST_ID - 3, 4)  # the last that there are
    assert (writer.next_id, writer.ids_left, writer.position) == (LAST_ID - 3, 4, 0)
    writer.add_bodies([b"a", b"b"], 1, 0)
    assert writer.ids_left == 2
    writer.renumber(writer.position, writer.next_id + 1)
    assert writer.ids_left == 1
    writer.take()
    assert writer.ids_left == 1
    with pytest.raises(AttributeError):
        writer.ids_left = 5


# ---- blocks


@each_twin
def test_a_block_has_a_magic_a_crc_and_a_length(twin: ModuleType) -> None:
    writer = twin.BlockWriter(b"TEST")
    writer.add(b"one")
    writer.add_range(b"F", 7, 1 << 40, 5)
    assert writer.size == 3 + 17
    records = b"oneF" + struct.pack(">IQI", 7, 1 << 40, 5)
    behind = struct.pack(">I", len(records)) + records
    crc = pure.crc32c(behind, 0, len(behind))
    assert writer.take() == b"TEST" + struct.pack(">I", crc) + behind
    assert writer.size == 0
    assert writer.take() == b"TEST" + struct.pack(">II", pure.crc32c(bytes(4), 0, 4), 0)


@each_twin
def test_what_is_no_letter_or_magic_is_refused(twin: ModuleType) -> None:
    for magic in (b"", b"NQJ", b"NQJ12"):
        with pytest.raises(ValueError):
            twin.BlockWriter(magic)
    writer = twin.BlockWriter(b"TEST")
    for letter in (b"", b"FF"):
        with pytest.raises(ValueError):
            writer.add_range(letter, 0, 0, 0)
    assert writer.size == 0


@agree
@given(SEEDS)
def test_the_twins_write_the_same_blocks(draw: Draw) -> None:
    one, other = pure.BlockWriter(b"TEST"), fast.BlockWriter(b"TEST")
    for _ in range(draw.randint(0, 12)):
        name, *arguments = draw.choice(
            [
                ("add", draw.randbytes(draw.choice([0, 1, 9, 300]))),
                (
                    "add_range",
                    b"F",
                    draw.choice([0, 2**32 - 1]),
                    draw.choice([0, LAST_ID]),
                    draw.choice([1, 2**32 - 1]),
                ),
                ("take",),
                ("drop",),
            ]
        )
        assert getattr(one, name)(*arguments) == getattr(other, name)(*arguments)
        assert one.size == other.size
    assert one.take() == other.take()


@agree
@settings(max_examples=800)
@given(SEEDS)
def test_the_twins_agree_on_gather(draw: Draw) -> None:
    data = draw.mangled(draw.log())
    start, end = draw.span(data)
    remaining = draw.choice([0, 0, 0, 1, 2, 5])
    if remaining and end - start > HEADER:
        start += HEADER  # at the first frame, perhaps
    want, max_bytes = draw.choice([1, 2, 3, 100]), draw.choice([1, 80, 200, 10**6])
    bounds = remaining, want, max_bytes, draw.random() < 0.5
    frames, count, _, stop, _ = both("gather", draw.kind(data), start, end, *bounds)
    assert start <= stop <= end
    assert len(pure.frame_ends(frames)) == count <= want
    assert count <= 1 or len(frames) <= max_bytes


@agree
@settings(max_examples=300)
@given(SEEDS)
def test_the_twins_read_the_same_runs(draw: Draw) -> None:
    data = draw.mangled(draw.log())
    readers = pure.BatchReader(), fast.BatchReader()
    whatever_due = draw.random() < 0.5
    for reader in readers:
        reader.data, reader.at, reader.whatever_due = data, 0, whatever_due
    if draw.random() < 0.3 and len(data) > HEADER:
        for reader in readers:
            reader.at, reader.remaining = HEADER, 1
    for _ in range(10):
        want, max_bytes = draw.choice([1, 2, 3, 100]), draw.choice([1, 80, 200, 10**6])
        before = readers[0].at, readers[0].remaining
        ours, theirs = (reader.gather(want, max_bytes) for reader in readers)
        assert ours == theirs
        one, other = (
            (each.count, each.first_id, each.timestamp, each.at, each.remaining) for each in readers
        )
        assert one == other
        frames, count, first, stop, remaining = pure.gather(
            data, before[0], len(data), before[1], want, max_bytes, whatever_due
        )
        assert (ours, one[0]) == (frames, count)
        if count:
            stamp = int.from_bytes(frames[8:16], "big", signed=True)
            assert one[1:] == (first, stamp, stop, remaining)
        else:
            assert (readers[0].at, readers[0].remaining) == before


@each_twin
def test_a_reader_knows_its_bounds(twin: ModuleType) -> None:
    reader = twin.BatchReader()
    assert (reader.gather(9, 9), reader.count) == (b"", 0)
    reader.at = 5  # behind the data
    assert (reader.gather(9, 9), reader.count, reader.at) == (b"", 0, 5)


@agree
@given(SEEDS, st.integers(0, 3))
def test_the_twins_slice_and_copy_alike(draw: Draw, more: int) -> None:
    writer = pure.BatchWriter(0, 0)
    writer.add_bodies([bytes(SLICE_FROM - FRAME - 2 + more)], 1, 0)
    data = draw.kind(writer.take() + draw.log())
    for want in (1, 3):
        ours, theirs = (twin.gather(data, 0, len(data), 0, want, 10**6) for twin in TWINS)
        assert ours == theirs
        assert type(ours[0]) is type(theirs[0])


@agree
@often
@given(SEEDS)
def test_the_twins_agree_on_frames(draw: Draw) -> None:
    frames = draw.kind(draw.mangled(draw.log()[HEADER:]))
    both("frame_ends", frames)
    both("timestamps", frames, draw.choice([0, 1, LAST_ID - 100]))
    both("with_attempts", frames, draw.choice([-1, 0, 1, 255, 256, 65535, 65536, 70000]))


@agree
@settings(max_examples=600)
@given(SEEDS)
def test_the_twins_agree_on_scan_batches(draw: Draw) -> None:
    data = draw.mangled(draw.log())
    start, end = draw.span(data)
    arguments = (draw.choice([True, False]), draw.choice([1, 100, 200, 65536]))
    stop, needed, _, _ = both("scan_batches", draw.kind(data), start, end, *arguments)
    assert start <= stop <= end
    assert needed == 0 or stop + needed > end


@agree
@settings(max_examples=600)
@given(SEEDS)
def test_the_twins_agree_on_find_message(draw: Draw) -> None:
    data = draw.mangled(draw.log())
    start, end = draw.span(data)
    near = max(0, draw.choice([0, 7, 2**40]) + draw.randint(-3, 20))
    position = draw.choice([near, near, near, LAST_ID])
    offset, _, needed = both("find_message", draw.kind(data), start, end, position)
    assert offset == -1 or (start <= offset <= end and needed == 0)


@agree
@settings(max_examples=600)
@given(SEEDS)
def test_the_twins_agree_on_index_frames(draw: Draw) -> None:
    data = draw.mangled(draw.log())
    start, end = draw.span(data)
    skip, want = draw.choice([0, 0, 1, 3]), draw.choice([0, 1, 4, 1000])
    arguments = (end + draw.choice([0, 0, 50]), start, draw.choice([0, 0, 1, 9]), draw.choice([0, 7, 2**32]))
    index, _, _, left = both("index_frames", draw.kind(data), *arguments, skip, want)
    assert len(index) <= 4 * want
    assert left <= skip


@agree
@often
@given(SEEDS)
def test_the_twins_agree_on_what_a_client_reads(draw: Draw) -> None:
    pieces = [draw.log()[HEADER:], b"\x00\x00\x00\x06\x00\x00\x00\x00OK" * draw.randint(0, 3)]
    draw.shuffle(pieces)
    data = draw.mangled(b"".join(pieces))
    start, end = draw.span(data)
    buffer = draw.kind(data)
    both("scan_oks", buffer, start, end)
    (stop, one), (other_stop, other) = (
        twin.read_messages(buffer, start, end, twin.Delivery, "x", 1.0) for twin in (pure, fast)
    )
    assert stop == other_stop
    assert [told(each) for each in one] == [told(each) for each in other]


@agree
@often
@given(SEEDS)
def test_the_twins_pack_mpub_alike(draw: Draw) -> None:
    bodies = [draw.kind(body) for body in draw.bodies()]
    if draw.random() < 0.1:
        bodies.append(b"")
    limit = draw.choice([1, 39, 40, 1000])
    assert pure.pack_mpub(b"MPUB t\n", bodies, limit) == fast.pack_mpub(b"MPUB t\n", bodies, limit)


@agree
@given(SEEDS, st.binary(max_size=200))
def test_the_twins_agree_on_noise(draw: Draw, data: bytes) -> None:
    start, end = draw.span(data)
    buffer = draw.kind(data)
    both("scan_fins", buffer, start, end)
    both("scan_reqs", buffer, start, end)
    both("scan_pubs", buffer, start, end, 1000)
    both("scan_mpub", buffer, start, end, 1000, 1000, 0, 0)
    both("gather", buffer, start, end, 0, 10, 1000)
    both("gather", buffer, start, end, 1, 10, 1000)
    both("frame_ends", buffer)
    both("with_attempts", buffer, 3)
    both("timestamps", buffer, 3)
    both("scan_batches", buffer, start, end, True, 100)
    both("find_message", buffer, start, end, 0)
    both("index_frames", buffer, end, start, 0, 0, 0, 10)
    both("index_frames", buffer, end, start, 3, 0, 0, 10)


# ---- columns


def log_of(bodies: list[bytes], stamp: int = 1_700_000_000_123_456_789) -> bytes:
    """Two batches of these bodies, from position 10 on."""
    writer = pure.BatchWriter(10, 0xABC)
    half = len(bodies) // 2
    pieces = []
    for some in (bodies[:half], bodies[half:]):
        if some:
            writer.add_bodies(some, stamp, 0)
            pieces.append(writer.take())
    return b"".join(pieces)


@each_twin
def test_decode_batches_makes_columns(twin: ModuleType) -> None:
    data = log_of([b"one", b"", b"three"])
    offsets, bodies, times, ids = twin.decode_batches(data, 10, 3, True, True, True)
    assert struct.unpack("<4i", offsets) == (0, 3, 3, 8)
    assert bodies == b"onethree"
    assert struct.unpack("<3q", times) == (1_700_000_000_123_456,) * 3
    assert ids == b"0000000000000abc0000000000000abd0000000000000abe"
    assert twin.decode_batches(data, 10, 3, False, False, False) == (b"", b"", b"", b"")
    assert twin.decode_batches(b"", 0, 0, True, True, True) == (bytes(4), b"", b"", b"")


@each_twin
def test_a_range_may_begin_and_end_within_batches(twin: ModuleType) -> None:
    data = log_of([b"%d" % number for number in range(10)])
    for first in range(5):  # the first batch holds these
        for count in range(11 - first):
            _, bodies, _, _ = twin.decode_batches(data, 10 + first, count, True, False, False)
            assert bodies == b"0123456789"[first : first + count]


@each_twin
def test_times_before_the_epoch_are_rounded_down(twin: ModuleType) -> None:
    for stamp in (-1, -1000, -1001, -(2**63), 2**63 - 1, 0, 999):
        _, _, times, _ = twin.decode_batches(log_of([b"x"], stamp), 10, 1, False, True, False)
        assert struct.unpack("<q", times) == (stamp // 1000,)


@each_twin
def test_messages_that_are_not_there_are_missed(twin: ModuleType) -> None:
    data = log_of([b"one", b"two", b"three", b"four"])
    whole = len(data) // 2
    for first, count in ((9, 1), (15, 1), (12, 1), (10, 5), (2**63, 1), (10, 2**40), (10, -1)):
        with pytest.raises(ValueError):
            twin.decode_batches(data, first, count, True, True, True)
    for cut in range(len(data)):
        with pytest.raises(ValueError):
            twin.decode_batches(data[:cut], 10, 4, True, True, True)
    with pytest.raises(ValueError):  # a batch is missing between
        twin.decode_batches(data[:whole] + log_of([b"x"] * 2), 10, 4, True, True, True)


@each_twin
def test_a_batch_that_goes_on_behind_its_last_message_is_refused(twin: ModuleType) -> None:
    """The last one, too: its last message may have lost its end."""
    data = bytearray(log_of([b"one", b"cut off"], 1))
    shortened = data.rindex((30 + len(b"cut off")).to_bytes(4, "big") + (2).to_bytes(4, "big"))
    data[shortened + 3] -= len(b" off")
    assert twin.decode_batches(data, 10, 1, True, True, True)[1] == b"one"
    with pytest.raises(ValueError, match="no message at"):
        twin.decode_batches(data, 10, 2, True, True, True)


@each_twin
def test_columns_of_numbers(twin: ModuleType) -> None:
    assert struct.unpack("<3q", twin.count_column(2**40, 3)) == (2**40, 2**40 + 1, 2**40 + 2)
    assert struct.unpack("<3i", twin.stride_column(16, 2)) == (0, 16, 32)
    assert (twin.count_column(5, 0), twin.stride_column(16, 0)) == (b"", bytes(4))


@agree
@often
@given(SEEDS)
def test_the_twins_agree_on_decode_batches(draw: Draw) -> None:
    data = draw.log()
    first = int.from_bytes(data[16:24], "big") + draw.choice([0, 0, 0, 1, 2, -1])
    arguments = (
        draw.kind(draw.mangled(data)),
        max(0, first),
        draw.choice([0, 1, 2, 5, 1000]),
        *(draw.random() < 0.7 for _ in range(3)),
    )
    try:
        expected = pure.decode_batches(*arguments)
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)):
            fast.decode_batches(*arguments)
    else:
        assert fast.decode_batches(*arguments) == expected


@agree
@given(st.integers(0, 2**62), st.integers(0, 100))
def test_the_twins_agree_on_columns_of_numbers(first: int, count: int) -> None:
    both("count_column", first, count)
    both("stride_column", 1 + first % 1000, count)


# ---- from Arrow to the wire


def column(bodies: list[bytes], width: int) -> tuple[bytes, bytes]:
    """Bytes and offsets, as Arrow has them, behind a row that is not of the batch."""
    ends = [3]
    for body in bodies:
        ends.append(ends[-1] + len(body))
    return b"xyz" + b"".join(bodies), struct.pack("=" + ("i" if width == 4 else "q") * len(ends), *ends)


@each_twin
@pytest.mark.parametrize("width", [4, 8])
def test_a_column_is_laid_out_as_commands(twin: ModuleType, width: int) -> None:
    data, offsets = column([b"one", b"three"], width)
    body = b"\0\0\0\2" + b"\0\0\0\3one" + b"\0\0\0\5three"
    assert twin.lay_mpub(b"", data, offsets, width, 0, 2, 1000) == (body, 2)
    assert twin.lay_mpub(b"MPUB t\n", data, offsets, width, 0, 2, 1000) == (
        b"MPUB t\n" + len(body).to_bytes(4, "big") + body,
        2,
    )
    assert twin.lay_mpub(b"", data, offsets, width, 1, 2, 1000) == (b"\0\0\0\1\0\0\0\5three", 2)
    assert twin.lay_mpub(b"", data, offsets, width, 0, 2, len(body)) == (body, 2)
    assert twin.lay_mpub(b"", data, offsets, width, 0, 2, len(body) - 1) == (b"\0\0\0\1\0\0\0\3one", 1)
    assert twin.lay_mpub(b"", data, offsets, width, 2, 2, 1000) == (b"", 2)
    defers = struct.pack("=qq", 0, 12345)
    assert twin.lay_dpubs(b"t", data, offsets, width, defers, 0, 2, 1000) == (
        b"DPUB t 0\n\0\0\0\3oneDPUB t 12345\n\0\0\0\5three",
        2,
    )


@each_twin
def test_an_empty_body_ends_what_is_laid_out(twin: ModuleType) -> None:
    data, offsets = column([b"one", b"", b"three"], 4)
    assert twin.lay_mpub(b"", data, offsets, 4, 0, 3, 1000) == (b"\0\0\0\1\0\0\0\3one", 1)
    assert twin.lay_mpub(b"", data, offsets, 4, 1, 3, 1000) == (b"", 1)
    assert twin.lay_dpubs(b"t", data, offsets, 4, bytes(24), 1, 3, 1000) == (b"", 1)


@each_twin
@pytest.mark.parametrize("bad", [[3, 2], [-1, 2], [0, 99], [0]])
def test_offsets_that_lie_are_found_out(twin: ModuleType, bad: list[int]) -> None:
    offsets = struct.pack(f"={len(bad)}i", *bad)
    with pytest.raises(ValueError, match="beyond the"):
        twin.lay_mpub(b"", b"abcdef", offsets, 4, 0, 1, 1000)
    with pytest.raises(ValueError, match="beyond the"):
        twin.lay_dpubs(b"t", b"abcdef", offsets, 4, bytes(8), 0, 1, 1000)


@agree
@often
@given(
    st.lists(st.binary(max_size=40), max_size=12),
    st.sampled_from([4, 8]),
    st.integers(0, 12),
    st.integers(0, 300),
    st.data(),
)
def test_the_twins_agree_on_columns(
    bodies: list[bytes], width: int, first: int, most: int, data: st.DataObject
) -> None:
    first = min(first, len(bodies))
    values, offsets = column(bodies, width)
    defers = struct.pack(f"={len(bodies)}q", *(data.draw(st.integers(-(2**63), 2**63 - 1)) for _ in bodies))
    head = data.draw(st.sampled_from([b"", b"MPUB topic\n"]))
    both("lay_mpub", head, values, offsets, width, first, len(bodies), most)
    both("lay_dpubs", b"topic", values, offsets, width, defers, first, len(bodies), most)
