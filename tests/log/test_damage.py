"""Damage costs the batches it lies in and no other, and what it has cost is kept aside."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from pathlib import Path
from typing import cast
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark import kernel
from nsquark.errors import LogDamaged, UnknownVersion
from nsquark.kernel import pure
from nsquark.kernel.pure import HEADER
from nsquark.log import (
    Cursor,
    Limits,
    LogReader,
    Segment,
    TimeSearch,
    TopicLog,
    acknowledge,
    read_messages,
    records,
    recovery,
)
from tests.log.contents import (
    EVERYTHING,
    Batch,
    Draw,
    Ids,
    Model,
    body_of,
    directory,
    segments,
    small_reads,
    split_batches,
    split_frames,
)

DRAWS = st.integers(0, 2**64).map(Draw)


def contents(log: TopicLog) -> dict[int, bytes]:
    """The frame of every position, as a cursor reads them; damage that it meets is left out."""
    cursor, found = Cursor(log, log.first, whatever_due=True), {}
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


def kept(batches: list[Batch]) -> dict[int, bytes]:
    return {batch.position + at: frame for batch in batches for at, frame in enumerate(batch.frames)}


def change(draw: Draw, data: bytearray) -> tuple[int, int]:
    """Flip, overwrite, insert or delete; returns which of the old bytes are touched."""
    at = draw.randrange(len(data))
    size = draw.choice([1, 1, 4, 20, 200, 1000])
    match draw.choice(["flip", "flip", "overwrite", "insert", "delete"]):
        case "flip":
            data[at] ^= 1 << draw.randrange(8)
            return at, at + 1
        case "overwrite":
            end = min(len(data), at + size)
            data[at:end] = bytes(byte ^ draw.randint(1, 255) for byte in data[at:end])
            return at, end
        case "insert":
            data[at:at] = draw.randbytes(size)
            return at, at
        case _:
            end = min(len(data), at + size)
            del data[at:end]
            return at, end


def untouched(batches: list[Batch], start: int, end: int) -> list[Batch]:
    return [
        each
        for each in batches
        if each.offset + each.length <= start
        or (end <= each.offset and (start, end) != (each.offset,) * 2)
        or start == end == each.offset
    ]


def published(draw: Draw, path: Path, limits: Limits, ids: Ids, commits: int) -> Model:
    model = Model()
    log = TopicLog(path, limits, ids)
    for _ in range(commits):
        model.publish(log, draw.commit())
    log.close(sync=False)
    return model


def batch_of(position: int, body: bytes) -> bytes:
    writer = pure.BatchWriter(position, position)
    writer.add_bodies([body], 1, 0)
    return writer.take()


def test_a_start_decides_about_damage_as_the_start_before_it(tmp_path: Path) -> None:
    """The last batch is damaged and cut off. Then the one before it, damaged too, is the last."""
    first = bytearray(batch_of(0, b"a body with " + batch_of(1, b"a batch in it")))
    first[23] ^= 4  # of the position
    last = batch_of(1, b"last")[:-1] + b"?"
    (tmp_path / f"{0:020d}.log").write_bytes(first + last)
    seen = []
    for _ in range(3):
        log = TopicLog(tmp_path, Limits(tail_messages=0), Ids())
        seen.append(
            (contents(log), list(log.lost), log.end, sorted(each.name for each in tmp_path.iterdir()))
        )
        log.close(sync=False)
    assert seen[1:] == seen[:-1]


@settings(max_examples=400)
@given(DRAWS)
def test_exactly_the_untouched_batches_remain(draw: Draw) -> None:
    with directory() as path, small_reads(draw.choice([100, 500, 1 << 20])):
        limits, ids = Limits(tail_messages=0, max_bytes_per_file=draw.choice([1 << 20, 600])), draw.ids()
        published(draw, path, limits, ids, draw.randint(1, 12))
        victim = draw.choice(segments(path))
        batches = split_batches(victim.read_bytes())
        data = bytearray(victim.read_bytes())
        start, end = change(draw, data)
        victim.write_bytes(data)
        expected = kept(untouched(batches, start, end))
        for other in segments(path):
            if other != victim:
                expected |= kept(split_batches(other.read_bytes()))
        before = {each.name: each.read_bytes() for each in path.iterdir()}

        for _ in range(2):
            try:
                log = TopicLog(path, limits, ids)
                assert contents(log) == expected
            except UnknownVersion:
                magics = [victim.read_bytes()[each.offset :][:4] for each in batches]
                assert any(magic != b"NQB1" and magic[:3] == b"NQB" for magic in magics)
                assert {each.name: each.read_bytes() for each in path.iterdir()} == before
                return
            lost = {position for first, end in log.lost for position in range(first, end)}
            everything = range(log.first, log.end)
            assert set(expected) == set(everything) - lost
            # every byte that is gone from the log is in a record
            for record in records(path):
                damage = record.damage
                assert record.path.read_bytes() == data[damage.offset : damage.offset + damage.length]
            names = sorted(each.name for each in path.iterdir())
            log.close(sync=False)
        # a start finds what the one before has found, and nothing else
        TopicLog(path, limits, ids).close(sync=False)
        assert sorted(each.name for each in path.iterdir()) == names
        # and on it goes
        log = TopicLog(path, limits, ids)
        frames = contents(log)
        log.add_bodies([b"more"], 1, 0)
        log.commit()
        assert [body_of(frame) for frame in [*contents(log).values()][len(frames) :]] == [b"more"]
        log.close(sync=False)


@settings(max_examples=200)
@given(DRAWS)
def test_two_flips_cost_two_batches(draw: Draw) -> None:
    with directory() as path, small_reads(draw.choice([100, 500, 1 << 20])):
        limits, ids = Limits(tail_messages=0), draw.ids()
        published(draw, path, limits, ids, 10)
        [victim] = segments(path)
        data = bytearray(victim.read_bytes())
        batches = split_batches(bytes(data))
        left = batches
        for _ in range(2):
            at = draw.randrange(len(data))
            data[at] ^= 0x80  # which makes no digit of another
            left = [each for each in left if not each.offset <= at < each.offset + each.length]
        if data == victim.read_bytes():
            return
        victim.write_bytes(data)
        log = TopicLog(path, limits, ids)
        assert contents(log) == kept(left)
        log.close(sync=False)


# ---- the repair is interrupted


class Stopped(BaseException):
    """The process is gone."""


def test_a_repair_that_is_interrupted_anywhere_is_the_same_repair(tmp_path: Path) -> None:
    limits, ids = Limits(tail_messages=0), Ids()
    origin = tmp_path / "origin"
    published(Draw(5), origin, limits, ids, 8)
    [victim] = segments(origin)
    data = bytearray(victim.read_bytes())
    batches = split_batches(bytes(data))
    for batch in batches[2], batches[5]:
        data[batch.offset + 60] ^= 1
    del data[-5:]
    victim.write_bytes(data)
    expected = kept([each for each in batches[:-1] if each not in (batches[2], batches[5])])

    steps = 0
    for stop_at in range(100):
        path = tmp_path / f"stopped-at-{stop_at}"
        shutil.copytree(origin, path)
        calls = 0

        def counted(real: object, stop_at: int = stop_at) -> mock.Mock:
            def call(*arguments: object, **named: object) -> object:
                nonlocal calls
                calls += 1
                if calls == stop_at + 1:
                    raise Stopped
                return real(*arguments, **named)  # type: ignore[operator]

            return mock.Mock(side_effect=call)

        names = ("rename", "fsync", "truncate", "open", "fchmod", "unlink")
        with mock.patch.multiple(os, **{name: counted(getattr(os, name)) for name in names}):
            try:
                TopicLog(path, limits, ids).close(sync=False)
                steps = stop_at
                break
            except Stopped:
                pass
        log = TopicLog(path, limits, ids)
        assert contents(log) == expected
        assert len(records(path)) == 2
        assert not list(path.glob("*.tmp"))
        log.close(sync=False)
    assert steps > 5


def test_nothing_is_cut_while_damage_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits, ids = Limits(), Ids()
    published(Draw(5), tmp_path, limits, ids, 8)
    [victim] = segments(tmp_path)
    data = bytearray(victim.read_bytes())
    data[len(data) // 3] ^= 1
    victim.write_bytes(data + b"torn")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            TopicLog(tmp_path, limits, ids)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


# ---- records


def one_lost(path: Path, number: int = 3, per_file: int = 1 << 20) -> tuple[TopicLog, list[Batch], bytes]:
    """A log of ten batches of two messages, of which one is damaged; and that one's bytes."""
    limits, ids = Limits(tail_messages=0, max_bytes_per_file=per_file), Ids()
    log = TopicLog(path, limits, ids)
    for at in range(10):
        log.add_bodies([b"%d.%d" % (at, each) * 20 for each in range(2)], at * 1000, 0)
        log.commit()
    log.close(sync=False)
    batches = [batch for each in segments(path) for batch in split_batches(each.read_bytes())]
    at, found = 0, b""
    for each in segments(path):
        data = bytearray(each.read_bytes())
        for batch in split_batches(bytes(data)):
            if at == number:
                data[batch.offset + 55] ^= 4
                found = bytes(data[batch.offset : batch.offset + batch.length])
            at += 1
        each.write_bytes(data)
    return TopicLog(path, limits, ids), batches, found


