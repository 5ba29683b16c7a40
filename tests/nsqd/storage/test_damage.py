"""Damage on the disk: what it costs, what is said of it, and until when."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from nsquark.cli.flags import StartError
from nsquark.errors import LogDamaged
from nsquark.kernel.pure import BLOCK
from nsquark.nsqd.core.topic import Topic
from nsquark.nsqd.options import Options
from nsquark.nsqd.server import Server
from tests.daemon import Nsqd, pub
from tests.log.contents import split_batches
from tests.nsqd.api import Api, running
from tests.nsqd.harness import SECOND, Clock, Harness, Publisher, Reader

BODIES = [b"%02d" % number * 20 for number in range(20)]


def segments(path: Path) -> list[Path]:
    return sorted((path / "topics" / "t").glob("*.log"))


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:  # in place: a process may be reading it
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


async def filled(path: Path, *flags: str) -> None:
    """A data directory with twenty messages, each a batch, of a process that was stopped."""
    with Nsqd(path, "--sync-every=1", *flags).start() as nsqd:
        assert (await nsqd.http("POST", "/topic/create?topic=t"))[0] == 200
        assert (await nsqd.http("POST", "/channel/create?topic=t&channel=c"))[0] == 200
        async with await nsqd.connect() as client:
            for body in BODIES:
                await client.ask(pub("t", body))
        assert nsqd.stop() == 0


async def delivered(nsqd: Nsqd, count: int) -> list[bytes]:
    async with await nsqd.connect() as client:
        await client.sub("t", "c", 50)
        messages = [await client.message() for _ in range(count)]
        with pytest.raises(TimeoutError):
            await client.message(0.2)
        for message in messages:
            client.fin(message)
        await client.caught_up()
        return [message.body for message in messages]


async def told(nsqd: Nsqd) -> Any:
    return json.loads((await nsqd.http("GET", "/stats?format=json&topic=t"))[1])


async def test_a_flipped_byte_costs_one_batch_and_is_told(tmp_path: Path) -> None:
    await filled(tmp_path)
    [segment] = segments(tmp_path)
    flip(segment, segment.stat().st_size // 3)
    lost = split_index(segment)
    with Nsqd(tmp_path).start() as nsqd:
        line = nsqd.wait_for_line("ERROR: TOPIC")
        assert f"lost positions {lost} to {lost}:" in line
        assert segment.name in line
        status, answer = await nsqd.http("GET", "/ping")
        assert status == 500
        assert f"lost positions {lost} to {lost}".encode() in answer
        stats = await told(nsqd)
        assert stats["health"].startswith("NOK - topic t: lost positions")
        assert stats["topics"][0]["channels"][0]["depth"] == 19
        assert await delivered(nsqd, 19) == BODIES[:lost] + BODIES[lost + 1 :]
        assert (await told(nsqd))["topics"][0]["channels"][0]["depth"] == 0
        nsqd.kill()
        # a restart does not make it good, an operator does
        nsqd.start()
        assert (await nsqd.http("GET", "/ping"))[0] == 500
        status, answer = await nsqd.http("POST", "/health/acknowledge?topic=t")
        assert status == 200
        [kept] = json.loads(answer)["acknowledged"]
        assert json.loads(answer)["health"] == "OK"
        assert Path(kept).exists()
        assert (await nsqd.http("GET", "/ping")) == (200, b"OK")
        nsqd.kill()
        nsqd.start()
        assert (await nsqd.http("GET", "/ping")) == (200, b"OK")
        assert (await told(nsqd))["topics"][0]["channels"][0]["depth"] == 0
        async with await nsqd.connect() as client:
            await client.pub("t", b"more")
        assert await delivered(nsqd, 1) == [b"more"]


def split_index(segment: Path) -> int:
    """Which of the batches is damaged: all are equally long."""
    return segment.stat().st_size // 3 // (segment.stat().st_size // 20)


@pytest.mark.parametrize("at_run_time", [False, True])
async def test_a_damaged_old_segment_costs_one_batch(tmp_path: Path, at_run_time: bool) -> None:
    flags = ("--max-bytes-per-file=700", "--mem-queue-size=1")
    await filled(tmp_path, *flags)
    victim = segments(tmp_path)[1]
    position = int(victim.stem) + 2
    batch = split_batches(victim.read_bytes())[2]
    if not at_run_time:
        flip(victim, batch.offset + 60)
    with Nsqd(tmp_path, *flags).start() as nsqd:
        if at_run_time:
            assert (await nsqd.http("GET", "/ping"))[0] == 200  # it has loaded
            flip(victim, batch.offset + 60)
        assert await delivered(nsqd, 19) == BODIES[:position] + BODIES[position + 1 :]
        assert f"lost positions {position} to {position}" in nsqd.wait_for_line("ERROR: TOPIC")
        for _ in range(100):  # the segment is deleted, and the problem is not
            if not victim.exists():
                break
            await asyncio.sleep(0.05)
        assert not victim.exists()
        assert (await nsqd.http("GET", "/ping"))[0] == 500
        assert len(list(victim.parent.glob("*.bad"))) == 1
        assert (await nsqd.http("POST", "/health/acknowledge"))[0] == 200
        assert (await nsqd.http("GET", "/ping"))[0] == 200


async def test_channels_that_meet_damage_together_lose_the_damaged_batch_alone(tmp_path: Path) -> None:
    """While one of them has the file verified, the others read on in it."""
    bodies = [b"%06d" % number + bytes(1000) for number in range(4000)]
    names = [f"c{number}" for number in range(6)]

    async def everything(nsqd: Nsqd, channel: str) -> list[bytes]:
        async with await nsqd.connect() as client:
            await client.sub("t", channel, 30)
            got: list[bytes] = []
            while not got or got[-1] != bodies[-1]:
                message = await client.message()
                client.fin(message)
                got.append(message.body)
            return got

    with Nsqd(tmp_path, "--mem-queue-size=1").start() as nsqd:
        assert (await nsqd.http("POST", "/topic/create?topic=t"))[0] == 200
        for name in names:
            assert (await nsqd.http("POST", f"/channel/create?topic=t&channel={name}"))[0] == 200
        async with await nsqd.connect() as client:
            for first in range(0, len(bodies), 2):
                await client.mpub("t", bodies[first : first + 2])
        [victim] = segments(tmp_path)
        batch = split_batches(victim.read_bytes())[1000]
        with victim.open("r+b") as file:
            file.seek(batch.offset)
            file.write(bytes(batch.length))
        got = await asyncio.gather(*(everything(nsqd, name) for name in names))
        assert got == [bodies[:2000] + bodies[2002:]] * len(names)
        assert "lost positions 2000 to 2001" in nsqd.wait_for_line("ERROR: TOPIC")


async def test_a_segment_that_is_gone_costs_its_messages_and_is_told(tmp_path: Path) -> None:
    flags = ("--max-bytes-per-file=700", "--mem-queue-size=1")
    await filled(tmp_path, *flags)
    victim, following = segments(tmp_path)[1:3]
    first, end = int(victim.stem), int(following.stem)
    victim.unlink()
    with Nsqd(tmp_path, *flags).start() as nsqd:
        assert await delivered(nsqd, 20 - (end - first)) == BODIES[:first] + BODIES[end:]
        assert f"lost positions {first} to {end - 1}" in nsqd.wait_for_line("ERROR: TOPIC")
        assert (await nsqd.http("GET", "/ping"))[0] == 500


async def test_a_segment_that_is_gone_while_nsqd_runs_is_waited_for(tmp_path: Path) -> None:
    """Its topic and others take publishes, and its channel goes on when the file is there again."""
    flags = ("--max-bytes-per-file=700", "--mem-queue-size=1")
    await filled(tmp_path, *flags)
    with Nsqd(tmp_path, *flags).start() as nsqd:
        assert (await nsqd.http("GET", "/ping"))[0] == 200  # it has looked into the folders
        victim = segments(tmp_path)[1]
        victim.rename(tmp_path / "away")
        async with await nsqd.connect() as client:
            await client.sub("t", "c", 50)
            messages = [await client.message() for _ in range(int(victim.stem))]
            assert victim.name in nsqd.wait_for_line("ERROR: channel t:c cannot read")
            status, text = await nsqd.http("GET", "/ping")
            assert (status, victim.name in text.decode()) == (500, True)
            for topic in ("t", "other"):
                assert (await nsqd.http("POST", f"/pub?topic={topic}", b"more"))[0] == 200
            (tmp_path / "away").rename(victim)
            messages += [await client.message() for _ in range(20 + 1 - len(messages))]
            assert [message.body for message in messages] == [*BODIES, b"more"]
        assert (await nsqd.http("GET", "/ping"))[0] == 200


async def test_a_newest_segment_that_is_gone_is_told_where_the_journal_knows_of_it(tmp_path: Path) -> None:
    flags = ("--max-bytes-per-file=700", "--mem-queue-size=1")
    await filled(tmp_path, *flags)
    with Nsqd(tmp_path, *flags).start() as nsqd:
        async with await nsqd.connect() as client:
            await client.sub("t", "c", 50)
            messages = [await client.message() for _ in range(20)]
            client.fin(messages[18])
            await client.caught_up()
        nsqd.kill()
        assert not [line for line in nsqd.lines if "the log ends at" in line]
        newest = [each for each in segments(tmp_path) if each.stat().st_size][-1]
        for each in segments(tmp_path):
            if each >= newest:
                each.unlink()
        nsqd.start()
        line = nsqd.wait_for_line("WARNING: TOPIC")
        told = f"the log ends at position {int(newest.stem)}, and its journal knows messages up to 20"
        assert told in line


async def test_a_torn_tail_is_cut_with_a_line(tmp_path: Path) -> None:
    await filled(tmp_path)
    [segment] = segments(tmp_path)
    size = segment.stat().st_size // 20
    segment.write_bytes(segment.read_bytes()[:-7])
    with Nsqd(tmp_path).start() as nsqd:
        line = nsqd.wait_for_line("WARNING: TOPIC")
        assert f"cut off {size - 7} bytes at the end of {segment}" in line
        assert (await nsqd.http("GET", "/ping"))[0] == 200
        assert await delivered(nsqd, 19) == BODIES[:19]


async def test_a_disk_that_is_full_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await filled(tmp_path)
    [segment] = segments(tmp_path)
    flip(segment, segment.stat().st_size // 3)
    before = segment.read_bytes()
    real = os.rename

    def full(source: str, target: str) -> None:
        if str(target).endswith(".bad"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    options = Options()
    options.data_path, options.tcp_address, options.http_address = str(tmp_path), "127.0.0.1:0", ""
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", full)
        with pytest.raises(StartError, match=r"topic t cannot be opened: .*No space left"):
            await Server(options).start()
    assert segment.read_bytes() == before
    assert not list(segment.parent.glob("*.bad*"))


# ---- other readers


async def read(api: Api, query: str) -> tuple[int, Any]:
    answer = await api.get(f"/log/read?topic=t&{query}")
    if answer.status != 200:
        return answer.status, json.loads(answer.body)
    count, position = int.from_bytes(answer.body[4:8], "big"), int.from_bytes(answer.body[8:16], "big")
    return position, count


async def test_readers_of_the_log_are_told_where_it_goes_on(tmp_path: Path) -> None:
    await filled(tmp_path)
    [segment] = segments(tmp_path)
    batches = split_batches(segment.read_bytes())
    for number in (7, 8):
        flip(segment, batches[number].offset + 50)
    async with running(tmp_path) as api:
        told = json.loads((await api.get("/log/range?topic=t")).body)
        assert (told["first"], told["next"]) == (0, 20)
        for index in (0, 1):
            assert await read(api, f"from=0&index={index}") == (0, 7)
            assert await read(api, f"from=9&index={index}") == (9, 11)
            status, answer = await read(api, f"from=8&index={index}")
            assert status == 410
            assert (answer["message"], answer["position"], answer["following"]) == ("POSITION_GONE", 8, 9)
            assert (answer["first"], answer["next"]) == (0, 20)
        peeked = json.loads((await api.get("/topic/peek?topic=t&from=6&limit=3")).body)
        assert [each["position"] for each in peeked["messages"]] == [6, 9, 10]
        peeked = json.loads((await api.get("/channel/peek?topic=t&channel=c&limit=9")).body)
        assert [each["position"] for each in peeked["messages"]] == [*range(7), 9, 10]
        time = batches[7].timestamp // 1_000_000 + 1
        position = json.loads((await api.get(f"/log/range?topic=t&timestamp_ms={time}")).body)["position"]
        assert position not in (7, 8)
        assert (await api.topic("t"))["channels"][0]["depth"] == 18
        # moved back over it, and made anew behind it
        await api.done("/channel/seek?topic=t&channel=c&to=5")
        assert (await api.topic("t"))["channels"][0]["depth"] == 13
        await api.done("/channel/create?topic=t&channel=d&from=8")
        depths = {each["channel_name"]: each["depth"] for each in (await api.topic("t"))["channels"]}
        assert depths == {"c": 13, "d": 11}


@pytest.mark.parametrize("path", ["/log/read?topic=t&from=0", "/topic/peek?topic=t&from=0&limit=100"])
async def test_damage_that_a_reader_finds_first(tmp_path: Path, path: str) -> None:
    await filled(tmp_path, "--max-bytes-per-file=700")
    victim = segments(tmp_path)[1]
    position = int(victim.stem) + 2
    flip(victim, split_batches(victim.read_bytes())[2].offset + 60)
    async with running(tmp_path, max_bytes_per_file=700) as api:
        assert (await api.topic("t"))["channels"][0]["depth"] == 20
        answer = await api.get(path)
        assert answer.status == 200
        if "peek" in path:
            found = [each["position"] for each in json.loads(answer.body)["messages"]]
            assert found == [each for each in range(20) if each != position]
        else:
            assert int.from_bytes(answer.body[4:8], "big") == position
        assert (await api.topic("t"))["channels"][0]["depth"] == 19
        assert (await api.get("/ping")).status == 500


def test_a_topic_without_channels_owes_nothing_that_is_lost(tmp_path: Path) -> None:
    harness = Harness(tmp_path, Clock(), mem_queue_size=1)
    topic = Topic(harness, "t", tmp_path / "t")
    topic.journaling.rewrite()
    for number in range(10):
        topic.publish([b"%d" % number * 50], 5.0 if number == 4 else 0, Publisher())
        harness.turn.run()
    topic.close()
    [segment] = (tmp_path / "t").glob("*.log")
    batches = split_batches(segment.read_bytes())
    for number in (4, 6):
        flip(segment, batches[number].offset + 60)
    harness = Harness(tmp_path, Clock(), mem_queue_size=1)
    topic = Topic(harness, "t", tmp_path / "t")
    topic.restore([], False, harness.clock.now)
    assert topic.depth == 8
    channel, reader = topic.channel("c"), Reader()
    assert (topic.depth, channel.depth, channel.deferred_count, channel.message_count) == (0, 8, 0, 8)
    channel.add_consumer(reader.consumer)
    channel.set_ready(reader.consumer, 100)
    harness.turn.run()
    assert [body[:1] for _, _, body in reader.take()] == [b"0", b"1", b"2", b"3", b"5", b"7", b"8", b"9"]
    topic.close()


def test_what_waits_to_be_delivered_again_and_is_lost_is_finished(tmp_path: Path) -> None:
    """Requeued and deferred messages of a segment whose damage is found while they wait."""
    harness = Harness(tmp_path, Clock(), mem_queue_size=1, max_bytes_per_file=300)
    topic = Topic(harness, "t", tmp_path / "t")
    topic.journaling.rewrite()
    channel, reader = topic.channel("c"), Reader()
    channel.add_consumer(reader.consumer)
    channel.set_ready(reader.consumer, 100)
    for number in range(10):
        topic.publish([b"%d" % number * 50], 0, Publisher())
        harness.turn.run()
    got = reader.take()
    assert len(got) == 10
    channel.set_ready(reader.consumer, 0)
    channel.requeue(reader.consumer, got[0][0], got[1][0], 0, harness.clock.now)
    channel.requeue(reader.consumer, got[1][0], got[2][0], 5 * SECOND, harness.clock.now)
    first = sorted((tmp_path / "t").glob("*.log"))[0]
    assert len(split_batches(first.read_bytes())) == 2
    for batch in split_batches(first.read_bytes()):
        flip(first, batch.offset + 60)
    topic.log.segments[0].verified = False  # as it is to the process that finds it
    channel.set_ready(reader.consumer, 100)
    harness.turn.run()
    assert reader.take() == []
    assert (channel.depth, channel.deferred_count, channel.in_flight_count) == (0, 0, 8)
    assert "lost positions 0 to 1" in harness.health.text
    for number, _, _ in got[2:]:
        channel.finish(reader.consumer, number, number + 1)
    assert channel.low() == 10
    topic.close()


@pytest.mark.parametrize("at", [0, 48])
def test_damage_to_the_newest_segment_while_it_is_written(tmp_path: Path, at: int) -> None:
    harness = Harness(tmp_path, Clock(), mem_queue_size=1)
    topic = Topic(harness, "t", tmp_path / "t")
    topic.journaling.rewrite()
    for number in range(10):
        topic.publish([b"%d" % number * 50], 0, Publisher())
        harness.turn.run()
    [segment] = (tmp_path / "t").glob("*.log")
    batch = split_batches(segment.read_bytes())[4]
    with segment.open("r+b") as file:
        file.seek(batch.offset + at)
        file.write(b"\x80\x80\x80\x80")
    channel, reader = topic.channel("c"), Reader()
    channel.add_consumer(reader.consumer)
    channel.set_ready(reader.consumer, 100)
    for _ in range(3):
        harness.turn.run()
        harness.reads.finish()
    assert [body[:1] for _, _, body in reader.take()] == [b"%d" % each for each in range(10) if each != 4]
    assert channel.depth == 0
    assert "lost positions 4 to 4" in harness.health.text
    topic.publish([b"more"], 0, Publisher())
    harness.turn.run()
    assert [body for _, _, body in reader.take()] == [b"more"]
    topic.close()


async def test_a_node_that_has_lost_its_file_is_told(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        await api.done("/pub?topic=t", b"x")
    (tmp_path / "nsquark.dat").write_bytes(b"what is this?")
    for _ in range(2):
        async with running(tmp_path) as api:
            assert b"nsquark.dat are damaged" in (await api.get("/ping")).body
    async with running(tmp_path) as api:
        await api.done("/health/acknowledge")
        assert (await api.get("/ping")).status == 200
    assert (tmp_path / "nsquark.dat.0+13.acknowledged").read_bytes() == b"what is this?"


async def test_a_record_that_was_taken_away_can_be_acknowledged(tmp_path: Path) -> None:
    await filled(tmp_path)
    [segment] = segments(tmp_path)
    flip(segment, segment.stat().st_size // 3)
    async with running(tmp_path) as api:
        for record in segment.parent.glob("*.bad"):
            record.unlink()
        await api.done("/health/acknowledge?topic=t")
        assert (await api.get("/ping")).status == 200
        assert (await api.post("/health/acknowledge?topic=nope")).status == 404


# ---- the journal and what is staged


async def test_a_damaged_journal_is_told_and_redelivers(tmp_path: Path) -> None:
    with Nsqd(tmp_path).start() as nsqd:
        async with await nsqd.connect() as client:
            await client.sub("t", "c", 50)
            for number in range(6):
                await client.pub("t", b"%d" % number)
                client.fin(await client.message())
                await client.caught_up()
        nsqd.kill()
        [journal] = (tmp_path / "topics" / "t").glob("journal.*")
        fins, at, data = [], 0, journal.read_bytes()
        while at < len(data):
            if data[at + BLOCK.size : at + BLOCK.size + 1] == b"F":
                fins.append(at)
            at += BLOCK.size + BLOCK.unpack_from(data, at)[2]
        assert len(fins) == 6
        flip(journal, fins[2] + BLOCK.size + 12)
        nsqd.start()
        assert journal.name in nsqd.wait_for_line("ERROR: TOPIC")
        assert (await nsqd.http("GET", "/ping"))[0] == 500
        assert await delivered(nsqd, 1) == [b"2"]
        nsqd.kill()
        nsqd.start()
        assert (await nsqd.http("GET", "/ping"))[0] == 500
        assert (await nsqd.http("POST", "/health/acknowledge"))[0] == 200
        assert (await nsqd.http("GET", "/ping"))[0] == 200


@pytest.mark.parametrize("published", [False, True])
async def test_an_empty_journal_is_damage_where_there_were_messages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, published: bool
) -> None:
    """A kill between the creation of a topic's first journal and the write leaves an empty one."""
    async with running(tmp_path) as api:
        await api.done("/topic/create?topic=t")
        if published:
            await api.done("/pub?topic=t", b"x")
    folder = tmp_path / "topics" / "t"
    for journal in folder.glob("journal.*"):
        journal.unlink()
    (folder / "journal.000001").touch()
    async with running(tmp_path) as api:
        assert (await api.get("/ping")).status == (500 if published else 200)
        assert ("the journal does not read" in caplog.text) is published
        await api.done("/pub?topic=t", b"y")
    assert len(list(folder.glob("*.bad"))) == published
    assert "journal.000001" not in {each.name for each in folder.iterdir()}


