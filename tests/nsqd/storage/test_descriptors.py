"""Descriptors: how many nsqd takes, that none is lost, and what happens when there are no more."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path

import pytest

from nsquark.log import WRITTEN_FILES, Cursor, Limits, TopicLog, files
from nsquark.log.written_files import WrittenFiles
from tests.daemon import Nsqd, pub, until
from tests.nsqd.api import running
from tests.nsqd.harness import Clock, Harness

LIMIT = 96
OURS = 24  # that nsqd has open itself, at most, with a few topics


def lease(count: int) -> tuple[int, int]:
    return 1 << 24, 1 << 24


def filled(path: Path, segments: int) -> TopicLog:
    """A log with a message in each of its segments, and none in memory."""
    log = TopicLog(path, Limits(max_bytes_per_file=1), lease)
    for number in range(segments):
        log.add_bodies([b"%d" % number], 0, 0)
        log.commit()
        sync = log.start_sync()
        sync.run()
        assert log.finish_sync(sync) is None
    log.tail.chunks.clear()
    return log


def open_here(path: Path) -> int:
    """How many files below this path the process has open."""
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link).startswith(str(path)) for link in links if os.path.lexists(link))


def open_in(nsqd: Nsqd) -> int:
    return len(os.listdir(f"/proc/{nsqd.process.pid}/fd"))


async def stays_full(nsqd: Nsqd) -> bool:
    """Whether clients that wait have taken every descriptor, also those that an fsync had for a moment."""
    for _ in range(6):
        if open_in(nsqd) < LIMIT - 1:
            return False
        await asyncio.sleep(0.05)
    return True


def test_a_long_log_is_read_with_few_descriptors(tmp_path: Path) -> None:
    logs = [filled(tmp_path / str(number), 150) for number in range(2)]
    cursors = [Cursor(log, position) for log in logs for position in (0, 50, 100)]
    most = 0
    for _ in range(50):
        for cursor in cursors:
            position = cursor.position
            run = cursor.read(1, 1 << 20)
            assert run is not None
            assert bytes(run.frames).endswith(b"%d" % position)
        most = max(most, open_here(tmp_path))
    assert most <= 64 + len(logs)
    for log in logs:
        log.close()
    assert open_here(tmp_path) == 0


def test_files_that_wait_for_an_fsync_are_few(tmp_path: Path) -> None:
    log = TopicLog(tmp_path, Limits(max_bytes_per_file=1), lease)
    for _ in range(200):
        log.add_bodies([b"x"], 0, 0)
        log.commit()
    assert open_here(tmp_path) <= 64 + 1
    log.close()
    assert open_here(tmp_path) == 0


def test_a_reader_without_a_descriptor_takes_another_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nsquark.log.segment import OpenFiles

    log = filled(tmp_path, 5)
    files = OpenFiles()
    real = os.open
    for segment in log.segments[:3]:
        files.descriptor(segment)

    def scarce(path: str, flags: int) -> int:
        if open_here(tmp_path) > 3:  # with the one that is written to
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, flags)

    monkeypatch.setattr(os, "open", scarce)
    descriptors = {files.descriptor(segment) for segment in log.segments}
    assert open_here(tmp_path) == 4
    assert descriptors
    for segment in log.segments:
        files.close(segment)
    log.close()


def test_a_cursor_that_could_not_read_is_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = TopicLog(tmp_path, Limits(), lease)
    for number in range(10):
        log.add_bodies([b"%d" % number], 0, 0)
        log.commit()
    log.tail.chunks.clear()
    cursor = Cursor(log, 7)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", lambda *_: refuse())
        with pytest.raises(OSError, match="Input"):
            cursor.read(1, 1 << 20)
    run = cursor.read(1, 1 << 20)
    assert run is not None
    assert (run.position, bytes(run.frames)[-1:]) == (7, b"7")
    log.close()


def refuse() -> bytes:
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("fails", range(1, 13))
def test_a_topic_that_cannot_be_created_leaves_no_descriptor(
    fails: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the calls that need a descriptor is the first that gets none."""
    harness = Harness(tmp_path, Clock())
    before = len(os.listdir("/proc/self/fd"))
    left = fails
    open_file, list_directory = os.open, os.listdir

    def spend() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise OSError(errno.EMFILE, "Too many open files")

    def scarce_open(*args: object, **kwargs: object) -> int:
        spend()
        return open_file(*args, **kwargs)  # type: ignore[arg-type]

    def scarce_listdir(path: str) -> list[str]:
        spend()
        return list_directory(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", scarce_open)
        patch.setattr(os, "listdir", scarce_listdir)
        try:
            harness.topic("t")
        except OSError:
            assert "t" not in harness.topics
            assert len(list_directory("/proc/self/fd")) == before
        else:
            assert harness.problems or left > 0  # without a journal for now, or there were fewer calls
    topic = harness.topic("t")
    topic.trimming.run(0.0)
    assert not harness.problems
    topic.close()
    assert len(os.listdir("/proc/self/fd")) == before


def limited(path: Path, *flags: str, most: int = LIMIT) -> Nsqd:
    nsqd = Nsqd(path, *flags)
    nsqd.program = ["sh", "-c", f'ulimit -n {most}; exec "$@"', "sh", *nsqd.program]
    return nsqd


async def test_clients_beyond_the_limit_wait_until_there_are_descriptors(tmp_path: Path) -> None:
    with limited(tmp_path).start() as nsqd:
        address = ("127.0.0.1", nsqd.tcp_port)
        await nsqd.post("/pub?topic=t", b"x")
        for _ in range(3):
            crowd = [socket.create_connection(address) for _ in range(LIMIT)]
            await until(lambda: open_in(nsqd) >= LIMIT - 1)
            await asyncio.sleep(0.3)  # in which it tries again
            late = await nsqd.connect()
            late.send(pub("t", b"y"))
            for each in crowd:
                each.close()
            await late.ok()
            late.close()

        async def healthy() -> bool:
            return (await nsqd.http("GET", "/ping"))[1] == b"OK"

        await until(healthy)  # once what could not be opened was tried again
        await until(lambda: open_in(nsqd) < OURS)


async def test_without_descriptors_publishers_get_errors_and_later_all_is_well(tmp_path: Path) -> None:
    with limited(tmp_path).start() as nsqd:
        await nsqd.post("/pub?topic=first", b"x")
        await until(lambda: open_in(nsqd) < OURS)
        before = open_in(nsqd)
        publishers = [await nsqd.connect() for _ in range(8)]
        for publisher in publishers:
            await publisher.pub("first", b"x")
        crowd = [socket.create_connection(("127.0.0.1", nsqd.tcp_port)) for _ in range(LIMIT)]
        await until(lambda: stays_full(nsqd))
        for number, publisher in enumerate(publishers[:4]):
            publisher.send(pub(f"new{number}", b"x"))
            assert (await publisher.error()).startswith(b"E_PUB_FAILED PUB failed ")
        await publishers[4].pub("first", b"x")  # which is open
        for each in crowd:
            each.close()
        await until(lambda: open_in(nsqd) < LIMIT // 2)
        for number in range(4):
            await publishers[5].pub(f"new{number}", b"x")
        for publisher in publishers:
            publisher.close()
        # a log and a journal for each topic
        await until(lambda: open_in(nsqd) <= before + 2 * 4)

        async def healthy() -> bool:
            return (await nsqd.http("GET", "/ping"))[1] == b"OK"

        await until(healthy)  # once what could not be opened was tried again


async def test_a_channel_reads_more_segments_than_there_are_descriptors(tmp_path: Path) -> None:
    flags = "--max-bytes-per-file=1024", "--mem-queue-size=1"
    with limited(tmp_path, *flags).start() as nsqd:
        await nsqd.post("/topic/create?topic=t")
        await nsqd.post("/channel/create?topic=t&channel=c")
        async with await nsqd.connect() as publisher, await nsqd.connect() as consumer:
            for number in range(2 * LIMIT):
                await publisher.pub("t", b"%04d" % number + bytes(1000))
            await consumer.sub("t", "c", rdy=10)
            for number in range(2 * LIMIT):
                message = await consumer.message()
                assert message.body[:4] == b"%04d" % number
                consumer.fin(message)
            await until(lambda: open_in(nsqd) < OURS)  # a channel that is not read needs none
            await publisher.pub("new", b"x")


# ---- more topics than descriptors

FEW = 256
MANY = 1000


async def published(nsqd: Nsqd, body: bytes) -> None:
    """Publish to each of very many topics, and look at the descriptors meanwhile."""
    async with await nsqd.connect() as publisher:
        for first in range(0, MANY, 50):
            for number in range(first, first + 50):
                publisher.send(pub(f"t{number}", b"%b %d" % (body, number)))
            for _ in range(50):
                await publisher.ok()
            assert open_in(nsqd) < FEW * 3 // 4


async def test_far_more_topics_than_descriptors_survive_a_kill(tmp_path: Path) -> None:
    nsqd = limited(tmp_path, most=FEW)
    with nsqd.start():
        await published(nsqd, b"first")
        nsqd.kill()
        nsqd.start()
        await published(nsqd, b"second")
        for number in range(0, MANY, 100):  # the journals, too, are written again
            async with await nsqd.connect() as consumer:
                await consumer.sub(f"t{number}", "c", rdy=2)
                got = [await consumer.message() for _ in range(2)]
                assert [each.body for each in got] == [b"first %d" % number, b"second %d" % number]
                consumer.fin(got[0])
                await consumer.caught_up()
        nsqd.kill()
        nsqd.start()
        for number in range(MANY):
            async with await nsqd.connect() as consumer:
                await consumer.sub(f"t{number}", "c", rdy=2)
                wanted = [b"second %d" % number]
                if number % 100:
                    wanted.insert(0, b"first %d" % number)
                assert [(await consumer.message()).body for _ in wanted] == wanted
        assert (await nsqd.http("GET", "/ping"))[1] == b"OK"


async def test_a_topic_whose_file_cannot_be_opened_again_refuses_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, sync_timeout=0.01) as api:
        monkeypatch.setattr(files, "WRITTEN_FILES", WrittenFiles(1))
        client = await api.client()
        await client.pub("t", b"first")
        topic = api.broker.topics["t"]
        await until(lambda: not topic.log.unsynced)
        assert topic.log.files is not None
        assert topic.log.files.rest(wait=False)
        files.WRITTEN_FILES.remove(topic.log.files)
        folder = tmp_path / "topics" / "t"
        folder.rename(tmp_path / "away")
        client.send(pub("t", b"refused"))
        assert (await client.error()).startswith(b"E_PUB_FAILED PUB failed ")
        assert (await api.get("/ping")).status == 500
        assert topic.log.end == 1
        (tmp_path / "away").rename(folder)
        client = await api.client()
        await client.pub("t", b"second")
        assert (await api.get("/ping")).status == 200
        await client.sub("t", "c", rdy=2)
        assert [(await client.message()).body for _ in range(2)] == [b"first", b"second"]


async def test_a_topic_is_deleted_while_its_files_are_closed(tmp_path: Path) -> None:
    async with running(tmp_path, sync_timeout=0.01) as api:
        client = await api.client()
        await client.pub("t", b"old")
        topic = api.broker.topics["t"]
        await until(lambda: not topic.log.unsynced and not topic.journal.unsynced)
        assert topic.log.files is not None
        for each in (topic.log.files, topic.journal):
            assert each.rest(wait=False)
            WRITTEN_FILES.remove(each)
        await api.done("/topic/delete?topic=t")
        await client.pub("t", b"new")
        await client.sub("t", "c", rdy=1)
        assert (await client.message()).body == b"new"