def test_the_name_of_a_record_says_what_it_is(tmp_path: Path) -> None:
    log, batches, lost = one_lost(tmp_path)
    name = f"{0:020d}.log.{batches[3].offset}+{batches[3].length}.6-8.bad"
    assert (tmp_path / name).read_bytes() == lost
    [record] = log.found
    assert record.lost == (6, 8)
    assert "lost positions 6 to 7" in str(record)
    assert name in str(record)
    assert log.cut is None
    log.close(sync=False)


def test_a_record_is_found_once_and_acknowledged_for_good(tmp_path: Path) -> None:
    log, _, lost = one_lost(tmp_path)
    log.close(sync=False)
    for _ in range(2):
        log = TopicLog(tmp_path, Limits(), Ids())
        assert log.found == []
        assert [record.lost for record in log.records] == [(6, 8)]
        log.close(sync=False)
    acknowledge(log.records[0])
    log = TopicLog(tmp_path, Limits(), Ids())
    assert (log.found, log.records) == ([], [])
    assert list(log.lost) == [(6, 8)]
    [record] = records(tmp_path)
    assert record.acknowledged
    assert record.path.read_bytes() == lost
    log.close(sync=False)


def test_a_record_is_never_overwritten(tmp_path: Path) -> None:
    log, batches, _ = one_lost(tmp_path)
    log.close(sync=False)
    [old] = records(tmp_path)
    before = old.path.read_bytes()
    with segments(tmp_path)[0].open("r+b") as file:
        file.seek(batches[3].offset + 70)
        file.write(b"more of it")
    log = TopicLog(tmp_path, Limits(), Ids())
    assert old.path.read_bytes() == before
    assert len(records(tmp_path)) == 2
    assert list(log.lost) == [(6, 8)]
    log.close(sync=False)


