"""What nsqd refuses to serve: one line, exit status 1, and not a byte of the data directory is changed."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nsquark.nsqd.core.topic import Topic
from nsquark.nsqd.storage.inspection import DataRefused, inspect_data
from tests.daemon import PATIENCE, Nsqd, dpub, pub
from tests.nsqd.api import running
from tests.nsqd.harness import Clock, Harness


def everything(path: Path) -> dict[str, tuple[bytes, int]]:
    """Every file and folder, with its content and when it was changed."""
    return {
        str(each.relative_to(path)): (each.read_bytes() if each.is_file() else b"", each.stat().st_mtime_ns)
        for each in path.rglob("*")
    }


def refused(path: Path, *flags: str) -> str:
    """What nsqd says when it does not start."""
    before = everything(path)
    result = subprocess.run(
        [
            *(sys.executable, "-m", "nsquark.nsqd", f"--data-path={path}"),
            *("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", *flags),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert everything(path) == before
    assert result.returncode == 1
    lines = [line for line in result.stderr.splitlines() if "INFO" not in line]
    assert len(lines) == 1, lines
    match = re.search(r" FATAL: failed to load data - (.*)", lines[0])
    assert match is not None, lines
    return match[1]


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with something of everything in it."""
    path = tmp_path_factory.mktemp("used") / "data"

    async def use() -> None:
        with Nsqd(path, "--max-bytes-per-file=300").start() as nsqd:
            async with await nsqd.connect() as client:
                await client.sub("t", "c", 1)
                for number in range(5):
                    await client.ask(pub("t", b"%d" % number * 50))
                await client.ask(dpub("t", 60_000, b"later"))
                client.fin(await client.message())
                await client.caught_up()
            body = b"\0\0\0\1" + b"\0\0\0\3abc"
            put = "/staged/put?app=nightly&batch=1&partition=0&attempt=a&seq=0&topic=t"
            assert (await nsqd.http("POST", put, body))[0] == 200
            prepare = b'{"parts":[],"home":{"node":"n","url":"u"}}'
            await nsqd.http("POST", "/staged/prepare?app=nightly&batch=1", prepare)
            nsqd.stop()

    asyncio.run(use())
    return path


@pytest.fixture
def data(used: Path, tmp_path: Path) -> Path:
    shutil.copytree(used, tmp_path / "data")
    return tmp_path / "data"


def segments(path: Path) -> list[Path]:
    return sorted((path / "topics" / "t").glob("*.log"))


def begin_with(content: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_bytes(content + path.read_bytes()[len(content) :])

    return change


@pytest.mark.parametrize(
    ("pattern", "change", "found"),
    [
        ("topics/t/*.log", begin_with(b"NQB2"), "has a batch of format NQB2 at offset 0"),
        ("topics/t/journal.*", begin_with(b"NQJ2"), "has a block of format NQJ2 at offset 0"),
        ("nsquark.dat", lambda path: path.write_text('{"version": 2}'), "has version 2, not 1"),
        ("staged/*/*/*", begin_with(b"NQS7"), "has a record of format NQS7"),
        ("staged/nightly/", lambda path: (path / "app.json").write_text('{"version": 3}'), "has version 3"),
    ],
)
@pytest.mark.parametrize("which", [0, -1])
def test_another_version_is_refused(
    data: Path, pattern: str, change: Callable[[Path], None], found: str, which: int
) -> None:
    victim = sorted(data.glob(pattern))[which]
    change(victim)
    told = refused(data)
    assert str(victim) in told
    assert found in told
    assert "another version of nsquark" in told


def test_brackets_without_end_say_nothing_of_a_version(data: Path) -> None:
    (data / "nsquark.dat").write_bytes(b"[" * 100_000)
    inspect_data(data)  # the node sees to it


def test_what_is_whole_is_served(data: Path) -> None:
    before = everything(data)
    found = inspect_data(data)
    assert everything(data) == before
    assert list(found.topics) == list(found.metadata) == ["t"]


def test_a_start_lists_the_folder_of_a_topic_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str] = []
    real = os.listdir

    def listdir(path: Path) -> list[str]:
        listed.append(Path(path).name)
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", listdir)
        found = inspect_data(data)
        harness = Harness(data, Clock())
        topic = Topic(harness, "t", data / "topics" / "t", found.topics["t"])
        topic.restore([], False, harness.clock())
    assert listed.count("t") == 1
    topic.close()


# ---- what Go's nsqd has left

NSQD_DAT = (
    b'{"topics":[{"name":"orders","paused":false,"channels":[{"name":"mail","paused":true}]}],'
    b'"version":"1.3.0"}'
)
RECORD = b"\0\0\0\x1d" + bytes(10) + b"0" * 16 + b"abc"


def queue(path: Path, name: str, meta: bytes | None, *files: bytes) -> None:
    if meta is not None:
        (path / f"{name}.diskqueue.meta.dat").write_bytes(meta)
    for number, content in enumerate(files):
        (path / f"{name}.diskqueue.{number:06d}.dat").write_bytes(content)


@pytest.mark.parametrize(
    ("meta", "files", "told"),
    [
        (b"1\n0,0\n0,33\n", [RECORD], "orders:mail (1 unread)"),
        (b"0\n0,0\n0,33\n", [RECORD], "orders:mail (some unread)"),
        (b"0\n0,33\n0,33\n", [RECORD * 2], "orders:mail (some unread)"),  # after a crash
        (b"0\n0,33\n0,33\n", [RECORD, RECORD], "orders:mail (some unread)"),
        (
            b"what?",
            [RECORD],
            "orders:mail (by orders:mail.diskqueue.meta.dat, which does not read, all of it)",
        ),
        (None, [RECORD], "orders:mail (by orders:mail.diskqueue.meta.dat, which is missing, all of it)"),
    ],
)
def test_messages_of_gos_nsqd_are_refused(
    tmp_path: Path, meta: bytes | None, files: list[bytes], told: str
) -> None:
    (tmp_path / "nsqd.dat").write_bytes(NSQD_DAT)
    queue(tmp_path, "orders", b"0\n0,0\n0,0\n")
    queue(tmp_path, "orders:mail", meta, *files)
    with pytest.raises(DataRefused) as caught:
        inspect_data(tmp_path)
    assert told in str(caught.value)
    assert "--data-path" in str(caught.value)


def test_import_off_is_a_refusal_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat").write_bytes(NSQD_DAT)
    queue(tmp_path, "orders:mail", b"1\n0,0\n0,33\n", RECORD)
    line = refused(tmp_path, "--import=off")
    assert "orders:mail (1 unread); start nsqd with --import=on" in line


def test_many_queues_are_one_line(tmp_path: Path) -> None:
    for number in range(20):
        queue(tmp_path, f"t{number:02d}", b"1\n0,0\n0,33\n", RECORD)
    with pytest.raises(DataRefused, match=r"t04 \(1 unread\) and 15 more;"):
        inspect_data(tmp_path)


async def test_topics_of_gos_nsqd_without_messages_are_taken_up(tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat").write_bytes(NSQD_DAT)
    queue(tmp_path, "orders", b"0\n0,33\n0,33\n", RECORD)  # read to its end
    queue(tmp_path, "old", None, b"")
    (tmp_path / "orders.diskqueue.000003.dat.bad").write_bytes(b"what Go could not read")
    async with running(tmp_path) as api:
        assert (await api.get("/ping")).body == b"OK"
        topic = await api.topic("orders")
        assert [(each["channel_name"], each["paused"]) for each in topic["channels"]] == [("mail", True)]
