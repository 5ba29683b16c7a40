"""A real nsqd on a disk that is full, or does not sync: what it says, what it keeps, how it ends."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import PATIENCE, Nsqd, until

# nsqd, but fsyncs fail of every file and folder whose path has this in it
UNSYNCED = "/topics/bad"
REFUSING = f"""
import os, sys
real = os.fdatasync

def fdatasync(fd):
    if {UNSYNCED!r} in os.readlink(f"/proc/self/fd/{{fd}}"):
        raise OSError(5, "Input/output error")
    real(fd)

os.fdatasync = os.fsync = fdatasync
from nsquark.nsqd.__main__ import main
sys.exit(main())
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", path], check=False)
    if mounted.returncode:
        pytest.skip("a file system cannot be mounted here")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def fill(path: Path) -> Path:
    filler = path / "filler"
    with open(filler, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            while True:
                try:
                    if file.write(bytes(size)) != size:
                        break
                except OSError:
                    break
    return filler


async def test_what_was_finished_on_a_full_disk_is_so_after_a_kill(small: Path) -> None:
    with Nsqd(small / "data").start() as nsqd:
        await nsqd.post("/topic/create?topic=t")
        await nsqd.post("/channel/create?topic=t&channel=c")
        await nsqd.post("/channel/create?topic=t&channel=d")
        await nsqd.post("/mpub?topic=t", b"\n".join(b"%d" % number for number in range(1000)))
        async with await nsqd.connect() as consumer:
            await consumer.sub("t", "c", 50)
            for number in range(1000):
                if number == 214:
                    await consumer.caught_up()
                    filler = fill(small)
                consumer.fin(await consumer.message())
            await consumer.caught_up()
            status, answer = await nsqd.http("POST", "/pub?topic=t", bytes(100_000))
            refused = {"message": "NOT_STORED", "reason": "No space left on device"}
            assert (status, json.loads(answer)) == (503, refused)
            left = 1000
            while True:  # there may be some room for it left in the last page
                status, answer = await nsqd.http("POST", "/channel/seek?topic=t&channel=d&to=500")
                if status != 200:
                    break
                left = 500
            assert (status, json.loads(answer)) == (503, refused)
            for path in ("/channel/empty?topic=t&channel=d", "/topic/empty?topic=t"):
                assert (await nsqd.http("POST", path))[0] == 503
            assert (await nsqd.http("GET", "/ping"))[0] == 500
        filler.unlink()

        async def healthy() -> bool:
            await asyncio.sleep(0.05)
            return (await nsqd.http("GET", "/ping"))[0] == 200

        await nsqd.post("/pub?topic=other", b"x")  # a good write clears what was said of the bad one
        await until(healthy)
        nsqd.kill()
        assert not [line for line in nsqd.lines if "Traceback" in line]
        nsqd.start()
        stats = json.loads((await nsqd.http("GET", "/stats?format=json&topic=t"))[1])
        depths = {each["channel_name"]: each["depth"] for each in stats["topics"][0]["channels"]}
        assert depths == {"c": 0, "d": left}


def limited(path: Path) -> subprocess.CompletedProcess[str]:
    """nsqd where no file may have a byte."""
    return subprocess.run(
        Nsqd(path).command(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )


async def test_a_start_without_room_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with Nsqd(tmp_path / "old").start() as nsqd:
        await nsqd.post("/pub?topic=t", b"x")
        assert nsqd.stop() == 0
    for path in (tmp_path / "new", tmp_path / "old"):
        result = await asyncio.to_thread(limited, path)
        assert result.returncode == 1
        assert "Traceback" not in result.stderr
        (fatal,) = [line for line in result.stderr.splitlines() if "FATAL" in line]
        assert "failed to instantiate nsqd" in fatal
        assert "File too large" in fatal
    with Nsqd(tmp_path / "old").start() as nsqd:
        assert b'"depth":1' in (await nsqd.http("GET", "/stats?format=json&topic=t"))[1]


async def test_a_start_that_cannot_make_a_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "topics").write_bytes(b"")
    nsqd = Nsqd(tmp_path)
    result = await asyncio.to_thread(
        subprocess.run, nsqd.command(), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert len([line for line in result.stderr.splitlines() if "FATAL" in line]) == 1


async def test_one_log_that_is_not_synced_does_not_keep_the_others_from_it(tmp_path: Path) -> None:
    nsqd = Nsqd(tmp_path, "--sync-timeout=1h")
    nsqd.program = [sys.executable, "-c", REFUSING]
    with nsqd.start():
        for topic in ("a", "bad", "c"):
            await nsqd.post(f"/pub?topic={topic}", b"x")
            await nsqd.post(f"/channel/create?topic={topic}&channel=ch")
        assert nsqd.stop() == 1
        assert not [line for line in nsqd.lines if "Traceback" in line or "never retrieved" in line]
        assert [line for line in nsqd.lines if "ERROR: topic bad could not be stored: [Errno 5]" in line]
        assert [line for line in nsqd.lines if line.endswith("NSQ: bye")]
    # every topic was closed in order, whose journal is one file then
    for topic in ("a", "c"):
        assert len(list((tmp_path / "topics" / topic).glob("journal.*"))) == 1
    with Nsqd(tmp_path).start() as nsqd:
        for topic in ("a", "bad", "c"):
            assert b'"depth":1' in (await nsqd.http("GET", f"/stats?format=json&topic={topic}"))[1]
        assert nsqd.stop() == 0
