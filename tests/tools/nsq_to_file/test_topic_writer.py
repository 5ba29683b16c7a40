"""When a message is finished, as an nsqd sees it that follows a script."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from nsquark.client import Config, Consumer, Message
from nsquark.tools.nsq_to_file.encoding import plain_lines
from nsquark.tools.nsq_to_file.rotation import Archive
from nsquark.tools.nsq_to_file.topic_writer import Subscription, TopicWriter
from tests.client.scripted import RESPONSE, Peer, ScriptedNsqd, frame
from tests.daemon import PATIENCE, until
from tests.tools.nsq_to_file.archiver import Archiver

# nsq_to_file whose every sync waits until the test has opened and closed a FIFO, or fails.
GATED = """
import errno, os, sys
from nsquark.tools.nsq_to_file import archive_file
from nsquark.tools.nsq_to_file.__main__ import main

def gated(fd, real=archive_file._fdatasync):
    with open(os.environ["GATE"]) as gate:
        if gate.read():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
    real(fd)

archive_file._fdatasync = gated
sys.exit(main())
"""


async def test_a_signal_in_the_moment_of_a_tick_ends_it_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer has gone off, and the writer has not run yet."""

    async def nothing(_consumer: Consumer, _limit: int) -> list[Message]:
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(Consumer, "take", nothing)
    source = Subscription("t", "c", ["127.0.0.1:1"], [], Config())
    with ThreadPoolExecutor(1) as threads:
        writer = TopicWriter(source, cast(Archive, None), plain_lines, -1.0, threads)
        waiting = asyncio.create_task(writer._next_run())
        for _ in range(10):
            await asyncio.sleep(0)
            if writer._wait is not None and writer._wait.expired():
                break
        assert not waiting.done()
        writer.stop()
        writer.reopen()
        assert await waiting == []


