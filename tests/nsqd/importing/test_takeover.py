"""Taking over a directory of Go's nsqd: every channel gets its messages, and each of them once."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsquark.data_path.check import check
from nsquark.data_path.findings import Level
from nsquark.kernel import Buffer
from nsquark.nsqd.importing import channel_shares, takeover, topic_import
from nsquark.nsqd.importing.takeover import Takeover
from nsquark.nsqd.storage.inspection import DataRefused, inspect_data
from nsquark.nsqd.storage.metadata import BadMetadata
from tests.diskqueue.queues import TIME, record, write_metadata, write_queue
from tests.nsqd.api import running

from .go_directory import contents, files_of_go, fill, in_order, is_whole_import, state_of, take_over


def test_every_channel_gets_its_messages_once(tmp_path: Path) -> None:
    expected = fill(tmp_path)
    assert take_over(tmp_path)
    assert in_order(contents(tmp_path)) == in_order(expected)
    assert is_whole_import(tmp_path)
    findings = [each.text for each in check(tmp_path).findings if each.level is not Level.NOTE]
    assert findings == ["topic empty, which nsqd.dat names, has no files"]  # it gets them when nsqd serves it
    assert set(inspect_data(tmp_path).metadata) == {"orders", "lonely", "empty"}


def test_channels_share_the_messages_that_they_have_in_common(tmp_path: Path) -> None:
    records = [record(each) for each in range(100)]
    for channel in ("a", "b", "c"):
        write_queue(tmp_path, f"t:{channel}", records, read=10 if channel == "b" else 0)
    take_over(tmp_path)
    (segment,) = (tmp_path / "topics" / "t").glob("*.log")
    assert segment.stat().st_size < 48 + 100 * (34 + 10)
    found = contents(tmp_path)
    assert [len(found[f"t:{channel}"]) for channel in "abc"] == [100, 90, 100]


@pytest.mark.parametrize("merged", [0, 16])
@pytest.mark.parametrize("ranges", [0, 3, 100_000])
def test_channels_that_have_nothing_in_common(
    tmp_path: Path, merged: int, ranges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_import, "MOST_MERGED", merged)
    monkeypatch.setattr(topic_import, "MOST_RANGES", ranges)
    expected = {}
    for number, channel in enumerate(("a", "b", "c")):
        mine = [each for each in range(90) if each % 3 == number]
        write_queue(tmp_path, f"t:{channel}", [record(each) for each in mine], 200)
        expected[f"t:{channel}"] = [(b"message %d" % each, 0) for each in mine]
    take_over(tmp_path)
    assert contents(tmp_path) == expected


def test_equal_ids_with_other_bodies_are_other_messages(tmp_path: Path) -> None:
    write_queue(tmp_path, "t:a", [record(1, b"one")])
    write_queue(tmp_path, "t:b", [record(1, b"two")])
    take_over(tmp_path)
    assert contents(tmp_path) == {"t:a": [(b"one", 0)], "t:b": [(b"two", 0)]}


def test_times_are_kept(tmp_path: Path) -> None:
    from nsquark.data_path.dump import messages

    write_queue(tmp_path, "t", [record(each) for each in range(5)])
    take_over(tmp_path)
    found = list(messages(tmp_path / "topics" / "t"))
    assert [each.timestamp_ns for each in found] == [TIME + each for each in range(5)]


def test_attempts_beyond_a_bound_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(channel_shares, "MOST_WITH_ATTEMPTS", 4)
    write_queue(tmp_path, "t:c", [record(each, attempts=1 + each // 2) for each in range(10)])
    take_over(tmp_path)
    assert [each[1] for each in contents(tmp_path)["t:c"]] == [1, 1, 2, 2, 0, 0, 0, 0, 0, 0]
    assert "attempts of 6 begin at 1 again" in caplog.text


def test_a_directory_without_unread_messages_is_tidied(tmp_path: Path) -> None:
    write_queue(tmp_path, "t:c", [record(each) for each in range(5)], read=5)
    (tmp_path / "t:c.diskqueue.000009.dat.bad").write_bytes(b"what Go's nsqd could not read")
    write_metadata(tmp_path, {"t": ["c"]})
    assert take_over(tmp_path)
    assert files_of_go(tmp_path) == ["t:c.diskqueue.000009.dat.bad"]


def test_an_empty_directory_stays_empty(tmp_path: Path) -> None:
    assert take_over(tmp_path)
    assert not list(tmp_path.iterdir())


# ---- metadata


def test_queues_that_nsqd_dat_does_not_name_are_imported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_metadata(tmp_path, {"t": ["c"]})
    for name in ("t:c", "t:other", "u"):
        write_queue(tmp_path, name, [record(1)])
    take_over(tmp_path)
    assert sorted(contents(tmp_path)) == ["t:c", "t:other", "u"]
    assert "nsqd.dat does not name t:other, which has messages: the channel is created" in caplog.text
    assert "nsqd.dat does not name u, which has messages: the topic is created" in caplog.text
    assert "does not name t:c" not in caplog.text


@pytest.mark.parametrize("name", ["nsqd.1.dat", "nsqd.999.dat"])
def test_metadata_of_nsqd_before_1_0(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    write_metadata(tmp_path, {"t": ["c"]}, name)
    (tmp_path / "nsqd.5.dat").symlink_to("nsqd.dat")  # that leads nowhere
    take_over(tmp_path, node_id=1)
    assert list(inspect_data(tmp_path).metadata["t"].channels) == ["c"]
    assert ("another --node-id" in caplog.text) == (name == "nsqd.999.dat")


def test_nsqd_dat_counts_where_both_are_there(tmp_path: Path) -> None:
    write_metadata(tmp_path, {"new": ["c"]})
    write_metadata(tmp_path, {"old": ["c"]}, "nsqd.1.dat")
    write_queue(tmp_path, "new:c", [record(1)])
    take_over(tmp_path)
    assert list(inspect_data(tmp_path).metadata) == ["new"]


def test_metadata_that_do_not_read_are_refused(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [record(1)])
    (tmp_path / "nsqd.dat").write_bytes(b"")
    before = files_of_go(tmp_path)
    with pytest.raises(BadMetadata):
        take_over(tmp_path)
    assert files_of_go(tmp_path) == before
    assert not (tmp_path / "topics").exists()


def test_a_paused_topic_keeps_its_own_queue(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [record(1)])
    write_queue(tmp_path, "t:c", [record(0)])
    (tmp_path / "nsqd.dat").write_text(
        '{"topics":[{"name":"t","paused":true,"channels":[{"name":"c","paused":true}]}],"version":"1.3.0"}'
    )
    take_over(tmp_path)
    assert contents(tmp_path) == {"t": [(b"message 1", 0)], "t:c": [(b"message 0", 0)]}


def test_names_that_nsqd_gives_no_queue_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_queue(tmp_path, "t:c#ephemeral", [record(1)])
    write_queue(tmp_path, "t:c", [record(1)])
    assert take_over(tmp_path)
    assert all(each.startswith("t:c#ephemeral") for each in files_of_go(tmp_path))
    assert "t:c#ephemeral.diskqueue.* stays as it is" in caplog.text
    inspect_data(tmp_path)  # and keeps nsqd from nothing


# ---- damage


def test_damage_is_put_aside_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = write_queue(tmp_path, "t:c", [record(each) for each in range(12)], per_file=160)
    data = bytearray(paths[0].read_bytes())
    data[0] = 0xFF
    paths[0].write_bytes(bytes(data))
    paths[2].write_bytes(paths[2].read_bytes()[:-3])
    take_over(tmp_path)
    lost = {0, 11}
    assert contents(tmp_path)["t:c"] == [(b"message %d" % each, 0) for each in range(12) if each not in lost]
    (kept,) = tmp_path.glob("*.bad")
    assert kept.name == f"{paths[0].name}.0+39.bad"
    assert kept.read_bytes() == bytes(data[:39])
    assert f"39 bytes at offset 0 of {paths[0]} are damaged, kept in {kept.name}" in caplog.text
    assert f"the last 37 bytes of {paths[2]} are no whole message" in caplog.text
    assert files_of_go(tmp_path) == [kept.name]


def test_metadata_of_a_queue_that_are_missing_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_queue(tmp_path, "a", [record(1)], meta=b"what?")
    write_queue(tmp_path, "b", [record(1)], meta=b"")
    for path in write_queue(tmp_path, "c", [record(each) for each in range(9)], per_file=80)[1:3]:
        path.unlink()
    take_over(tmp_path)
    assert [len(each) for each in contents(tmp_path).values()] == [1, 1, 5]
    assert "a.diskqueue.meta.dat does not read: all messages of the queue are imported" in caplog.text
    assert "b.diskqueue.meta.dat is missing: all messages of the queue are imported" in caplog.text
    assert "c.diskqueue.*: 2 files are missing" in caplog.text


# ---- beside nsquark's own


def test_messages_are_added_to_a_topic_that_is_there(tmp_path: Path) -> None:
    """Go's nsqd has run on a directory of nsquark: nothing of either is lost, and nothing comes twice."""
    before = fill(tmp_path)
    take_over(tmp_path)
    write_queue(tmp_path, "orders:mail", [record(each, attempts=1) for each in range(200, 210)])
    write_queue(tmp_path, "orders:new", [record(each) for each in range(205, 215)])
    write_queue(tmp_path, "orders", [record(each) for each in range(300, 303)])
    write_queue(tmp_path, "lonely", [record(400)])
    take_over(tmp_path)
    own = [(b"message %d" % each, 0) for each in range(300, 303)]
    expected = {name: messages + own for name, messages in before.items() if name != "lonely"}
    expected["lonely"] = [*before["lonely"], (b"message 400", 0)]
    expected["orders:mail"] += [(b"message %d" % each, 1) for each in range(200, 210)]
    expected["orders:new"] = [(b"message %d" % each, 0) for each in range(205, 215)] + own
    assert in_order(contents(tmp_path)) == in_order(expected)
    assert is_whole_import(tmp_path)


