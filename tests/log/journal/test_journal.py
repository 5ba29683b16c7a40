"""The journal: what is replayed is what was recorded, as far as whole blocks go."""

from __future__ import annotations

import copy
import errno
import os
import stat
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark import kernel
from nsquark.errors import UnknownVersion
from nsquark.kernel.pure import BLOCK
from nsquark.log import ChannelState, Deferred, Journal, JournalState
from nsquark.log.journal import journal
from nsquark.log.journal.records import CREATE, MAGIC
from tests.log.contents import Draw, directory

DRAWS = st.integers(0, 2**64).map(Draw)
NAMES = ["a", "b.c", "x" * 64, "d"]


@dataclass
class Channel:
    name: str
    position: int
    passed: set[int] = field(default_factory=set)
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass
class Model:
    """What a journal says, with sets and dictionaries."""

    channels: dict[int, Channel] = field(default_factory=dict)
    deferred: list[Deferred] = field(default_factory=list)
    pumped: int | None = None

    def view(self) -> object:
        return (
            {
                # what lies before the position is passed anyway
                each.name: (
                    number,
                    each.position,
                    {p for p in each.passed if p >= each.position},
                    each.waiting,
                )
                for number, each in self.channels.items()
            },
            self.deferred,
            self.pumped,
        )


def view(state: JournalState) -> object:
    return (
        {
            name: (
                channel.number,
                channel.position,
                {position for start, end in channel.passed for position in range(start, end)},
                channel.waiting,
            )
            for name, channel in state.channels.items()
        },
        state.deferred,
        state.pumped,
    )


class Writer:
    """A journal and its model, which hear the same."""

    def __init__(self, path: Path, draw: Draw) -> None:
        self.journal = Journal(path)
        self.model = Model()
        self.draw = draw
        self.next_number = 0
        self.stale: list[Path] = []

    def record(self) -> None:
        draw, model, out = self.draw, self.model, self.journal
        known = [*model.channels, 99]  # 99 never exists
        number = draw.choice(known)
        channel = model.channels.get(number, Channel("", 0))
        start = draw.randrange(60)
        end = start + draw.choice([1, 1, 1, 3, 20])
        match draw.randrange(12):
            case 0:
                free = [name for name in NAMES if name not in [each.name for each in model.channels.values()]]
                if free:
                    name = draw.choice(free)
                    out.create(self.next_number, name, start)
                    model.channels[self.next_number] = Channel(name, start)
                    self.next_number += 1
            case 1:
                out.delete(number)
                model.channels.pop(number, None)
            case 2 | 3:
                attempts, due = draw.choice([0, 1, 65535, 70000]), draw.choice([0, 5, 2**63 - 1])
                out.requeue(number, start, end, attempts, due)
                channel.passed |= set(range(start, end))
                channel.waiting |= dict.fromkeys(range(start, end), (min(attempts, 65535), due))
            case 4:
                out.move(number, start)
                channel.position, channel.passed, channel.waiting = start, set(), {}
            case 5:
                each = Deferred(start, end - start, draw.choice([1, 2**63 - 1]))
                out.defer(each)
                model.deferred.append(each)
            case 6:
                out.pump(start)
                model.pumped = start
            case _:
                for _ in range(draw.choice([1, 1, 4])):  # mostly in order
                    out.finish(number, start, end)
                    channel.passed |= set(range(start, end))
                    channel.waiting = {k: v for k, v in channel.waiting.items() if not start <= k < end}
                    start, end = end, end + draw.choice([1, 1, 5])

    def rewrite(self) -> None:
        """A snapshot of the model, as a topic makes it of its channels."""
        out, model = self.journal, self.model
        out.begin()
        if model.pumped is not None:
            out.pump(model.pumped)
        for each in model.deferred:
            out.defer(each)
        for number, channel in model.channels.items():
            out.create(number, channel.name, channel.position)
            for position in sorted(channel.passed):
                out.finish(number, position, position + 1)
            for position, (attempts, due) in channel.waiting.items():
                out.requeue(number, position, position + 1, attempts, due)
        fd, self.stale = out.rewrite()
        os.close(fd)


def generations(path: Path) -> list[Path]:
    return sorted(path.glob("journal.*"))