class Gate:
    """A FIFO that a sync waits at."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._path = path
        self._fd = -1

    async def reached(self) -> None:
        async with asyncio.timeout(PATIENCE):
            self._fd = await asyncio.to_thread(os.open, self._path, os.O_WRONLY)

    def let_through(self) -> None:
        os.close(self._fd)

    def fail(self) -> None:
        os.write(self._fd, b"fail")
        os.close(self._fd)


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))
    return Gate(tmp_path / "gate")


def gated(out: Path, nsqd: ScriptedNsqd, *flags: str) -> Archiver:
    flags = ("--topic=t", f"--nsqd-tcp-address={nsqd.address}", "--filename-format=a.log", *flags)
    return Archiver(out, *flags, program=("-c", GATED)).start()


def archiver(out: Path, nsqd: ScriptedNsqd, *flags: str) -> Archiver:
    flags = ("--topic=t", f"--nsqd-tcp-address={nsqd.address}", "--filename-format=a.log", *flags)
    return Archiver(out, *flags).start()


async def loop_is_alive(peer: Peer) -> None:
    """The client has read all that was sent to it, and answered."""
    seen = peer.commands.count("NOP")
    peer.send(frame(RESPONSE, b"_heartbeat_"))
    await until(lambda: peer.commands.count("NOP") > seen)


def fins(peer: Peer) -> list[str]:
    return [command for command in peer.commands if command.startswith("FIN")]


async def test_no_message_is_finished_before_its_sync_is_over(tmp_path: Path, gate: Gate) -> None:
    async with ScriptedNsqd() as nsqd:
        with gated(tmp_path / "out", nsqd) as archiver:
            peer = await nsqd.peer()
            await peer.expect("RDY 200")
            for number in range(3):
                peer.push(number, b"body %d" % number)
            await gate.reached()
            assert archiver.written[0] == b"body 0"
            peer.push(3, b"while the disk works")
            await loop_is_alive(peer)
            assert fins(peer) == []
            gate.let_through()
            await until(lambda: f"FIN {0:016x}" in fins(peer))


async def test_a_sync_that_fails_finishes_nothing_and_ends_the_program(tmp_path: Path, gate: Gate) -> None:
    async with ScriptedNsqd() as nsqd:
        with gated(tmp_path / "out", nsqd) as archiver:
            peer = await nsqd.peer()
            peer.push(1)
            await gate.reached()
            gate.fail()
            assert await asyncio.to_thread(archiver.ended) == 1
            await peer.closed.wait()
            assert fins(peer) == []
            fatal = archiver.wait_for_line("FATAL")
            assert fatal.startswith("[nsq_to_file] ")
            assert fatal.endswith(f"FATAL: [t/nsq_to_file] sync {tmp_path}/out/a.log: input/output error")
            assert "Traceback" not in "\n".join(archiver.lines)


async def test_a_full_disk_finishes_nothing_and_ends_the_program(tmp_path: Path) -> None:
    (tmp_path / "a.log").symlink_to("/dev/full")
    async with ScriptedNsqd() as nsqd:
        with archiver(tmp_path, nsqd) as running:
            peer = await nsqd.peer()
            peer.push(1)
            assert await asyncio.to_thread(running.ended) == 1
            await peer.closed.wait()
            assert fins(peer) == []
            running.wait_for_line(r"FATAL: \[t/nsq_to_file\] write .*/a\.log: no space left on device")


async def test_messages_are_touched_while_the_disk_is_slow(tmp_path: Path, gate: Gate) -> None:
    async with ScriptedNsqd({"msg_timeout": 1000}) as nsqd:
        with gated(tmp_path / "out", nsqd) as archiver:
            peer = await nsqd.peer()
            peer.push(1)
            await gate.reached()
            await until(lambda: peer.commands.count(f"TOUCH {1:016x}") >= 2)
            gate.let_through()
            await until(lambda: f"FIN {1:016x}" in fins(peer))
            archiver.wait_for_line("the disk is slow, touched 1 messages")


async def test_a_group_is_synced_when_no_more_messages_can_come(tmp_path: Path) -> None:
    """The first message of a file is finished at once, the others when 85 % of RDY are in flight."""
    async with ScriptedNsqd() as nsqd:
        with archiver(tmp_path / "out", nsqd, "--max-in-flight=20", "--sync-interval=10m") as running:
            peer = await nsqd.peer()
            await peer.expect("RDY 20")
            peer.push(0)
            await until(lambda: len(fins(peer)) == 1)
            for number in range(1, 17):
                peer.push(number)
            await until(lambda: len(running.written) == 17)
            await loop_is_alive(peer)
            assert len(fins(peer)) == 1
            peer.push(17)
            await until(lambda: len(fins(peer)) == 18)


async def test_a_tick_syncs_what_is_held(tmp_path: Path) -> None:
    async with ScriptedNsqd() as nsqd:
        with archiver(tmp_path / "out", nsqd, "--sync-interval=100ms"):
            peer = await nsqd.peer()
            for number in range(3):
                peer.push(number)
                await until(lambda number=number: len(fins(peer)) == number + 1)  # type: ignore[misc]


async def test_messages_are_synced_before_they_time_out_whatever_the_interval(tmp_path: Path) -> None:
    async with ScriptedNsqd({"msg_timeout": 1000}) as nsqd:
        flags = ("--sync-interval=10m", "--consumer-opt=msg_timeout,1s")
        with archiver(tmp_path / "out", nsqd, *flags) as running:
            running.wait_for_line(r"WARNING: --sync-interval 10m0s is not below the message timeout of 1s")
            peer = await nsqd.peer()
            peer.push(0)
            await until(lambda: len(fins(peer)) == 1)
            peer.push(1)
            await until(lambda: len(fins(peer)) == 2, 5.0)
            assert not any("too late" in line for line in running.lines)


async def test_a_message_of_any_attempt_is_archived(tmp_path: Path) -> None:
    async with ScriptedNsqd() as nsqd:
        with archiver(tmp_path / "out", nsqd) as running:
            peer = await nsqd.peer()
            peer.push(0, b"the ninth time", attempts=9)
            await until(lambda: len(fins(peer)) == 1)
            assert running.written == [b"the ninth time"]
            assert peer.identify["user_agent"].startswith("nsq_to_file/1.3.0 nsquark/")


async def test_attempts_may_be_limited_and_each_message_given_up_is_named(tmp_path: Path) -> None:
    async with ScriptedNsqd() as nsqd:
        with archiver(tmp_path / "out", nsqd, "--consumer-opt=max_attempts,5") as running:
            peer = await nsqd.peer()
            peer.push(0, attempts=6)
            await until(lambda: len(fins(peer)) == 1)
            running.wait_for_line(r"WARNING: .*giving up .*attempt 6")


async def test_what_has_come_is_archived_at_the_end_and_what_comes_later_is_given_back(
    tmp_path: Path,
) -> None:
    async with ScriptedNsqd() as nsqd:

        def late(peer: Peer) -> None:
            peer.push(7)
            peer.respond(b"CLOSE_WAIT")

        nsqd.handlers["CLS"] = late
        with archiver(tmp_path / "out", nsqd, "--sync-interval=10m") as running:
            peer = await nsqd.peer()
            for number in range(5):
                peer.push(number)
            await until(lambda: len(running.written) == 5)
            assert await asyncio.to_thread(running.stop) == 0
            await peer.closed.wait()
            assert len(fins(peer)) == 5
            assert f"REQ {7:016x} 0" in peer.commands
            assert len(running.written) == 5


async def test_a_lost_connection_is_no_failure(tmp_path: Path) -> None:
    async with ScriptedNsqd() as nsqd:
        with archiver(tmp_path / "out", nsqd, "--sync-interval=10m") as running:
            peer = await nsqd.peer()
            peer.push(0)
            await until(lambda: len(fins(peer)) == 1)
            peer.push(1)
            await until(lambda: len(running.written) == 2)
            peer.drop()
            again = await nsqd.peer()
            again.push(1, attempts=2)
            await until(lambda: len(running.written) == 3)
            assert await asyncio.to_thread(running.stop) == 0
            await again.closed.wait()
            assert fins(again) == [f"FIN {1:016x}"]
            running.wait_for_line("1 messages were synced too late and will come again")


async def test_an_nsqd_that_does_not_let_go_is_left(tmp_path: Path) -> None:
    async with ScriptedNsqd() as nsqd:
        nsqd.handlers["CLS"] = lambda peer: None
        with archiver(tmp_path / "out", nsqd, "--sync-interval=10m") as running:
            peer = await nsqd.peer()
            for number in range(5):
                peer.push(number)
            await until(lambda: len(running.written) == 5)
            assert await asyncio.to_thread(running.stop) == 0
            await peer.closed.wait()
            assert len(fins(peer)) == 5