def test_a_topic_that_is_there_is_copied_where_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(topic_import, "BATCH", 600)
    write_queue(tmp_path, "t:c", [record(each, bytes(500)) for each in range(30)])
    Takeover(tmp_path, 1, 2000, 1 << 20).run()
    assert len(list((tmp_path / "topics" / "t").glob("*.log"))) > 3
    write_queue(tmp_path, "t:c", [record(30)])
    monkeypatch.setattr(os, "link", link)
    take_over(tmp_path)
    assert len(contents(tmp_path)["t:c"]) == 31


def test_the_first_channel_of_a_topic_that_is_there_gets_its_queue(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [record(1)])
    take_over(tmp_path)
    write_queue(tmp_path, "t:c", [record(2)])
    take_over(tmp_path)
    assert contents(tmp_path) == {"t:c": [(b"message 1", 0), (b"message 2", 0)]}


def test_another_version_of_nsquark_is_refused(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [record(1)])
    (tmp_path / "nsquark.dat").write_text('{"node": "00", "blocks": 1, "floor": 0, "version": 9}')
    before = files_of_go(tmp_path)
    with pytest.raises(DataRefused, match="has version 9"):
        take_over(tmp_path)
    assert files_of_go(tmp_path) == before


# ---- interrupted


def stopping_takeover(path: Path, monkeypatch: pytest.MonkeyPatch, batches: int) -> Takeover:
    """Stops after so many batches, and makes checkpoints often."""
    monkeypatch.setattr(topic_import, "BATCH", 300)
    monkeypatch.setattr(topic_import, "CHECKPOINT", 900)
    found = Takeover(path, 1, 2000, 1 << 20)
    left = [batches]

    def is_set() -> bool:
        left[0] -= 1
        return left[0] < 0

    monkeypatch.setattr(found._stop, "is_set", is_set)
    return found