@settings(max_examples=250)
@given(DRAWS)
def test_what_is_replayed_is_what_was_recorded(draw: Draw) -> None:
    with directory() as path:
        writer = Writer(path, draw)
        writer.rewrite()
        for _ in range(draw.randint(0, 30)):
            writer.record()
            if draw.random() < 0.3:
                writer.journal.flush()
            if draw.random() < 0.05:
                writer.rewrite()
                if draw.random() < 0.7:
                    for stale in writer.stale:
                        stale.unlink()
        writer.journal.flush()
        assert not writer.journal.dirty
        writer.journal.close(sync=False)
        assert view(Journal(path).state) == writer.model.view()


@settings(max_examples=150)
@given(DRAWS)
def test_a_journal_cut_at_any_byte_is_a_prefix_of_its_blocks(draw: Draw) -> None:
    with directory() as path:
        writer = Writer(path, draw)
        writer.rewrite()
        [file] = generations(path)
        prefixes = [(file.stat().st_size, copy.deepcopy(writer.model.view()))]
        for _ in range(draw.randint(0, 8)):
            for _ in range(draw.randint(1, 4)):
                writer.record()
            writer.journal.flush()
            if file.stat().st_size > prefixes[-1][0]:
                prefixes.append((file.stat().st_size, copy.deepcopy(writer.model.view())))
        writer.journal.close(sync=False)
        data = bytearray(file.read_bytes())
        assert len(data) == prefixes[-1][0]
        at = draw.randrange(len(data))
        del data[at:]
        file.write_bytes(data)
        whole = [state for size, state in prefixes if size <= at]
        assert view(Journal(path).state) == (whole[-1] if whole else Model().view())


@settings(max_examples=150)
@given(DRAWS)
def test_behind_a_torn_snapshot_stands_the_file_before(draw: Draw) -> None:
    with directory() as path:
        writer = Writer(path, draw)
        writer.rewrite()
        for _ in range(draw.randint(0, 10)):
            writer.record()
        writer.journal.flush()
        before = copy.deepcopy(writer.model.view())
        for _ in range(draw.randint(0, 3)):  # the snapshot covers more than was flushed
            writer.record()
        writer.rewrite()
        snapshot = copy.deepcopy(writer.model.view())
        writer.journal.close(sync=False)
        old, new = generations(path)
        assert writer.stale == [old]
        data = new.read_bytes()
        size = draw.choice([len(data), draw.randrange(len(data)), 0])
        new.write_bytes(data[:size])

        again = Writer(path, draw)
        assert view(again.journal.state) == (snapshot if size == len(data) else before)
        # both give way to the next
        again.model = writer.model
        again.rewrite()
        again.journal.close(sync=False)
        assert again.stale == [old, new]
        for stale in again.stale:
            stale.unlink()
        assert [file.name for file in generations(path)] == ["journal.000003"]
        assert view(Journal(path).state) == writer.model.view()


# ---- the records one by one


def replayed(path: Path) -> JournalState:
    return Journal(path).state


def started(path: Path) -> Journal:
    """A journal with an empty snapshot."""
    fresh = Journal(path)
    fresh.begin()
    os.close(fresh.rewrite()[0])
    return fresh


def test_a_block_is_laid_out_as_documented(tmp_path: Path) -> None:
    out = Journal(tmp_path)
    out.begin()
    out.create(7, "ch", 3)
    out.finish(7, 4, 6)
    out.requeue(7, 5, 6, 2, 99)
    out.move(7, 8)
    out.defer(Deferred(9, 2, 77))
    out.pump(11)
    out.delete(7)
    os.close(out.rewrite()[0])
    out.close()
    data = (tmp_path / "journal.000001").read_bytes()
    records = (
        b"C" + bytes.fromhex("00000007 0000000000000003 02") + b"ch"
        b"F" + bytes.fromhex("00000007 0000000000000004 00000002") + b"R"
        + bytes.fromhex("00000007 0000000000000005 00000001 0002 0000000000000063") + b"M"
        + bytes.fromhex("00000007 0000000000000008") + b"Q"
        + bytes.fromhex("0000000000000009 00000002 000000000000004d") + b"P"
        + bytes.fromhex("000000000000000b") + b"D" + bytes.fromhex("00000007")
    )  # fmt: skip
    assert data[:4] == MAGIC
    assert data[8:12] == len(records).to_bytes(4, "big")
    assert data[12:] == records
    assert int.from_bytes(data[4:8], "big") == kernel.crc32c(data, 8, len(data))


