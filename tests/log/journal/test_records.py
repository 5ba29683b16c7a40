"""The records of a journal on their way to its file."""

from __future__ import annotations

import os
import struct
import tempfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsquark import kernel
from nsquark.log import JournalRecords

STEPS = st.one_of(
    st.tuples(
        st.just("finish"),
        st.integers(0, 2),
        st.sampled_from([0, 1, 2, 3, 1 << 40]),
        st.sampled_from([0, 1, 2, 1 << 33]),
    ),
    st.tuples(st.just("add"), st.binary(max_size=9)),
    st.sampled_from([("block",), ("drop",), ("flush",), ("refused",)]),
)


class Model:
    """The same, record by record."""

    def __init__(self) -> None:
        self.gathered: list[Any] = []
        self.file = b""

    def finish(self, number: int, start: int, end: int) -> None:
        last = self.gathered[-1] if self.gathered else None
        if isinstance(last, list) and last[0] == number and last[2] == start:
            last[2] = end
        else:
            self.gathered.append([number, start, end])

    def block(self) -> bytes:
        records = b""
        for each in self.gathered:
            if isinstance(each, bytes):
                records += each
                continue
            number, start, end = each
            while start < end:
                count = min(end - start, 0xFFFFFFFF)
                records += struct.pack(">cIQI", b"F", number, start, count)
                start += count
        self.gathered.clear()
        behind = struct.pack(">I", len(records)) + records
        return b"NQJ1" + struct.pack(">I", kernel.crc32c(behind, 0, len(behind))) + behind


@given(st.lists(STEPS))
def test_records_become_blocks_of_the_file(steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryFile() as file:
        records, model = JournalRecords(), Model()
        copied: list[bytes] = []
        records.copy = copied.append
        records.fd = file.fileno()
        blocks: list[bytes] = []
        for name, *arguments in steps:
            if name == "finish":
                number, start, count = arguments
                records.finish(number, start, start + count)
                model.finish(number, start, start + count)
            elif name == "add":
                records.add(*arguments)
                model.gathered.append(arguments[0])
            elif name == "block":
                assert records.block() == model.block()
            elif name == "drop":
                records.drop()
                model.gathered.clear()
            else:
                dirty = bool(model.gathered)
                if name == "refused":
                    refuse(records, dirty)
                else:
                    records.flush()
                if dirty:
                    block = model.block()
                    blocks.append(block)
                    model.file += block if name == "flush" else b""
            assert records.dirty == bool(model.gathered)
            assert (records.size, records.unsynced) == (len(model.file), bool(model.file))
        assert copied == blocks
        file.seek(0)
        assert file.read() == model.file


def refuse(records: JournalRecords, dirty: bool) -> None:
    fd, records.fd = records.fd, os.open("/dev/full", os.O_WRONLY)
    try:
        if dirty:
            with pytest.raises(OSError):  # ENOSPC, or EINVAL of cutting off what was written
                records.flush()
            assert records.incomplete
        else:
            records.flush()
    finally:
        os.close(records.fd)
        records.fd = fd


def test_what_is_written_in_part_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def half(fd: int, data: Any) -> int:
        real(fd, memoryview(data)[:10])
        raise OSError(28, "No space left on device")

    with tempfile.TemporaryFile() as file:
        records = JournalRecords()
        records.fd = file.fileno()
        records.pump(1)
        records.flush()
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half)
            records.pump(2)
            with pytest.raises(OSError, match="No space left"):
                records.flush()
        assert (os.fstat(records.fd).st_size, records.incomplete) == (records.size, True)


def test_a_write_may_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    with tempfile.TemporaryFile() as file:
        records, whole = JournalRecords(), JournalRecords()
        records.fd = file.fileno()
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
        for each in (records, whole):
            each.finish(1, 5, 9)
            each.create(2, "name", 5)
        records.flush()
        file.seek(0)
        assert file.read() == whole.block()


def test_a_topic_without_files_gathers_nothing_but_what_is_finished() -> None:
    records = JournalRecords(gathers=False)
    records.pump(5)
    assert not records.dirty
    records.finish(1, 0, 5)
    assert records.dirty
    records.flush()  # there is no file
    assert (records.dirty, records.size) == (False, 0)