@pytest.mark.parametrize("batches", range(0, 12, 3))
def test_an_import_that_was_stopped_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    expected = fill(tmp_path)
    before = files_of_go(tmp_path)
    runs = 0
    while not stopping_takeover(tmp_path, monkeypatch, batches).run():
        runs += 1
        assert files_of_go(tmp_path) == before
        assert runs < 100
    assert runs
    assert in_order(contents(tmp_path)) == in_order(expected)
    assert is_whole_import(tmp_path)
    assert "going on with an import that was interrupted" in caplog.text


def test_an_import_begins_anew_when_go_has_run_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = fill(tmp_path)
    assert not stopping_takeover(tmp_path, monkeypatch, 6).run()
    assert state_of(tmp_path)["checkpoint"] or state_of(tmp_path)["done"]
    with open(tmp_path / "orders:mail.diskqueue.000099.dat", "wb") as file:
        file.write(record(500))
    expected["orders:mail"].append((b"message 500", 0))
    take_over(tmp_path)
    assert "files have changed since it was interrupted" in caplog.text
    assert in_order(contents(tmp_path)) == in_order(expected)


def test_what_go_has_written_behind_a_complete_import_is_imported_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_queue(tmp_path, "t:c", [record(each) for each in range(5)])
    real = Takeover._install
    monkeypatch.setattr(Takeover, "_install", lambda self, state: None)
    take_over(tmp_path)
    assert state_of(tmp_path)["complete"]
    os.unlink(tmp_path / "t:c.diskqueue.000000.dat")
    write_queue(tmp_path, "t:c", [record(each) for each in range(5, 8)])
    monkeypatch.setattr(Takeover, "_install", real)
    take_over(tmp_path)
    assert len(contents(tmp_path)["t:c"]) == 5
    take_over(tmp_path)
    assert contents(tmp_path)["t:c"] == [(b"message %d" % each, 0) for each in range(8)]