def test_a_new_journal_knows_nothing(tmp_path: Path) -> None:
    fresh = Journal(tmp_path / "new")
    assert view(fresh.state) == Model().view()
    assert not fresh.dirty
    assert generations(tmp_path / "new") == []
    fresh.close()


def test_a_journal_without_a_directory_writes_nothing() -> None:
    out = Journal(None)
    out.create(0, "a", 0)
    out.finish(0, 0, 1)
    assert out.dirty
    out.flush()
    assert not out.dirty
    out.begin()
    assert out.rewrite() == (-1, [])
    assert out.start_sync()[0] == []
    out.close()


def test_fins_in_order_make_one_record(tmp_path: Path) -> None:
    out = started(tmp_path)
    out.create(0, "a", 0)
    out.flush()
    before = generations(tmp_path)[0].stat().st_size
    for position in range(1000):
        out.finish(0, position, position + 1)
    out.flush()
    assert generations(tmp_path)[0].stat().st_size == before + BLOCK.size + 17
    out.close()
    assert list(replayed(tmp_path).channels["a"].passed) == [(0, 1000)]


def test_fins_of_two_channels_stay_apart(tmp_path: Path) -> None:
    out = started(tmp_path)
    out.create(0, "a", 0)
    out.create(1, "b", 0)
    for position in range(0, 10, 2):
        out.finish(0, position, position + 1)
        out.finish(1, position + 1, position + 2)
    out.flush()
    out.close()
    channels = replayed(tmp_path).channels
    assert [start for start, _ in channels["a"].passed] == [0, 2, 4, 6, 8]
    assert [start for start, _ in channels["b"].passed] == [1, 3, 5, 7, 9]


def test_records_keep_their_order(tmp_path: Path) -> None:
    out = started(tmp_path)
    out.create(0, "a", 0)
    out.finish(0, 3, 4)
    out.requeue(0, 3, 4, 1, 0)  # finished, then back: it waits
    out.requeue(0, 5, 6, 1, 0)
    out.finish(0, 5, 6)  # back, then finished: it does not
    out.flush()
    out.close()
    state = replayed(tmp_path).channels["a"]
    assert state.waiting == {3: (1, 0)}
    assert list(state.passed) == [(3, 4), (5, 6)]


def test_a_finished_range_may_be_larger_than_a_record_can_say(tmp_path: Path) -> None:
    out = started(tmp_path)
    out.create(0, "a", 0)
    out.finish(0, 5, 5 + 2**33)
    out.flush()
    out.close()
    assert list(iter(replayed(tmp_path).channels["a"].passed)) == [(5, 5 + 2**33)]


def test_records_of_channels_that_are_not_there_are_passed_over(tmp_path: Path) -> None:
    out = started(tmp_path)
    out.finish(4, 0, 1)
    out.requeue(4, 0, 1, 1, 0)
    out.move(4, 9)
    out.delete(4)
    out.create(4, "a", 2)
    out.finish(5, 0, 10)
    out.finish(4, 7, 8)
    out.flush()
    out.close()
    state = replayed(tmp_path)
    assert view(state) == ({"a": (4, 2, {7}, {})}, [], None)


def test_a_channel_that_comes_back_begins_anew(tmp_path: Path) -> None:
    out = started(tmp_path)
    out.create(0, "a", 0)
    out.finish(0, 0, 5)
    out.delete(0)
    out.create(1, "a", 9)
    out.finish(0, 9, 12)  # of the old one: not of this
    out.flush()
    out.close()
    assert view(replayed(tmp_path)) == ({"a": (1, 9, set(), {})}, [], None)


def block_of(records: bytes) -> bytes:
    body = len(records).to_bytes(4, "big") + records
    return MAGIC + kernel.crc32c(body, 0, len(body)).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("added", "found"),
    [
        (block_of(b"P" + (5).to_bytes(8, "big") + b"Z" + b"whatever"), "a record b'Z'"),
        (b"NQJ2" + block_of(b"P" + bytes(8))[4:], "a block of format NQJ2"),
        (b"NQJ9", "a block of format NQJ9"),
        (block_of(b"N\0\0\0"), "a strange block at offset 39, a record does not read"),
        (
            block_of(CREATE.pack(b"C", 1, 5, 9) + b"cut"),
            "a strange block at offset 39, a record does not read",
        ),
        (
            block_of(CREATE.pack(b"C", 1, 5, 1) + b"\xff"),
            "a strange block at offset 39, a record does not read",
        ),
    ],
)
def test_what_another_version_writes_is_left_alone(tmp_path: Path, added: bytes, found: str) -> None:
    out = started(tmp_path)
    out.create(0, "a", 0)
    out.flush()
    out.close()
    with open(generations(tmp_path)[0], "ab") as file:
        file.write(added)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    with pytest.raises(UnknownVersion, match=f"journal.000001 has {found}"):
        Journal(tmp_path)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