def test_an_old_file_is_left_as_its_records_say(tmp_path: Path) -> None:
    """A start does not look into old files, and knows what they have lost all the same."""
    log, batches, _ = one_lost(tmp_path, per_file=600)
    assert len(log.segments) > 2
    assert not log.lost
    assert contents(log) == kept([each for each in batches if each is not batches[3]])
    assert list(log.lost) == [(6, 8)]
    log.close(sync=False)
    log = TopicLog(tmp_path, Limits(tail_messages=0), Ids())
    assert list(log.lost) == [(6, 8)]
    assert contents(log) == kept([each for each in batches if each is not batches[3]])
    log.close(sync=False)


def test_a_file_goes_with_all_that_is_left_of_it(tmp_path: Path) -> None:
    log, _, _ = one_lost(tmp_path, number=1, per_file=800)
    contents(log)
    first, second = segments(tmp_path)[:2]
    end = int(second.stem)
    assert [each.path for each in log.segments].count(first) == 2
    assert log.trim(end - 1, 0.0) == []
    assert {each.path for each in log.trim(end, 0.0)} == {first}
    assert log.first == end
    assert not log.lost
    log.close(sync=False)


@pytest.mark.parametrize("content", [b"", b"\0" * 600])
def test_an_old_file_with_nothing_whole(tmp_path: Path, content: bytes) -> None:
    log, batches, _ = one_lost(tmp_path, number=99, per_file=600)
    log.close(sync=False)
    victim, following = segments(tmp_path)[1:3]
    victim.write_bytes(content)
    gone = range(int(victim.stem), int(following.stem))
    left = kept([each for each in batches if each.position not in gone])
    for _ in range(2):
        log = TopicLog(tmp_path, Limits(tail_messages=0), Ids())
        assert contents(log) == left
        assert list(log.lost) == [(gone.start, gone.stop)]
        assert TimeSearch(log).position_at(4500) == 10
        log.close(sync=False)


