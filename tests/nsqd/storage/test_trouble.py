"""When something else fails: the disk, a deletion in the wrong moment, a journal that was damaged."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import weakref
from pathlib import Path

import pytest

from nsquark.nsqd.broker import Broker
from nsquark.nsqd.core.timers import NEVER, Timers
from nsquark.nsqd.core.topic import Topic
from nsquark.nsqd.options import Options
from nsquark.nsqd.protocol import connection as connection_module
from nsquark.nsqd.server import Server
from nsquark.nsqd.storage import metadata_saving
from nsquark.nsqd.storage import syncer as syncer_module
from tests.daemon import Nsqd, pub, until
from tests.nsqd.api import running
from tests.nsqd.harness import SECOND, Clock, Harness, Publisher, Reader


def opened(path: Path, **changes: object) -> tuple[Harness, Topic]:
    harness = Harness(path, Clock(), **changes)
    topic = Topic(harness, "t", path / "t")
    topic.journaling.rewrite()
    return harness, topic


@pytest.mark.parametrize("path", ["/channel/delete?topic=t&channel=c%23ephemeral", "/topic/delete?topic=t"])
async def test_an_ephemeral_channel_can_be_deleted_under_its_consumer(nsqd: Nsqd, path: str) -> None:
    async with await nsqd.connect() as consumer:
        consumer.send(b"SUB t c#ephemeral\n")
        await consumer.ok()
        assert (await nsqd.http("POST", path))[0] == 200
        with pytest.raises((EOFError, ConnectionError)):
            await consumer.frame()
    async with await nsqd.connect() as client:
        client.send(pub("t", b"x"))
        await client.ok()
    nsqd.kill()
    nsqd.start()
    _, stats = await nsqd.http("GET", "/stats?format=json&topic=t")
    assert b'"channels":[]' in stats


def test_a_log_that_cannot_be_read_for_a_moment_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, topic = opened(tmp_path, mem_queue_size=1)
    channel = topic.channel("c")
    reader = Reader()
    channel.add_consumer(reader.consumer)
    channel.set_ready(reader.consumer, 10)
    topic.publish([b"one"], 0, Publisher())
    harness.turn.run()
    [(number, _, _)] = reader.take()
    topic.publish([b"two"], 0, Publisher())
    topic.publish([b"three"], 0, Publisher())
    channel.requeue(reader.consumer, number, number + 1, 0, harness.clock.now)
    with monkeypatch.context() as patch:

        def refuse(*_: object) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

        patch.setattr(os, "pread", refuse)
        topic.commit()
        topic.log.tail.clear()
        harness.turn.run()
        assert reader.take() == []
        assert harness.reasons
    harness.pass_time(2 * SECOND)
    assert sorted(body for _, _, body in reader.take()) == [b"one", b"three", b"two"]
    topic.close()


def test_a_damaged_journal_brings_everything_again(tmp_path: Path) -> None:
    harness, topic = opened(tmp_path)
    topic.channel("c")
    topic.publish([b"one", b"two"], 0, Publisher())
    harness.turn.run()
    topic.close()
    [journal] = (tmp_path / "t").glob("journal.*")
    journal.write_bytes(b"NQJ1" + bytes(100))
    harness = Harness(tmp_path, Clock())
    topic = Topic(harness, "t", tmp_path / "t")
    topic.restore(["c"], False, harness.clock.now)
    assert topic.channels["c"].depth == 2
    assert "journal" in harness.reasons[0]
    topic.close()


def test_a_stuck_ephemeral_channel_does_not_keep_the_log(tmp_path: Path) -> None:
    harness, topic = opened(tmp_path, max_bytes_per_file=1000, mem_queue_size=5)
    stuck = Reader()
    topic.channel("tail#ephemeral").add_consumer(stuck.consumer)
    for _ in range(50):
        topic.publish([b"x" * 100], 0, Publisher())
        harness.turn.run()
    topic.trimming.run(harness.clock.now / SECOND)
    assert len(topic.log.segments) == 2
    topic.close()


async def test_publishers_are_answered_once_there_are_descriptors_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options()
    options.data_path, options.sync_every = str(tmp_path), 1
    monkeypatch.setattr(syncer_module, "RETRY", 0.01)
    broker = Broker(options, asyncio.get_running_loop())
    broker.load()
    topic = broker.topic("t")
    topic.publish([b"first"], 0, Publisher())
    real, failures = os.dup, [OSError(errno.EMFILE, "Too many open files")] * 2

    def dup(fd: int) -> int:
        if failures:
            raise failures.pop()
        return real(fd)

    monkeypatch.setattr(os, "dup", dup)
    answered = asyncio.Event()

    class Waiting:
        def settle(self, reason: str | None) -> None:
            assert reason is None
            answered.set()

    topic.publish([b"second"], 0, Waiting())
    await asyncio.wait_for(answered.wait(), 10)
    assert failures == []
    await broker.stop_saving()
    broker.close()


async def test_an_error_in_a_split_size_is_told_before_the_end(nsqd: Nsqd) -> None:
    async with await nsqd.connect() as client:
        for piece in (b"PUB t\n", b"\xff\xff", b"\xff\xff", b"and more"):
            client.send(piece)
            await asyncio.sleep(0)
        frame = await client.frame()
        assert frame.data == b"E_BAD_MESSAGE PUB invalid message body size -1"


async def test_a_timer_that_is_cancelled_lets_go() -> None:
    class Timed:
        wakes_at = NEVER

        def wake(self, now: int) -> None:
            raise AssertionError("woken")

    timers = Timers(asyncio.get_running_loop(), lambda: 0)
    timed = Timed()
    timers.schedule(timed, 3600 * SECOND)
    timers.cancel(timed)
    gone = weakref.ref(timed)
    del timed
    gc.collect()
    assert gone() is None
    for _ in range(1000):  # many that come and go do not pile up
        other = Timed()
        timers.schedule(other, 3600 * SECOND)
        timers.cancel(other)
    assert len(timers._heap) < 200
    timers.close()


async def test_a_client_that_never_reads_its_error_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "LINGER", 0.01)
    monkeypatch.setattr(connection_module, "PATIENCE", 0.1)
    monkeypatch.setattr(connection_module.logger, "disabled", True)
    options = Options()
    options.data_path, options.tcp_address, options.http_address = str(tmp_path), "127.0.0.1:0", ""
    server = Server(options)
    await server.start()
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", server.broker.tcp_port)) as client:
        client.setblocking(False)
        await loop.sock_sendall(client, b"  V2SUB t c\n")
        await until(lambda: bool(server.broker.connections))
        [connection] = server.broker.connections
        # errors, a few at a time, until the sockets are full; and then one that is fatal
        while not connection._transport.get_write_buffer_size():
            answered = connection.heard_at
            await loop.sock_sendall(client, b"FIN 0123456789abcdef\n" * 500)
            await until(lambda seen=answered: connection.heard_at > seen)
        await loop.sock_sendall(client, b"BOGUS\n")
        await until(lambda: not server.broker.connections)
    assert not server.broker.topics["t"].channels["c"].consumers
    await server.stop()


async def test_the_longest_msg_timeout_is_one(tmp_path: Path) -> None:
    longest = "2562047h47m16.854775807s"
    with Nsqd(tmp_path, f"--msg-timeout={longest}", f"--max-msg-timeout={longest}").start() as nsqd:
        client = await nsqd.connect()
        client.send(pub("t", b"1"))
        await client.ok()
        await client.sub("t", "c", 1)
        message = await client.message()
        client.send(b"TOUCH " + message.id + b"\nFIN " + message.id + b"\n" + pub("t", b"2"))
        await client.ok()
        assert (await client.message()).body == b"2"
        client.close()


def test_what_an_ephemeral_topic_drops_is_counted(tmp_path: Path) -> None:
    harness = Harness(tmp_path, Clock(), mem_queue_size=3)
    topic = Topic(harness, "t#ephemeral", None)
    publisher = Publisher()
    for _ in range(2):
        topic.publish([b"one", b"two"], 0, publisher)
        harness.turn.run()
    topic.publish([b"three", b"four"], 0, publisher)
    assert (topic.depth, topic.message_count) == (3, 6)
    assert publisher.settled == [None] * 3
    reader = Reader()
    topic.channel("c").add_consumer(reader.consumer)
    topic.channels["c"].set_ready(reader.consumer, 10)
    harness.turn.run()
    assert [body for _, _, body in reader.take()] == [b"one", b"two", b"one"]


def test_the_journal_of_an_ephemeral_topic_does_not_gather_records(tmp_path: Path) -> None:
    harness = Harness(tmp_path, Clock())
    topic = Topic(harness, "t#ephemeral", None)
    topic.channel("c")
    for _ in range(100):
        topic.publish([b"later"], 10, Publisher())
        topic.pause()
        topic.unpause()
        topic.empty()
    topic.delete_channel("c")
    harness.turn.run()
    assert not topic.journal.dirty


async def test_metadata_that_could_not_be_saved_are_saved_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_saving, "SAVE_AGAIN", 0.01)
    async with running(tmp_path) as api:
        real, refusals = metadata_saving.write_atomically, [OSError(28, "No space left on device")] * 2

        def write(path: Path, data: bytes) -> None:
            if refusals:
                raise refusals.pop()
            real(path, data)

        monkeypatch.setattr(metadata_saving, "write_atomically", write)
        api.broker.topic("t")
        await until(lambda: api.broker.health != "OK")
        await until(lambda: b'"name":"t"' in (tmp_path / "nsqd.dat").read_bytes())
        await until(lambda: api.broker.health == "OK")
        assert not refusals


async def test_a_deleted_channel_is_gone_from_the_disk_when_that_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as api:
        await api.done("/topic/create?topic=t")
        await api.done("/channel/create?topic=t&channel=c")
        topic = api.broker.topics["t"]
        await until(lambda: not topic.journal.unsynced)
        synced: list[int] = []
        real = os.fdatasync

        def fdatasync(fd: int) -> None:
            synced.append(os.fstat(fd).st_ino)
            real(fd)

        monkeypatch.setattr(os, "fdatasync", fdatasync)
        await api.done("/channel/delete?topic=t&channel=c")
        (journal,) = (tmp_path / "topics" / "t").glob("journal.*")
        assert journal.stat().st_ino in synced
        assert not topic.journal.unsynced
