"""Power cuts: nsqd keeps its promises, and an nsqd that does not is caught."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from reliability.power import trace
from reliability.power.cuts import Plan, run
from reliability.power.disk import Disk, Luck, NoLuck
from reliability.power.trace import Call
from reliability.shim import NoCompiler, compiled
from tests.reliability.alone import alone


@pytest.fixture(autouse=True, scope="module")
def shim() -> None:
    try:
        compiled()
    except NoCompiler as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("sync_every", [1, 2500])
def test_nothing_is_lost_that_was_promised(tmp_path: Path, sync_every: int) -> None:
    plan = Plan(8, seed=sync_every, sync_every=sync_every, seconds=1.0)
    outcome = alone(run, plan, tmp_path)
    assert (outcome.cuts, outcome.faults) == (8, [])
    assert outcome.answered > 0
    assert outcome.kinds["fsync"] > 0


@pytest.mark.parametrize("mutant", ["no-folder-sync", "answer-first", "write-in-place"])
def test_an_nsqd_that_is_careless_is_caught(tmp_path: Path, mutant: str) -> None:
    outcome = alone(run, Plan(400, seconds=0.7, cuts_per_load=80, mutant=mutant, until_fault=True), tmp_path)
    assert outcome.faults


# ---- the simulated disk


def call(kind: int, path: str = "", number: int = 0, data: bytes = b"", inode: int = 0) -> Call:
    return Call(kind, 0, inode, number, path, data)


def disk_with(*calls: Call) -> Disk:
    disk = Disk()
    for each in calls:
        disk.see(each)
    return disk


def sync(token: int, path: str, inode: int = 0) -> tuple[Call, Call]:
    begins = call(trace.SYNC_BEGINS, path, token, inode=inode)
    return begins, call(trace.SYNC_ENDS, path, token, inode=inode)


def test_a_synced_file_without_a_synced_name_is_lost() -> None:
    create, write = call(trace.CREATE, "a", inode=1), call(trace.WRITE, "a", 0, b"x", 1)
    assert disk_with(create, write, *sync(1, "a", 1)).remains(NoLuck()) == {}
    assert disk_with(create, write, *sync(1, "")).remains(NoLuck()) == {"a": b""}
    assert disk_with(create, write, *sync(1, "a", 1), *sync(2, "")).remains(NoLuck()) == {"a": b"x"}


def test_an_fsync_covers_what_was_done_before_it_began() -> None:
    begins, ends = sync(1, "a", 1)
    disk = disk_with(
        call(trace.CREATE, "a", inode=1),
        *sync(2, ""),
        call(trace.WRITE, "a", 0, b"x", 1),
        begins,
        call(trace.WRITE, "a", 1, b"y", 1),
        ends,
    )
    assert disk.remains(NoLuck()) == {"a": b"x"}


def test_what_an_fsync_has_failed_to_keep_stays_unsure() -> None:
    disk = disk_with(
        call(trace.CREATE, "a", inode=1),
        *sync(1, ""),
        call(trace.WRITE, "a", 0, b"x", 1),
        call(trace.SYNC_BEGINS, "a", 2, inode=1),
        call(trace.SYNC_FAILS, "a", 2, inode=1),
        call(trace.WRITE, "a", 1, b"y", 1),
        *sync(3, "a", 1),
    )
    assert disk.remains(NoLuck()) == {"a": b"\0y"}


def test_a_rename_is_kept_as_a_whole_or_not_at_all() -> None:
    disk = disk_with(
        call(trace.CREATE, "a", inode=1),
        call(trace.CREATE, "b", inode=2),
        call(trace.WRITE, "b", 0, b"new", 2),
        *sync(1, "b", 2),
        *sync(2, ""),
        call(trace.RENAME, "b", data=b"a", inode=2),
    )
    found = [disk.remains(Luck(random.Random(seed))) for seed in range(100)]
    assert {tuple(sorted(each)) for each in found} == {("a", "b"), ("a",)}
    assert all(each["a"] == (b"" if "b" in each else b"new") for each in found)
    assert disk.remains(NoLuck()) == {"a": b"", "b": b"new"}


def test_unsure_writes_are_torn_at_blocks_and_leave_zeros() -> None:
    disk = disk_with(
        call(trace.CREATE, "a", inode=1), *sync(1, ""), call(trace.WRITE, "a", 0, b"x" * 9000, 1)
    )
    sizes = set()
    for seed in range(200):
        content = disk.remains(Luck(random.Random(seed)))["a"]
        assert content is not None
        assert set(content) <= {0, ord("x")}
        for at in range(0, len(content), 512):
            assert len(set(content[at : at + 512])) == 1
        sizes.add(len(content))
    assert {0, 9000} < sizes
