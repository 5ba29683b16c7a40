"""reliability.chaos: a short run finds nothing, and nsqds with a fault on purpose are caught."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path

import pytest

from reliability.chaos import findings as f
from reliability.chaos.__main__ import main
from reliability.chaos.archive import faults
from reliability.chaos.directories import differences
from reliability.chaos.group import Settings, why_not
from reliability.chaos.mutants import MUTANTS
from reliability.chaos.running import Result, run

needs_etcd = pytest.mark.skipif(bool(why_not()), reason=why_not() or "etcd is there")
# Failovers: a mutant is caught in the first few.
ENOUGH = 60

CAUGHT_BY = {
    "answer-early": {f.LOST, f.TWO_MEANINGS, f.CAME_BACK, f.FELL, f.UNDONE},
    "deliver-early": {f.LOST, f.TWO_MEANINGS, f.FELL, f.REFUSED_AND_STORED},
    "do-not-fence": {f.STUCK, f.CAME_BACK, f.FELL, f.UNDONE},
}


def told(result: Result) -> str:
    return "\n".join([f"seed {result.seed}", *map(str, result.findings[:10]), *result.log])


@needs_etcd
@pytest.mark.parametrize(("members", "ack"), [(2, "written"), (3, "synced")])
async def test_nothing_is_found_in_a_short_run(members: int, ack: str) -> None:
    result = await run(2, 1, Settings(members, ack))
    assert not result.findings, told(result)
    assert result.folder is None
    assert result.failovers == 2
    assert result.counts["terms"] >= 2
    for what in ("messages answered OK", "deliveries", "FIN", "messages read from logs", "looks at channels"):
        assert result.counts[what] > 0, what
    assert result.counts["directories compared"] == members - 1


@needs_etcd
async def test_nothing_is_found_where_segments_leave_for_an_archive(tmp_path: Path) -> None:
    result = await run(2, 5, Settings(archive=True))
    assert not result.findings, told(result)
    assert result.failovers == 2
    assert result.counts["objects in the archive"] > 10
    assert result.counts["segments fetched from the archive"] > 0
    assert result.counts["messages read from logs"] > 0


def test_an_archive_is_looked_through(tmp_path: Path) -> None:
    store, member = tmp_path / "store", tmp_path / "a"
    folder = store / "node" / "t" / "epoch"
    folder.mkdir(parents=True)
    member.mkdir()
    (folder / f"0-10-{zlib.crc32(b'right'):08x}.log").write_bytes(b"right")
    (folder / f"0-10-{zlib.crc32(b'right'):08x}.t000002.log").write_bytes(b"right")
    record = {"key": f"node/t/epoch/0-10-{zlib.crc32(b'right'):08x}.log", "start": 100, "stop": 105}
    (member / "0.archived").write_text(json.dumps(record))
    assert faults(store, member) == []
    (folder / f"0-12-{zlib.crc32(b'other'):08x}.log").write_bytes(b"other!")
    (member / "1.archived").write_text(json.dumps(record | {"key": "node/t/epoch/gone.log"}))
    found = faults(store, member)
    assert [each.partition(" has ")[0].rpartition("/")[2] for each in found[:1]] == ["0-12-d9583520.log"]
    assert "was archived as" in found[1]
    assert "gone.log, which is not there whole" in found[2]
    assert len(found) == 3


@needs_etcd
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", MUTANTS)
async def test_a_fault_on_purpose_is_found(mutant: str) -> None:
    result = await run(ENOUGH, 1, Settings(mutant=mutant, whole_within=20.0))
    assert result.folder is not None, f"not found in {result.failovers} failovers"
    assert (result.folder / "history").stat().st_size
    shutil.rmtree(result.folder)
    assert {finding.kind for finding in result.findings} & CAUGHT_BY[mutant], told(result)


def test_a_number_of_copies_that_no_group_has_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["--members", "2", "--min-copies", "3"])
    with pytest.raises(SystemExit):
        main(["--failovers", "0"])


def test_directories_are_compared_by_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "a", tmp_path / "b"
    for each in (one, other):
        (each / "topics" / "orders").mkdir(parents=True)
        (each / "topics" / "orders" / "0.log").write_bytes(b"12345")
    (one / "topics" / "orders" / "0.log").write_bytes(b"1234567")
    assert differences(one, other) == []
    (other / "topics" / "orders" / "0.log").write_bytes(b"12x45")
    (other / "topics" / "orders" / "5.log").write_bytes(b"")
    assert differences(one, other) == [
        "topics/orders/5.log is in b, and not in a",
        "topics/orders/0.log differs from byte 2 on in a and b",
    ]