# ---- every other reader


@pytest.mark.parametrize("per_file", [600, 1 << 20])
def test_readers_stop_at_what_is_lost_and_go_on_behind_it(tmp_path: Path, per_file: int) -> None:
    log, batches, _ = one_lost(tmp_path, per_file=per_file)
    expected = contents(log)
    for start in range(21):
        for end in range(start, 21):
            reader = LogReader(log, start, end, EVERYTHING)
            found = {each.position: bytes(each.frame) for each in read_messages(reader)}
            stop = min(end, 6) if start < 6 else start if start < 8 else end
            assert found == {position: expected[position] for position in range(start, stop)}
            reader = LogReader(log, start, end, EVERYTHING, indexed=False)
            reader.locate()
            raw = b"".join(iter(reader.read, b""))
            assert [each.position for each in split_batches(raw)] == [
                each.position
                for each in batches
                if each.position < stop and each.position + 2 > start < stop and each is not batches[3]
            ]
            reader.close()
    for time, position in ((0, 0), (2500, 6), (3000, 6), (3500, 8), (4000, 8), (9000, 18), (9500, 20)):
        found_at = log.lost.next_gap(TimeSearch(log).position_at(time))
        assert found_at == log.lost.next_gap(position)
    assert log.gaps(0) == [(6, 8)]
    assert log.gaps(7) == [(7, 8)]
    assert log.gaps(8) == []
    for position in range(20):
        run = Cursor(log, position).read(1, EVERYTHING)
        assert run is not None
        assert run.position == log.lost.next_gap(position)
    log.close(sync=False)


def test_what_another_process_has_written_is_checked_before_it_is_read(tmp_path: Path) -> None:
    limits, ids, model = Limits(tail_messages=0, max_bytes_per_file=400), Ids(), Model()
    log = TopicLog(tmp_path, limits, ids)
    for at in range(6):
        model.publish(log, [(0, [b"%d" % at * 50])])
    log.close(sync=False)
    victim = segments(tmp_path)[0]
    data = bytearray(victim.read_bytes())
    data[100] ^= 1  # in the first body: nothing but the CRC can tell
    victim.write_bytes(data)
    log = TopicLog(tmp_path, limits, ids)
    assert contents(log) == {position: model.frame(position) for position in range(1, 6)}
    assert [record.lost for record in log.records] == [(0, 1)]
    log.close(sync=False)


# ---- what clients put into bodies


def forged(position: int, first_id: int, body: bytes = b"forged") -> bytes:
    writer = kernel.BatchWriter(position, first_id)
    writer.add_bodies([body], 1, 0)
    return writer.take()