# ---- damage


@settings(max_examples=150)
@given(DRAWS)
def test_a_damaged_block_costs_its_records_alone(draw: Draw) -> None:
    with directory() as path:
        writer = Writer(path, draw)
        writer.rewrite()
        [file] = generations(path)
        blocks = [0, file.stat().st_size]
        for _ in range(draw.randint(1, 8)):
            for _ in range(draw.randint(1, 4)):
                writer.record()
            writer.journal.flush()
            if file.stat().st_size > blocks[-1]:
                blocks.append(file.stat().st_size)
        writer.journal.close(sync=False)
        data = bytearray(file.read_bytes())
        pieces = [bytes(data[start:end]) for start, end in pairwise(blocks)]
        at = draw.randrange(len(data))
        data[at] ^= 0x80
        file.write_bytes(data)
        number = next(number for number, end in enumerate(blocks[1:]) if at < end)
        expected = JournalState()
        if number:
            for each, piece in enumerate(pieces):
                if each != number:
                    for block in split_blocks(piece):
                        expected.apply(memoryview(block))
        found = Journal(path)
        assert view(found.state) == view(expected)
        last = number == len(pieces) - 1
        if number and last:  # nothing whole behind it: a torn write
            assert [size for _, size in found.torn] == [len(pieces[number])]
            assert not found.records
        elif number:
            [record] = found.found
            assert record.path.read_bytes() == data[blocks[number] : blocks[number + 1]]
        else:
            assert found.damaged
            assert [record.path.read_bytes() for record in found.records] == [data]
        again = Journal(path)
        assert view(again.state) == view(expected)
        assert again.found == []
        assert again.records == found.records
        for each in found, again:
            each.close(sync=False)


def split_blocks(data: bytes) -> list[bytes]:
    """The records of each block."""
    found, at = [], 0
    while at < len(data):
        _, _, length = BLOCK.unpack_from(data, at)
        found.append(data[at + BLOCK.size : at + BLOCK.size + length])
        at += BLOCK.size + length
    return found


def test_blocks_behind_a_damaged_snapshot_are_not_applied_to_an_older_one(tmp_path: Path) -> None:
    """The numbers of channels may be others there: what is finished in one would be finished in another."""
    old = started(tmp_path)
    old.create(0, "a", 3)
    old.flush()
    old.begin()
    old.create(0, "b", 0)
    os.close(old.rewrite()[0])
    old.finish(0, 0, 9)
    old.flush()
    old.close()
    newest = generations(tmp_path)[-1]
    data = bytearray(newest.read_bytes())
    data[14] ^= 0x80
    newest.write_bytes(data)
    found = Journal(tmp_path)
    assert {name: each.position for name, each in found.state.channels.items()} == {"a": 3}
    assert list(found.state.channels["a"].passed) == []
    assert [record.path.read_bytes() for record in found.found] == [data]
    assert not found.damaged
    found.close()


def test_nothing_is_flushed_before_the_first_snapshot(tmp_path: Path) -> None:
    out = Journal(tmp_path)
    out.create(0, "a", 0)
    out.flush()
    assert generations(tmp_path) == []


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    started(tmp_path).close()
    assert stat.S_IMODE(generations(tmp_path)[0].stat().st_mode) == 0o600


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    for name in ("journal.old", "journal.", "journal.000001.tmp"):
        (tmp_path / name).write_bytes(b"x")
    out = started(tmp_path)
    out.close()
    assert (tmp_path / "journal.000001").exists()
    assert {path.read_bytes() for path in tmp_path.iterdir() if path.name != "journal.000001"} == {b"x"}


# ---- the state of a channel


