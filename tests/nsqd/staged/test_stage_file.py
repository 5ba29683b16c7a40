"""Stages on the disk: cut or flipped anywhere, only whole records are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsquark import kernel
from nsquark.errors import UnknownVersion
from nsquark.nsqd.staged import stage_file
from tests.nsqd.staged.test_staging import mpub_body

PUTS = [("t", [b"one", b"two"], 0), ("u", [b"x" * 100], 5), ("t", [b"three"], 0)]


def written(path: Path) -> list[int]:
    """Where each record of the file ends."""
    size, ends = 0, []
    for topic, bodies, defer_ms in PUTS:
        body = mpub_body(bodies)
        head = stage_file.pack_head(topic, len(bodies), defer_ms, body)
        size = stage_file.append(path, size, head, body)
        ends.append(size)
    return ends


def test_what_was_put_is_read(tmp_path: Path) -> None:
    path = tmp_path / "0.a"
    ends = written(path)
    for at_most in (stage_file.HEADER.size, 100, 1 << 20):
        found, offset = [], 0
        while offset < ends[-1]:
            records, offset = stage_file.read(path, offset, ends[-1], at_most)
            found += records
        assert [(each.topic, each.messages, each.defer_ms) for each in found] == [
            (topic, len(bodies), defer_ms) for topic, bodies, defer_ms in PUTS
        ]


def test_a_torn_end_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "0.a"
    ends = written(path)
    whole = path.read_bytes()
    for size in range(ends[-1]):
        path.write_bytes(whole[:size])
        contents = stage_file.recover(path, tmp_path / "aside")
        kept = max([end for end in ends if end <= size], default=0)
        assert (contents.size, contents.cut, contents.damage) == (kept, size - kept, None)
        assert contents.records == sum(end <= size for end in ends)
        assert path.stat().st_size == kept


@pytest.mark.parametrize("at", [0, 5, 9, 30, 60])
def test_a_flipped_bit_with_whole_records_behind_it_is_damage(tmp_path: Path, at: int) -> None:
    path = tmp_path / "0.a"
    ends = written(path)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    contents = stage_file.recover(path, tmp_path / "aside")
    assert contents.size in (0, ends[0])
    assert contents.damage is not None
    assert list(tmp_path.glob("aside*"))


def test_a_record_for_no_topic_is_no_whole_record(tmp_path: Path) -> None:
    path = tmp_path / "0.a"
    (first, *_) = written(path)
    data = path.read_bytes()
    body = mpub_body([b"lost"])
    head = bytearray(stage_file.pack_head("t", 1, 0, body))
    head[stage_file.HEADER.size] = 0xAE
    checked = bytes(head[8:]) + body
    head[4:8] = kernel.crc32c(checked, 0, len(checked)).to_bytes(4, "big")
    path.write_bytes(data[:first] + head + body + data[first:])
    contents = stage_file.recover(path, tmp_path / "aside")
    assert (contents.size, contents.records) == (first, 1)
    assert contents.damage is not None


def test_a_file_is_written_again_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "0.a"
    written(path)
    before, inode = path.read_bytes(), path.stat().st_ino
    stage_file.rewrite(path)
    assert path.read_bytes() == before
    assert path.stat().st_ino != inode
    path.write_bytes(before[:-1])
    with pytest.raises(OSError, match="no whole record"):
        stage_file.rewrite(path)
    assert [each.name for each in tmp_path.iterdir()] == ["0.a"]


def test_another_version_is_told_apart_from_damage(tmp_path: Path) -> None:
    path = tmp_path / "0.a"
    path.write_bytes(b"NQS2" + bytes(30))
    with pytest.raises(UnknownVersion):
        stage_file.check_version(path)
    path.write_bytes(b"NQSx" + bytes(30))
    stage_file.check_version(path)