async def test_a_journal_that_is_missing_is_told_and_is_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as api:
        await api.done("/pub?topic=t", b"x")
    assert "journal" not in caplog.text
    for journal in (tmp_path / "topics" / "t").glob("journal.*"):
        journal.unlink()
    async with running(tmp_path) as api:
        assert (await api.get("/ping")).status == 200
    told = [record for record in caplog.records if "journal" in record.getMessage()]
    assert [(each.levelname, each.getMessage()) for each in told] == [
        ("WARNING", "TOPIC(t): there is no journal: all that is in the log comes again")
    ]


async def test_a_damaged_stage_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put = "/staged/put?app=a&batch=1&partition=0&attempt=x&topic=t&seq="
    body = b"\0\0\0\1" + b"\0\0\0\3abc"
    async with running(tmp_path) as api:
        for seq in range(4):
            await api.done(f"{put}{seq}", body)
    stage = tmp_path / "staged" / "a" / "1" / "0.x"
    whole = stage.read_bytes()
    flip(stage, len(whole) // 4 + 30)
    async with running(tmp_path) as api:
        with caplog.at_level(logging.ERROR):
            assert (await api.post(f"{put}4", body)).status == 409
        assert "0.x" in caplog.text
        assert (await api.get("/ping")).status == 500
    async with running(tmp_path) as api:
        assert (await api.get("/ping")).status == 500
        await api.done("/health/acknowledge")
        assert (await api.get("/ping")).status == 200
    [kept] = (tmp_path / "staged" / "a").glob("*.acknowledged")
    assert len(kept.read_bytes()) == len(whole) // 4 * 3
    # one that was torn is cut, and nothing more is said of it than that
    async with running(tmp_path) as api:
        await api.done(f"{put}1", body)
    stage.write_bytes(stage.read_bytes()[:-3])
    async with running(tmp_path) as api:
        with caplog.at_level(logging.WARNING):
            await api.done(f"{put}1", body)
        assert "cut off" in caplog.text
        assert (await api.get("/ping")).status == 200


def test_what_is_lost_while_its_topic_holds_it_back_is_not_deferred(tmp_path: Path) -> None:
    harness = Harness(tmp_path, Clock(), mem_queue_size=1, max_bytes_per_file=300)
    topic = harness.topic("t")
    channel = topic.channel("c")
    topic.pause()
    for number in range(4):
        topic.publish([b"%d" % number * 50], 5, Publisher())
        harness.turn.run()
    first = sorted((tmp_path / "t").glob("*.log"))[0]
    flip(first, split_batches(first.read_bytes())[0].offset + 60)
    with pytest.raises(LogDamaged) as caught:
        topic.log.segments[0].verify()
    topic.health.leave_out(caught.value)
    topic.unpause()
    assert (channel.depth, channel.deferred_count) == (0, 3)
    harness.close()