@settings(max_examples=250)
@given(DRAWS)
def test_a_settled_channel_delivers_what_is_unfinished_and_there(draw: Draw) -> None:
    state, position = ChannelState(0, draw.randrange(10)), 0
    unfinished = set(range(state.position, 200))
    for _ in range(draw.randint(0, 15)):
        start = draw.randrange(60)
        end = start + draw.choice([1, 1, 5, 30])
        match draw.randrange(6):
            case 0:
                state.move(start)
                unfinished = set(range(start, 200))
            case 1 | 2:
                state.requeue(start, end, 1, 0)
                unfinished |= set(range(start, end))
            case _:
                state.finish(start, end)
                unfinished -= set(range(start, end))
    log_end = draw.choice([0, 20, 90, 150])
    state.settle(log_end)
    position = state.position
    assert position <= log_end
    found = {each for each in range(position, log_end) if each not in state.passed} | set(state.waiting)
    assert found == {each for each in unfinished if each < log_end}
    assert all(position <= start < end <= log_end for start, end in state.passed)
    assert position not in state.passed


# ---- growing, and a disk that refuses


def test_a_journal_is_overgrown_when_it_is_many_times_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "COMPACT_FROM", 500)
    out = started(tmp_path)
    while not out.overgrown:
        out.requeue(0, 0, 1, 1, 0)
        out.flush()
        assert generations(tmp_path)[0].stat().st_size < 600
    assert generations(tmp_path)[0].stat().st_size > 500
    out.begin()
    for number in range(20):
        out.create(number, f"channel-{number}", 0)
    fd, _ = out.rewrite()
    os.close(fd)
    assert not out.overgrown
    snapshot = generations(tmp_path)[-1].stat().st_size
    while not out.overgrown:
        out.requeue(0, 0, 1, 1, 0)
        out.flush()
    assert generations(tmp_path)[-1].stat().st_size > 8 * snapshot
    out.close()


def test_descriptors_to_sync(tmp_path: Path) -> None:
    out = started(tmp_path)
    assert out.start_sync()[0] == []
    out.pump(1)
    out.flush()
    [fd], _ = out.start_sync()
    assert os.readlink(f"/proc/self/fd/{fd}") == str(generations(tmp_path)[0])
    os.close(fd)
    assert out.start_sync()[0] == []
    out.close()


def refuse(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def half(fd: int, data: kernel.Buffer, real: object = os.write) -> int:
    """Takes half of what it is given, then refuses."""
    if len(data) < 10:
        return refuse(fd, data)
    return real(fd, memoryview(data)[: len(data) // 2])  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize("write", [refuse, half])
def test_a_block_that_could_not_be_written_is_mended_by_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: object
) -> None:
    out = started(tmp_path)
    out.create(0, "a", 0)
    out.flush()
    out.finish(0, 0, 5)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(OSError, match="No space left"):
            out.flush()
    assert not out.dirty
    assert out.overgrown  # it has missed something
    out.finish(0, 7, 8)
    out.flush()
    assert list(replayed(tmp_path).channels["a"].passed) == [(7, 8)]
    out.begin()
    out.create(0, "a", 0)
    out.finish(0, 0, 5)
    out.finish(0, 7, 8)
    os.close(out.rewrite()[0])
    assert not out.overgrown
    out.close()
    assert list(replayed(tmp_path).channels["a"].passed) == [(0, 5), (7, 8)]


@pytest.mark.parametrize("write", [refuse, half])
def test_a_snapshot_that_could_not_be_written_leaves_the_old_file_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: object
) -> None:
    out = started(tmp_path)
    out.create(0, "a", 0)
    out.flush()
    out.finish(0, 0, 5)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        out.begin()  # the record above is in the snapshot, and nowhere else
        out.create(0, "a", 5)
        with pytest.raises(OSError, match="No space left"):
            out.rewrite()
    assert [path.name for path in generations(tmp_path)] == ["journal.000001"]
    assert out.overgrown
    out.finish(0, 7, 8)
    out.flush()
    assert view(replayed(tmp_path)) == ({"a": (0, 0, {7}, {})}, [], None)
    out.begin()
    out.create(0, "a", 5)
    fd, stale = out.rewrite()
    os.close(fd)
    assert stale == [tmp_path / "journal.000001"]
    assert not out.overgrown
    out.close()
    assert view(replayed(tmp_path)) == ({"a": (0, 5, set(), {})}, [], None)


def test_a_first_snapshot_that_could_not_be_written_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Journal(tmp_path)
    out.begin()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        with pytest.raises(OSError, match="No space left"):
            out.rewrite()
    assert out.overgrown
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "open", refuse)
        with pytest.raises(OSError, match="No space left"):
            out.rewrite()
    assert out.overgrown