@pytest.mark.parametrize("text", ["what?", "[" * 100_000])
def test_a_state_that_does_not_read_is_refused(tmp_path: Path, text: str) -> None:
    fill(tmp_path)
    (tmp_path / "nsquark.import").mkdir()
    (tmp_path / "nsquark.import" / "state.json").write_text(text)
    with pytest.raises(DataRefused, match=r"state\.json does not read"):
        take_over(tmp_path)


# ---- the disk


def test_a_disk_without_room_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    before = sorted(each.name for each in tmp_path.iterdir())
    real = os.statvfs(tmp_path)
    full = os.statvfs_result([*real[:4], 0, *real[5:]])
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with pytest.raises(DataRefused, match=r"needs about \d+ bytes, and 0 are free"):
        take_over(tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == before


def test_progress_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(topic_import, "BATCH", 300)
    monkeypatch.setattr(takeover, "TELL_EVERY", 0.0)
    fill(tmp_path)
    take_over(tmp_path)
    assert "IMPORT: topic orders: 30 messages so far, " in caplog.text
    assert "IMPORT: complete: 2 topics with " in caplog.text


@pytest.mark.parametrize("writes", [0, 3, 7])
def test_a_disk_that_fills_up_meanwhile_is_told_and_the_next_start_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    expected = fill(tmp_path)
    before = files_of_go(tmp_path)
    left, real = [writes], os.write

    def write(fd: int, data: Buffer) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(topic_import, "BATCH", 300)
        patch.setattr(topic_import, "CHECKPOINT", 600)
        patch.setattr(os, "write", write)
        with pytest.raises(DataRefused, match="cannot be imported: No space left on device"):
            take_over(tmp_path)
    assert files_of_go(tmp_path) == before
    assert take_over(tmp_path)
    assert in_order(contents(tmp_path)) == in_order(expected)


def test_a_disk_that_does_not_read_is_told_and_nothing_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next read may succeed: this is not the damage of a file."""
    expected = fill(tmp_path)
    before = files_of_go(tmp_path)
    real = os.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        if "orders:mail.diskqueue" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(5, "Input/output error")
        return real(fd, size, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", pread)
        with pytest.raises(DataRefused, match="Input/output error"):
            take_over(tmp_path)
    assert files_of_go(tmp_path) == before
    assert take_over(tmp_path)
    assert in_order(contents(tmp_path)) == in_order(expected)


async def test_damage_is_in_the_health_until_it_is_acknowledged(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [b"no message at all, and yet it is here" + record(1), record(2)])
    take_over(tmp_path)
    async with running(tmp_path) as api:
        assert (await api.get("/ping")).status == 500
        assert b"37 bytes at offset 0 of" in (await api.get("/ping")).body
        assert (await api.post("/health/acknowledge")).status == 200
        assert (await api.get("/ping")).body == b"OK"
        assert (await api.topic("t"))["depth"] == 2


MEASURED = """
import resource, sys
from pathlib import Path
from nsquark.nsqd.importing.takeover import Takeover
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
Takeover(Path(sys.argv[1]), 1, 8 << 20, 1 << 20).run()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_the_memory_of_an_import_does_not_grow_with_the_queues(tmp_path: Path) -> None:
    """A message of every other channel lies between: that is the most that a journal has to say."""
    for first, channel in enumerate(("a", "b")):
        records = [record(each, b"%01000d" % each) for each in range(first, 60_000, 2)]
        write_queue(tmp_path, f"t:{channel}", records, 8 << 20)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, tmp_path], capture_output=True, text=True, check=True, timeout=100
    )
    assert int(done.stdout) < 24 << 10, "kB for 60 MB of messages"
    assert sum(each.stat().st_size for each in (tmp_path / "topics" / "t").glob("*.log")) > 60_000_000
