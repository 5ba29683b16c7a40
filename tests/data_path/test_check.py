"""`check` finds each kind of damage, and what it repairs starts."""

import asyncio
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsquark.data_path.check import NotADataPath, check, repair
from nsquark.data_path.findings import Level, Report
from nsquark.kernel.pure import HEADER
from nsquark.nsqd.storage import node
from tests.daemon import Nsqd
from tests.data_path.conftest import SMALL_SEGMENTS
from tests.diskqueue.queues import record, write_metadata, write_queue


def texts(report: Report, level: Level = Level.ERROR) -> list[str]:
    return [f"{each.path.name}: {each.text}" for each in report.findings if each.level >= level]


def segments(data_path: Path, topic: str = "orders") -> list[Path]:
    return sorted((data_path / "topics" / topic).glob("*.log"))


def journal(data_path: Path, topic: str = "orders") -> Path:
    return max((data_path / "topics" / topic).glob("journal.*"))


def flip(path: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def contents(path: Path) -> dict[Path, bytes]:
    return {each: each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


def test_a_sound_directory_is_summed_up(data_path: Path) -> None:
    before = contents(data_path)
    report = check(data_path)
    assert report.findings == []
    idle, orders = report.topics
    assert (orders.name, orders.first, orders.end) == ("orders", 0, 201)
    assert orders.segments == len(segments(data_path)) > 3
    assert {each.name: (each.unfinished, each.oldest) for each in orders.channels} == {
        "archive": (201, 0),
        "billing": (151, 0),
    }
    assert orders.oldest_ns is not None
    assert orders.newest_ns is not None
    assert orders.oldest_ns < orders.newest_ns
    assert (idle.name, idle.end - idle.first, idle.channels) == ("idle", 5, [])
    assert report.bytes_read >= orders.size + idle.size
    assert contents(data_path) == before


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_anywhere_is_found(data_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    files = [*segments(data_path), journal(data_path), data_path / "staged/nightly/1/0.a1"]
    for path in files:
        whole = path.read_bytes()
        for _ in range(40):
            at = chance.randrange(len(whole))
            flip(path, at, chance.randrange(8))
            report = check(data_path)
            assert report.worst > Level.NOTE, (path, at)
            assert any(each.path in (path, path.parent) for each in report.findings), (path, at)
            path.write_bytes(whole)
    assert check(data_path).findings == []


@pytest.mark.parametrize("seed", range(2))
def test_a_cut_of_any_file_is_found(data_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for path in [*segments(data_path), journal(data_path), data_path / "staged/nightly/1/0.a1"]:
        whole = path.read_bytes()
        for _ in range(20):
            path.write_bytes(whole[: chance.randrange(1, len(whole))])
            assert check(data_path).worst > Level.NOTE, path
        path.write_bytes(whole)


def test_a_torn_tail_is_what_a_start_would_cut(data_path: Path) -> None:
    newest = segments(data_path)[-1]
    with newest.open("ab") as file:
        file.write(newest.read_bytes()[:70])
    report = check(data_path)
    assert texts(report, Level.WARNING) == [
        f"{newest.name}: a torn write: a start would cut off 70 bytes at offset {newest.stat().st_size - 70}"
    ]
    assert report.worst is Level.WARNING


@pytest.mark.parametrize("which", [0, 1, -2, -1])
def test_a_missing_segment_is_found(data_path: Path, which: int) -> None:
    segments(data_path)[which].unlink()
    report = check(data_path)
    assert report.worst is Level.ERROR
    assert any("missing" in each for each in texts(report))


def test_a_missing_topic_is_found(data_path: Path) -> None:
    shutil.rmtree(data_path / "topics" / "idle")
    assert texts(check(data_path)) == ["idle: topic idle, which nsqd.dat names, has no files"]


def test_a_journal_of_another_log_is_found(data_path: Path, tmp_path: Path) -> None:
    async def fill(nsqd: Nsqd) -> None:
        await nsqd.post("/channel/create?topic=orders&channel=billing", b"")
        async with await nsqd.connect() as client:
            for _ in range(10):
                await client.dpub("orders", 60_000, b"deferred elsewhere")

    with Nsqd(tmp_path / "other").start() as nsqd:
        asyncio.run(nsqd.post("/topic/create?topic=orders"))
        asyncio.run(fill(nsqd))
        nsqd.stop()
    ours = journal(data_path)
    whole = ours.read_bytes()
    ours.write_bytes(journal(tmp_path / "other").read_bytes())
    assert any("journal of another log" in each for each in texts(check(data_path)))
    # Another topic's: its channels are others.
    ours.write_bytes(whole)
    journal(data_path, "idle").write_bytes(whole)
    assert any("journal" in each or "knows positions" in each for each in texts(check(data_path)))


def test_a_node_file_behind_the_logs_is_found_and_raised(data_path: Path) -> None:
    path = data_path / "nsquark.dat"
    known = json.loads(path.read_bytes())
    path.write_bytes(node.pack(known["node"], 0, known["floor"]))
    report = check(data_path)
    assert any("ids would be given twice" in each for each in texts(report))
    repair(report)
    assert check(data_path).findings == []
    assert json.loads(path.read_bytes())["node"] == known["node"]


def test_what_is_of_another_version_is_told_and_left_alone(data_path: Path) -> None:
    data = segments(data_path)[0].read_bytes()
    segments(data_path)[0].write_bytes(b"NQB9" + data[4:])
    report = check(data_path)
    assert any("NQB9" in each for each in texts(report))
    before = contents(data_path)
    repair(report)
    assert contents(data_path) == before
    assert report.worst is Level.ERROR


def test_a_directory_in_use_is_checked_and_not_repaired(data_path: Path) -> None:
    with Nsqd(data_path, SMALL_SEGMENTS).start():
        report = check(data_path)
        assert report.in_use
        assert report.worst is Level.NOTE
        with pytest.raises(NotADataPath, match="in use"):
            repair(report)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotADataPath, match="holds no data of nsqd"):
        check(tmp_path)
    with pytest.raises(NotADataPath, match="no directory"):
        check(tmp_path / "nothing")


def damages(data_path: Path) -> Iterator[tuple[str, Path, int]]:
    yield "a batch in the middle", segments(data_path)[1], HEADER.size + 50
    yield "the newest segment", segments(data_path)[-1], 50
    yield "a journal's snapshot", journal(data_path), 20
    yield "the metadata", data_path / "nsqd.dat", 0
    yield "the node", data_path / "nsquark.dat", 0
    yield "a stage", data_path / "staged/nightly/1/0.a1", 30


@pytest.mark.parametrize("number", range(6))
def test_a_repair_moves_aside_and_nsqd_starts(data_path: Path, number: int) -> None:
    what, path, offset = list(damages(data_path))[number]
    flip(path, offset, 1)
    broken = path.read_bytes()
    size = sum(len(each) for each in contents(data_path).values())
    report = check(data_path)
    assert report.worst > Level.NOTE, what
    repair(report)
    # Nothing is deleted: every byte is still somewhere.
    assert sum(len(each) for each in contents(data_path).values()) >= size
    assert any(broken == each or broken[offset : offset + 8] in each for each in contents(data_path).values())
    with Nsqd(data_path, SMALL_SEGMENTS).start() as nsqd:
        status, answer = asyncio.run(nsqd.http("GET", "/stats?format=json&topic=orders"))
        assert status == 200
        channels = {each["channel_name"]: each for each in json.loads(answer)["topics"][0]["channels"]}
        assert channels["archive"]["depth"] + channels["archive"]["deferred_count"] >= 150
        nsqd.stop()
    again = check(data_path)
    assert again.worst < Level.ERROR, texts(again)


def test_repairs_do_not_overwrite_what_earlier_ones_have_moved(data_path: Path) -> None:
    for _ in range(2):
        path = data_path / "nsqd.dat"
        path.write_bytes(b"broken")
        repair(check(data_path))
    kept = [each for each in contents(data_path) if each.name == "nsqd.dat"]
    assert len(kept) == 2
    assert all(each.read_bytes() == b"broken" for each in kept)


def test_an_unreadable_file_is_an_error_of_the_system(data_path: Path) -> None:
    path = segments(data_path)[0]
    path.unlink()
    os.mkdir(path)
    with pytest.raises(OSError, match="directory"):
        check(data_path)


def test_a_directory_of_gos_nsqd_is_not_broken(tmp_path: Path) -> None:
    write_metadata(tmp_path, {"orders": ["mail"], "quiet": []})
    write_queue(tmp_path, "orders:mail", [record(each) for each in range(3)], read=1)
    report = check(tmp_path)
    assert report.worst is Level.NOTE
    assert [(each.path.name, each.text) for each in report.findings] == [
        (
            "orders:mail.diskqueue.*",
            "holds 78 bytes of messages of Go's nsqd: a start with --import=on takes them over",
        )
    ]
    (tmp_path / "nsquark.import").mkdir()
    assert "an import was interrupted" in check(tmp_path).findings[-1].text