@pytest.mark.parametrize("position", [1, 2, 3, 50])
def test_a_batch_in_a_body_is_not_believed(position: int) -> None:
    """Whichever single bit of a batch is flipped, and whatever is cut out of it or put in."""
    with directory() as path:
        limits, ids = Limits(tail_messages=0), Ids()
        log, model = TopicLog(path, limits, ids), Model()
        fake = b"x" * 10 + forged(position, 5 << 54) + b"y" * 10
        for bodies in ([b"before"], [fake, fake * 2], [b"behind"], [b"last"]):
            model.publish(log, [(0, bodies)])
        log.close(sync=False)
        [file] = segments(path)
        data = file.read_bytes()
        before, victim, behind, last = split_batches(data)
        left = kept([before, behind, last])
        changed = []
        for at in range(victim.offset + 4, victim.offset + victim.length):
            bit = 1 << at % 8
            changed.append(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        for at in range(victim.offset + 48, victim.offset + victim.length - 1, 7):
            changed.append(data[:at] + b"!!!" + data[at:])
            changed.append(data[:at] + data[at + 3 :] if at + 3 <= victim.offset + victim.length else data)
        for each in changed:
            if each == data:
                continue
            file.write_bytes(each)
            log = TopicLog(path, limits, ids)
            assert contents(log) == left
            log.close(sync=False)
            for record in records(path):
                record.path.unlink()


def test_a_batch_in_a_body_that_was_cut_short_is_not_believed(tmp_path: Path) -> None:
    limits, ids = Limits(tail_messages=0), Ids()
    log, model = TopicLog(tmp_path, limits, ids), Model()
    fakes = b"".join(forged(position, 5 << 54) for position in (2, 2, 3, 50))
    for bodies in ([b"before"], [fakes + b"x" * 100]):
        model.publish(log, [(0, bodies)])
    log.close(sync=False)
    [path] = segments(tmp_path)
    data = path.read_bytes()
    before, victim = split_batches(data)
    boundaries = {victim.offset + 48 + 34 + at * 88 for at in range(1, 5)}
    for size in range(victim.offset + 1, len(data)):
        if size in boundaries:
            continue  # a file that was cut there could not be told from one that was written so
        path.write_bytes(data[:size])
        log = TopicLog(tmp_path, limits, ids)
        assert contents(log) == kept([before])
        assert log.cut == (path, size - victim.offset)
        assert not records(tmp_path)
        log.close(sync=False)


def test_a_search_gives_up_before_it_takes_for_ever(tmp_path: Path) -> None:
    """A body full of headers that claim the rest of the file; and nothing is thrown away for it."""
    header = struct.Struct(">4sIIIQQqq")
    fake = header.pack(b"NQB1", 7, 60_000, 1, 2, 5, 1, 0) + struct.pack(
        ">IIqH16s", 59_948, 2, 1, 1, b"0" * 16
    )
    limits, ids = Limits(tail_messages=0), Ids()
    log, model = TopicLog(tmp_path, limits, ids), Model()
    for bodies in ([b"before"], [b"x" * 100, fake * 5000], [b"behind"]):
        model.publish(log, [(0, bodies)])
    log.close(sync=False)
    [path] = segments(tmp_path)
    data = bytearray(path.read_bytes())
    victim = split_batches(bytes(data))[1]
    data[victim.offset + 8] ^= 1  # the length, and the size of the first frame
    data[victim.offset + 48] ^= 1
    path.write_bytes(data)
    checked = 0
    real = kernel.crc32c

    def counting(data: kernel.Buffer, start: int, end: int) -> int:
        nonlocal checked
        checked += end - start
        return real(data, start, end)

    with mock.patch.object(recovery.kernel, "crc32c", counting):
        log = TopicLog(tmp_path, limits, ids)
    assert checked < 20 * len(data)
    assert contents(log) == {0: model.frame(0)}
    [record] = records(tmp_path)
    assert record.path.read_bytes() == data[victim.offset :]
    log.close(sync=False)


# ---- another version


@pytest.mark.parametrize("number", [0, 4, 9])
@pytest.mark.parametrize("newest", [False, True])
def test_another_version_is_left_alone(tmp_path: Path, number: int, newest: bool) -> None:
    log, _, _ = one_lost(tmp_path, number=99, per_file=1 << 20 if newest else 600)
    log.close(sync=False)
    victim = segments(tmp_path)[-1 if newest else 0]
    batches = split_batches(victim.read_bytes())
    at = batches[number if newest else 0].offset
    data = bytearray(victim.read_bytes())
    data[at : at + 4] = b"NQB2"
    victim.write_bytes(data)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    with pytest.raises(UnknownVersion, match=f"{victim.name} has a batch of format NQB2 at offset {at}"):
        TopicLog(tmp_path, Limits(), Ids())
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_a_length_that_leads_past_a_whole_batch_is_not_followed(tmp_path: Path) -> None:
    limits, ids = Limits(tail_messages=0), Ids()
    log = TopicLog(tmp_path, limits, ids)
    for body in (b"a", b"b" * 500, b"c", b"d", b"e"):
        log.add_bodies([body], 1, 0)
        log.commit()
    log.close(sync=False)
    [victim] = segments(tmp_path)
    data = victim.read_bytes()
    batches = split_batches(data)
    end = batches[1].offset + batches[1].length
    # Without these bytes the last batch lies where the length of the second says that it ends.
    victim.write_bytes(data[: end - batches[3].length] + data[end + batches[2].length :])
    log = TopicLog(tmp_path, limits, ids)
    assert sorted(contents(log)) == [0, 3, 4]
    log.close(sync=False)


def test_a_length_that_leads_beyond_the_end_hides_no_whole_batch_before_other_damage(tmp_path: Path) -> None:
    """As after a write that was cut short, but a whole batch reaches the end, and another lies before it."""
    limits, ids = Limits(tail_messages=0), Ids()
    log = TopicLog(tmp_path, limits, ids)
    for body in (b"a", b"b", b"c", b"d"):
        log.add_bodies([body], 1, 0)
        log.commit()
    log.close(sync=False)
    [victim] = segments(tmp_path)
    data = bytearray(victim.read_bytes())
    first, _, third, _ = split_batches(bytes(data))
    data[first.offset + 8] = data[first.offset + HEADER.size] = 0x7F  # the length, and that of the frame
    data[third.offset + third.length - 1] ^= 1
    victim.write_bytes(data)
    log = TopicLog(tmp_path, limits, ids)
    assert sorted(contents(log)) == [1, 3]
    log.close(sync=False)


def test_what_lies_before_a_batch_that_reaches_the_end_is_kept_without_the_exact_position(
    tmp_path: Path,
) -> None:
    """As after a write that was cut short, but a whole batch reaches the end.

    So the log went on, and the next batch is damaged, too. The one behind that is whole.
    """
    limits, ids = Limits(tail_messages=0), Ids()
    log = TopicLog(tmp_path, limits, ids)
    for body in (b"a", b"b", b"c", b"d", b"e"):
        log.add_bodies([body], 1, 0)
        log.commit()
    log.close(sync=False)
    [victim] = segments(tmp_path)
    data = bytearray(victim.read_bytes())
    first, second, _, fourth, _ = split_batches(bytes(data))
    data[first.offset + 8] = data[first.offset + HEADER.size] = 0x7F  # the length, and that of the frame
    for each in (second, fourth):
        data[each.offset + each.length - 1] ^= 1
    victim.write_bytes(data)
    for _ in range(2):
        log = TopicLog(tmp_path, limits, ids)
        assert sorted(contents(log)) == [2, 4]
        assert list(log.lost) == [(0, 2), (3, 4)]
        log.close(sync=False)


def test_what_cannot_come_before_a_batch_that_reaches_the_end_is_in_a_body(tmp_path: Path) -> None:
    """The first batch looks like a write that was cut short. Its body has a batch of a later position."""
    limits, ids, model = Limits(tail_messages=0), Ids(), Model()
    log = TopicLog(tmp_path, limits, ids)
    for body in (b"a" * 20 + forged(4, 5 << 54) + b"z", b"b", b"c", b"d"):
        model.publish(log, [(0, [body])])
    log.close(sync=False)
    [victim] = segments(tmp_path)
    data = bytearray(victim.read_bytes())
    first, second, _, _ = split_batches(bytes(data))
    data[first.offset + 8] = data[first.offset + HEADER.size] = 0x7F
    data[second.offset + second.length - 1] ^= 1
    victim.write_bytes(data)
    log = TopicLog(tmp_path, limits, ids)
    assert contents(log) == {position: model.frame(position) for position in (2, 3)}
    log.close(sync=False)


@pytest.mark.parametrize("position", [1, 2, 3, 50])
@pytest.mark.parametrize("behind", [b"", b"y" * 10])
def test_a_batch_in_a_body_of_the_last_batch_is_not_believed(
    tmp_path: Path, position: int, behind: bytes
) -> None:
    """Whichever single bit of its header or of its first message is flipped."""
    limits, ids = Limits(tail_messages=0), Ids()
    log, model = TopicLog(tmp_path, limits, ids), Model()
    fake = b"x" * 10 + forged(position, 5 << 54) + b"y" * 10
    for bodies in ([b"before"], [fake, fake + behind]):
        model.publish(log, [(0, bodies)])
    log.close(sync=False)
    [file] = segments(tmp_path)
    data = file.read_bytes()
    before, victim = split_batches(data)
    for at in range(victim.offset + 4, victim.offset + len(victim.frames[0])):
        for bit in range(8):
            file.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            log = TopicLog(tmp_path, limits, ids)
            assert contents(log) == kept([before])
            log.close(sync=False)
            assert not records(tmp_path)


def test_a_write_that_was_cut_short_between_two_messages_hides_no_batch(tmp_path: Path) -> None:
    limits, ids = Limits(tail_messages=0), Ids()
    log, model = TopicLog(tmp_path, limits, ids), Model()
    fake = b"x" * 10 + forged(3, 5 << 54) + b"y" * 10
    for bodies in ([b"before"], [fake, fake, fake]):
        model.publish(log, [(0, bodies)])
    log.close(sync=False)
    [file] = segments(tmp_path)
    data = file.read_bytes()
    before, victim = split_batches(data)
    for count in (1, 2):
        size = victim.offset + HEADER.size + count * len(victim.frames[0])
        file.write_bytes(data[:size])
        log = TopicLog(tmp_path, limits, ids)
        assert contents(log) == kept([before])
        assert log.cut == (file, size - victim.offset)
        log.close(sync=False)


@pytest.mark.parametrize("position", [2, 3, 50])
@pytest.mark.parametrize("junk", [0, 14, 60])
def test_a_body_that_ends_with_a_batch_is_not_believed_where_a_size_is_flipped(
    tmp_path: Path, position: int, junk: int
) -> None:
    """The length in the header of the last batch is right, and the sizes of its frames lead into the body."""
    limits, ids = Limits(tail_messages=0), Ids()
    log, model = TopicLog(tmp_path, limits, ids), Model()
    for bodies in ([b"before"], [b"x" * junk + forged(position, 5 << 54)]):
        model.publish(log, [(0, bodies)])
    log.close(sync=False)
    [file] = segments(tmp_path)
    data = file.read_bytes()
    before, victim = split_batches(data)
    for at in range(victim.offset + HEADER.size, victim.offset + HEADER.size + 4):
        for bit in range(8):
            file.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            log = TopicLog(tmp_path, limits, ids)
            assert contents(log) == kept([before])
            log.close(sync=False)


@pytest.mark.parametrize("field", [8, HEADER.size])
def test_a_flipped_bit_that_leads_to_the_end_of_the_file_by_chance_costs_one_batch(
    tmp_path: Path, field: int
) -> None:
    """Be it in the length of a batch, or in the size of its message: the other one leads to what follows."""
    limits, ids = Limits(tail_messages=0), Ids()
    log, model = TopicLog(tmp_path, limits, ids), Model()
    for body in (b"damaged", b"x" * (256 - HEADER.size - 34)):
        model.publish(log, [(0, [body])])
    log.close(sync=False)
    [file] = segments(tmp_path)
    data = bytearray(file.read_bytes())
    victim, following = split_batches(bytes(data))
    assert following.length == 256
    data[victim.offset + field + 2] ^= 1  # 256 more
    file.write_bytes(data)
    log = TopicLog(tmp_path, limits, ids)
    assert contents(log) == kept([following])
    log.close(sync=False)
