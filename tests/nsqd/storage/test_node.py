"""Ids are given once: over restarts, full disks and damaged files."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark.nsqd.storage import node
from nsquark.nsqd.storage.node import BLOCK_SHIFT, BLOCKS, NODE_SHIFT, STRETCH, Node, write_atomically
from tests.daemon import until
from tests.nsqd.api import running

BLOCK = 1 << BLOCK_SHIFT


class Given:
    """Every id that was ever leased, and that none was leased twice."""

    def __init__(self) -> None:
        self.leases: list[tuple[int, int]] = []

    def lease(self, source: Node, count: int) -> None:
        first, size = source.lease(count)
        assert size >= count
        for other, other_size in self.leases:
            assert first + size <= other or other + other_size <= first
        self.leases.append((first, size))


def saved(path: Path) -> dict[str, object]:
    document = json.loads((path / "nsquark.dat").read_bytes())
    assert isinstance(document, dict)
    return document


@settings(max_examples=100)
@given(st.integers(0, 2**64).map(random.Random))
def test_no_id_is_leased_twice(draw: random.Random) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)  # quicker, and the plug is not pulled here
        patch.setattr(node, "STRETCH", draw.choice([1, 3, 1024]))
        path, given_ids = Path(name), Given()
        damages = 0
        for _ in range(draw.randint(1, 6)):
            if damages == 0 and given_ids.leases and draw.random() < 0.4:
                damages += 1
                file = path / "nsquark.dat"
                data = file.read_bytes()
                at = draw.randrange(len(data))
                file.write_bytes(draw.choice([data[:at], b"", b"\0" * len(data), draw.randbytes(40), b"[]"]))
            source = Node(path, 5)
            for _ in range(draw.randint(0, 8)):
                given_ids.lease(source, draw.choice([1, 1, BLOCK, BLOCK + 1, 5 * BLOCK]))


def test_an_id_is_made_of_node_block_and_message(tmp_path: Path) -> None:
    source = Node(tmp_path, 1023)
    assert source.lease(1) == (1023 << NODE_SHIFT, BLOCK)
    assert source.lease(1) == (1023 << NODE_SHIFT | BLOCK, BLOCK)
    assert source.lease(BLOCK + 1) == (1023 << NODE_SHIFT | 2 * BLOCK, 2 * BLOCK)
    assert source.lease(1) == (1023 << NODE_SHIFT | 4 * BLOCK, BLOCK)
    assert (1023 << NODE_SHIFT | (BLOCKS << BLOCK_SHIFT) - 1) == 2**64 - 1


def test_the_file_is_ahead_of_what_was_leased(tmp_path: Path) -> None:
    source = Node(tmp_path, 0)
    for _ in range(STRETCH + 5):
        first, size = source.lease(1)
        assert int(str(saved(tmp_path)["blocks"])) >= (first + size) >> BLOCK_SHIFT


def test_the_file_is_seldom_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[Path] = []
    real = write_atomically
    monkeypatch.setattr(node, "write_atomically", lambda path, data: writes.append(path) or real(path, data))
    source = Node(tmp_path, 0)
    for _ in range(STRETCH):
        source.lease(1)
    assert len(writes) == 1
    source.lease(1)
    assert len(writes) == 2


def test_a_node_keeps_its_name_and_floor(tmp_path: Path) -> None:
    source = Node(tmp_path, 0)
    assert len(source.uuid) == 32
    assert source.floor == 0
    source.raise_floor(500)
    source.raise_floor(300)
    assert source.floor == 500
    source.save()
    again = Node(tmp_path, 0)
    assert (again.uuid, again.floor) == (source.uuid, 500)
    assert Node(tmp_path / ".", 7).uuid == source.uuid


def test_a_flipped_bit_gives_no_id_twice_and_is_told(tmp_path: Path) -> None:
    source = Node(tmp_path, 0)
    source.lease(1)
    path = tmp_path / node.FILE_NAME
    text = path.read_bytes()
    at = text.index(b'"blocks": 1') + len(b'"blocks": ')
    path.write_bytes(text[:at] + b"0" + text[at + 1 :])  # 1024 becomes 0024: another good number
    again = Node(tmp_path, 0)
    assert [each.file for each in again.damage] == [node.FILE_NAME]
    assert again.lease(1)[0] >= STRETCH << BLOCK_SHIFT


def test_a_file_of_an_older_release_reads(tmp_path: Path) -> None:
    (tmp_path / node.FILE_NAME).write_text('{"node": "ab", "blocks": 7, "floor": 5, "version": 1}')
    source = Node(tmp_path, 0)
    assert (source.uuid, source.floor, source.damage) == ("ab", 5, [])
    assert source.lease(1)[0] == 7 << BLOCK_SHIFT


def test_two_nodes_have_two_names(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert Node(tmp_path / "a", 0).uuid != Node(tmp_path / "b", 0).uuid


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"null",
        b"[1]",
        b'{"node":"x"}',
        b'{"node":"x","blocks":"many","floor":0}',
        b'{"node":"x","blocks":null,"floor":0}',
        b'{"node":"x","blocks":-1,"floor":0}',
        b'{"node":"x","blocks":1e300,"floor":0}',
        b'{"node":"x","blocks":5,"floor":Infinity}',
        b'{"node":"x","blocks":5,"floor":-1}',
        b"[" * 100_000,
        b"\xff\xfe\x00",
        b"\0" * 80,
    ],
)
def test_a_damaged_file_costs_a_stretch_of_ids_and_no_id(tmp_path: Path, damage: bytes) -> None:
    given_ids = Given()
    source = Node(tmp_path, 3)
    for _ in range(10):
        given_ids.lease(source, BLOCK)
    (tmp_path / "nsquark.dat").write_bytes(damage)
    again = Node(tmp_path, 3)
    for _ in range(10):
        given_ids.lease(again, BLOCK)
    third = Node(tmp_path, 3)
    given_ids.lease(third, 1)
    assert third.uuid == again.uuid


def test_a_disk_that_refuses_gives_no_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_ids = Given()
    source = Node(tmp_path, 0)
    for _ in range(STRETCH):
        given_ids.lease(source, 1)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                source.lease(1)
    given_ids.lease(source, 1)
    given_ids.lease(Node(tmp_path, 0), 1)


def test_a_node_ends_when_its_ids_do(tmp_path: Path) -> None:
    source = Node(tmp_path, 1)
    first, size = source.lease(BLOCKS * BLOCK - BLOCK)
    assert first + size == (2 << NODE_SHIFT) - BLOCK
    assert source.lease(BLOCK) == ((2 << NODE_SHIFT) - BLOCK, BLOCK)
    with pytest.raises(OverflowError):
        source.lease(1)


# ---- write_atomically


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    target = tmp_path / "file.dat"
    write_atomically(target, b"one")
    write_atomically(target, b"two")
    assert target.read_bytes() == b"two"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_file_that_cannot_be_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    target = tmp_path / "file.dat"
    write_atomically(target, b"one")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(OSError, match="No space left"):
            write_atomically(target, b"two")
    assert target.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [target]


def test_what_a_file_is_replaced_with_is_on_the_disk_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: calls.append("dir" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file") or fsync(fd),
    )
    monkeypatch.setattr(os, "replace", lambda *paths: calls.append("replace") or replace(*paths))
    write_atomically(tmp_path / "file.dat", b"x")
    assert calls == ["file", "replace", "dir"]


def test_a_node_that_has_lost_its_file_gives_no_id_again(tmp_path: Path) -> None:
    first, count = Node(tmp_path, 3).lease(1)
    (tmp_path / "nsquark.dat").unlink()
    (tmp_path / "topics" / "t").mkdir(parents=True)
    again, _ = Node(tmp_path, 3).lease(1)
    assert again >= first + count


async def test_a_crash_after_a_deletion_gives_no_position_twice(tmp_path: Path) -> None:
    """The folder of the topic is renamed at once, the node's file is written a little later."""
    (tmp_path / "data").mkdir()
    async with running(tmp_path / "data") as api:
        client = await api.client()
        await client.mpub("t", [b"x"] * 5)
        api.broker.delete_topic("t")
        being_written = shutil.ignore_patterns("*.tmp")  # the copy would find them gone
        shutil.copytree(tmp_path / "data", tmp_path / "killed", ignore=being_written)
    for again in range(2):
        async with running(tmp_path / "killed") as api:
            client = await api.client()
            await client.mpub(f"new{again}", [b"x"])
            assert api.broker.topics[f"new{again}"].log.first == 5
            await until(lambda: not list((tmp_path / "killed" / "topics").glob(".deleted.*")))


async def test_a_deleted_folder_of_an_earlier_version_is_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "topics" / ".deleted.0123456789abcdef"
    folder.mkdir(parents=True)
    (tmp_path / "nsquark.dat").write_text('{"node": "00", "blocks": 7, "floor": 3, "version": 1}')
    async with running(tmp_path) as api:
        assert api.broker.node.floor == 3
        await until(lambda: not folder.exists())
