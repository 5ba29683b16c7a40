"""Which topics are archived, against real daemons."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.scripted import Peer, ScriptedNsqd
from tests.daemon import Nsqd, Nsqlookupd, until
from tests.tools.nsq_to_file.archiver import Archiver, ended, unfinished

NAMES = "--filename-format=<TOPIC>.log"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Nsqlookupd, Nsqd]]:
    with Nsqlookupd().start() as nsqlookupd:
        flags = (f"--lookupd-tcp-address={nsqlookupd.tcp_address}", "--broadcast-address=127.0.0.1")
        with Nsqd(tmp_path / "data", *flags).start() as nsqd:
            yield nsqlookupd, nsqd


async def listed(nsqlookupd: Nsqlookupd, *topics: str) -> None:
    async def are_listed() -> bool:
        return set(topics) <= set((await nsqlookupd.get("/topics"))["topics"])

    await until(are_listed)


async def test_topics_that_match_are_found_at_start_and_later(
    cluster: tuple[Nsqlookupd, Nsqd], tmp_path: Path
) -> None:
    nsqlookupd, nsqd = cluster
    for topic in ("apple", "banana"):
        await nsqd.post(f"/pub?topic={topic}", topic.encode())
    await listed(nsqlookupd, "apple", "banana")
    address = f"--lookupd-http-address={nsqlookupd.http_address}"
    first = Archiver(tmp_path / "first", address, "--topic-pattern=pp", NAMES)
    with first.start("--topic-refresh=1h"):
        await until(lambda: first.files == {"apple.log": b"apple\n"})
        assert await asyncio.to_thread(first.stop) == 0
    later = Archiver(tmp_path / "later", address, "--topic-pattern=^a", NAMES, "--channel=later")
    with later.start("--topic-refresh=50ms"):
        await asyncio.to_thread(later.wait_for_line, "skipping topic banana")
        await nsqd.post("/pub?topic=avocado", b"avocado")
        await until(lambda: b"avocado\n" in later.files.values())
        assert sum("skipping topic banana" in line for line in later.lines) == 1
        assert "INFO: skipping topic banana (doesn't match pattern ^a)" in "\n".join(later.lines)
        assert not any("banana" in name for name in later.files)
        assert await asyncio.to_thread(later.stop) == 0


async def test_one_unreachable_nsqlookupd_skips_the_round_and_is_named(
    cluster: tuple[Nsqlookupd, Nsqd], tmp_path: Path
) -> None:
    nsqlookupd, nsqd = cluster
    await nsqd.post("/pub?topic=apple", b"apple")
    await listed(nsqlookupd, "apple")
    other = Nsqlookupd().start()
    other.kill()
    addresses = [f"--lookupd-http-address={each.http_address}" for each in (nsqlookupd, other)]
    archiver = Archiver(tmp_path / "out", *addresses, "--topic-pattern=.", NAMES, "--topic-refresh=50ms")
    with archiver.start():
        line = await asyncio.to_thread(archiver.wait_for_line, "could not retrieve topic list", 2)
        assert other.http_address in line
        assert archiver.files == {}
        with other.restart():
            await until(lambda: archiver.files == {"apple.log": b"apple\n"})
        assert await asyncio.to_thread(archiver.stop) == 0


async def test_a_topic_named_like_a_directory_above_is_skipped(
    cluster: tuple[Nsqlookupd, Nsqd], tmp_path: Path
) -> None:
    nsqlookupd, nsqd = cluster
    await nsqd.post("/pub?topic=..", b"escaped")
    await nsqd.post("/pub?topic=fine", b"fine")
    await listed(nsqlookupd, "..", "fine")
    archiver = Archiver(
        tmp_path / "out" / "deep",
        f"--lookupd-http-address={nsqlookupd.http_address}",
        "--topic-pattern=.",
        "--filename-format=<TOPIC>/a.log",
    )
    with archiver.start():
        await until(lambda: archiver.files == {"fine/a.log": b"fine\n"})
        archiver.wait_for_line(r"ERROR: skipping topic \.\.: .*no name for a file")
        assert not (tmp_path / "out" / "a.log").exists()


async def test_several_topics_have_files_of_their_own(nsqd: Nsqd, tmp_path: Path) -> None:
    topics = [f"t{n}" for n in range(20)]
    flags = [f"--topic={topic}" for topic in topics]
    archiver = Archiver(tmp_path / "out", *flags, f"--nsqd-tcp-address={nsqd.tcp_address}", NAMES)
    with archiver.start():
        for topic in topics:
            await nsqd.post(f"/pub?topic={topic}", topic.encode())
        await until(lambda: archiver.files == {f"{topic}.log": f"{topic}\n".encode() for topic in topics})
        assert await asyncio.to_thread(archiver.stop) == 0
    assert archiver.lines[-1].endswith("INFO: archived 20 messages of 20 topics in 20 files")


async def test_an_nsqd_that_is_not_there_yet_is_tried_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
    archiver = Archiver(tmp_path / "out", "--topic=t", f"--nsqd-tcp-address={address}", NAMES)
    with archiver.start():
        archiver.wait_for_line(f"no connection: {re.escape(address)}")
        with Nsqd(tmp_path / "data") as nsqd:
            nsqd.tcp_address = address
            nsqd.start()
            await nsqd.post("/pub?topic=t", b"late")
            await until(lambda: archiver.files == {"t.log": b"late\n"})


async def test_an_nsqd_that_refuses_at_the_start_ends_the_program(tmp_path: Path) -> None:
    def refuse(peer: Peer) -> None:
        peer.fail(b'E_UNAUTHORIZED AUTH failed for SUB on "t" "nsq_to_file"')

    async with ScriptedNsqd() as nsqd:
        nsqd.handlers["SUB"] = refuse
        code, _, err = await asyncio.to_thread(
            ended, "--topic=t", f"--nsqd-tcp-address={nsqd.address}", f"--output-dir={tmp_path}"
        )
    assert code == 1
    assert re.search(r"FATAL: \[t/nsq_to_file\] E_UNAUTHORIZED AUTH failed", err)
    assert "Traceback" not in err


async def test_the_first_topic_that_fails_ends_all_and_nothing_unsynced_is_finished(
    nsqd: Nsqd, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "bad.log").symlink_to("/dev/full")
    archiver = Archiver(
        tmp_path / "out",
        "--topic=good",
        "--topic=bad",
        f"--nsqd-tcp-address={nsqd.tcp_address}",
        NAMES,
        "--sync-interval=1h",
    )
    with archiver.start():
        await nsqd.post("/mpub?topic=good", b"one\ntwo\nthree")
        await until(lambda: (tmp_path / "out" / "good.log").exists())
        await nsqd.post("/pub?topic=bad", b"lost?")
        assert await asyncio.to_thread(archiver.ended) == 1
        assert [line for line in archiver.lines if "FATAL" in line] == archiver.lines[-1:]
        assert archiver.lines[-1].endswith(
            f"FATAL: [bad/nsq_to_file] write {tmp_path}/out/bad.log: no space left on device"
        )
    assert await unfinished(nsqd, "bad") == 1
