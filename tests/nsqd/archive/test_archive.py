"""Segments go to an archive and come back: the same messages with the same ids."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import PATIENCE, Client, Nsqd, until
from tests.nsqd.archive.archived import SEGMENT, ArchivingNsqd, bodies, consumed

COUNT = 200  # messages: three segments, and a part of another


async def archived(nsqd: ArchivingNsqd, count: int = COUNT) -> None:
    """Have a log whose beginning is only in the archive, with a channel that has finished everything."""
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=c")
    await nsqd.publish(count)
    await nsqd.post("/channel/empty?topic=t&channel=c")
    await nsqd.emptied()


async def ok(nsqd: ArchivingNsqd) -> bool:
    return await nsqd.http("GET", "/ping") == (200, b"OK")


async def test_readers_get_from_the_archive_what_the_disk_has_no_longer(tmp_path: Path) -> None:
    with ArchivingNsqd(tmp_path).start() as nsqd:
        await nsqd.post("/topic/create?topic=t")
        await nsqd.publish(COUNT)
        before = [await nsqd.read(each, each + 1) for each in range(0, COUNT, 20)]
        await nsqd.post("/channel/create?topic=t&channel=c")
        await nsqd.post("/channel/empty?topic=t&channel=c")
        await nsqd.emptied()
        told = await nsqd.range()
        assert (told["first"], told["next"]) == (0, COUNT)
        assert told["local_first"] > COUNT // 2
        assert len(nsqd.objects()) == len(nsqd.records()) >= 3
        assert [await nsqd.read(each, each + 1) for each in range(0, COUNT, 20)] == before
        assert await nsqd.read_all(0, COUNT) == bodies(COUNT)
        _, peeked = await nsqd.http("GET", "/topic/peek?topic=t&from=0&limit=1")
        assert [each["position"] for each in json.loads(peeked)["messages"]] == [0]
        assert nsqd.stop() == 0
        nsqd.restart()
        assert (await nsqd.range())["first"] == 0
        assert [await nsqd.read(each, each + 1) for each in range(0, COUNT, 20)] == before
        assert await ok(nsqd)


async def test_a_channel_that_is_set_back_gets_everything_once(tmp_path: Path) -> None:
    with ArchivingNsqd(tmp_path).start() as nsqd:
        await archived(nsqd)
        await nsqd.post("/channel/seek?topic=t&channel=c&to=earliest")
        async with await nsqd.connect() as client:
            await client.sub("t", "c", rdy=10)
            assert await consumed(client, COUNT) == bodies(COUNT)
            await client.caught_up()
        await nsqd.post("/channel/seek?topic=t&channel=c&to=7")
        nsqd.kill()
        nsqd.restart()
        async with await nsqd.connect() as client:
            await client.sub("t", "c", rdy=10)
            assert await consumed(client, COUNT - 7) == bodies(COUNT)[7:]


async def test_a_time_is_found_in_the_archive(tmp_path: Path) -> None:
    with ArchivingNsqd(tmp_path).start() as nsqd:
        await nsqd.post("/topic/create?topic=t")
        await nsqd.publish(COUNT // 2)
        between = time.time_ns() // 1_000_000 + 2
        await until(lambda: time.time_ns() // 1_000_000 > between)
        await nsqd.publish(COUNT // 2, first=COUNT // 2)
        await nsqd.publish(COUNT, first=COUNT)
        await nsqd.post("/channel/create?topic=t&channel=c")
        await nsqd.post("/channel/empty?topic=t&channel=c")
        await nsqd.emptied()
        _, answer = await nsqd.http("GET", f"/log/range?topic=t&timestamp_ms={between}")
        assert json.loads(answer)["position"] == COUNT // 2


async def test_a_store_that_is_away_holds_up_nobody_and_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"a file, where a folder should be")
    with ArchivingNsqd(tmp_path).start() as nsqd:
        await nsqd.post("/topic/create?topic=t")
        await nsqd.post("/channel/create?topic=t&channel=c")
        await nsqd.publish(COUNT)
        await nsqd.post("/channel/empty?topic=t&channel=c")
        nsqd.wait_for_line("WARNING: ARCHIVE: ")

        async def failed() -> bool:
            return bool((await nsqd.archive())["failure"])

        await until(failed)
        assert await ok(nsqd)
        assert len(nsqd.segments()) > 3
        await nsqd.publish(COUNT, first=COUNT)
        (tmp_path / "store").unlink()
        await nsqd.post("/channel/empty?topic=t&channel=c")
        await nsqd.emptied()
        nsqd.wait_for_line("ARCHIVE: works again")
        assert (await nsqd.archive())["failure"] == ""
        assert await nsqd.read_all(0, 2 * COUNT) == bodies(2 * COUNT)


async def test_a_topic_that_cannot_be_archived_does_not_keep_the_others(tmp_path: Path) -> None:
    with ArchivingNsqd(tmp_path).start() as nsqd:
        for topic in ("a", "b"):
            await nsqd.post(f"/topic/create?topic={topic}")
            await nsqd.post(f"/channel/create?topic={topic}&channel=c")
        folder = nsqd.store / (await nsqd.range("a"))["node"]
        folder.mkdir(parents=True)
        (folder / "a").write_bytes(b"")
        for topic in ("a", "b"):
            await nsqd.publish(6 * COUNT, topic=topic)
            await nsqd.post(f"/channel/empty?topic={topic}&channel=c")
        await nsqd.emptied("b")  # which would take minutes if the pauses behind failures held up all
        nsqd.wait_for_line("WARNING: ARCHIVE: ")
        assert not nsqd.records("a")
        (folder / "a").unlink()
        await nsqd.emptied("a")


async def test_nothing_is_archived_to_a_folder_on_which_the_archive_is_not_mounted(tmp_path: Path) -> None:
    with ArchivingNsqd(tmp_path).start() as nsqd:
        await archived(nsqd)
        nsqd.store.rename(tmp_path / "unmounted")
        nsqd.store.mkdir()
        await nsqd.publish(COUNT, first=COUNT)
        await nsqd.post("/channel/empty?topic=t&channel=c")
        nsqd.wait_for_line("WARNING: ARCHIVE: .*is no folder: it was one")
        nsqd.kill()
        nsqd.restart()
        nsqd.wait_for_line("WARNING: ARCHIVE: .*is no folder: it was one")
        assert list(nsqd.store.iterdir()) == []
        assert await nsqd.read_all((await nsqd.range())["local_first"], 2 * COUNT)


async def test_a_folder_of_fetched_segments_may_be_emptied_by_hand(tmp_path: Path) -> None:
    with ArchivingNsqd(tmp_path).start() as nsqd:
        await archived(nsqd)
        folder = nsqd.data_path / "archive.fetched"
        assert await nsqd.read_all(0, COUNT) == bodies(COUNT)
        for each in folder.iterdir():
            each.unlink()
        assert await nsqd.read_all(0, COUNT) == bodies(COUNT)
        shutil.rmtree(folder)
        await nsqd.post("/channel/seek?topic=t&channel=c&to=earliest")
        async with await nsqd.connect() as client:
            await client.sub("t", "c", rdy=10)
            assert await consumed(client, COUNT) == bodies(COUNT)
        for each in folder.iterdir():
            each.write_bytes(b"\0" * each.stat().st_size)
        await nsqd.post("/channel/seek?topic=t&channel=c&to=earliest")
        async with await nsqd.connect() as client:
            await client.sub("t", "c", rdy=10)
            assert await consumed(client, COUNT) == bodies(COUNT)
        assert await ok(nsqd)


async def test_a_peek_shows_messages_of_more_segments_than_are_kept_here(tmp_path: Path) -> None:
    with ArchivingNsqd(tmp_path).start("--archive-fetched-bytes=1") as nsqd:
        count = 10 * 64
        await archived(nsqd, count)
        await nsqd.post("/channel/seek?topic=t&channel=c&to=earliest")
        async with await nsqd.connect() as client:
            await client.sub("t", "c", rdy=100)
            for number in range(count):
                message = await client.message()
                if number % 64 == 0:
                    client.req(message, 600_000)
                else:
                    client.fin(message)
            await client.caught_up()
            _, answer = await nsqd.http("GET", "/channel/peek?topic=t&channel=c&state=deferred&limit=100")
            assert [each["position"] for each in json.loads(answer)["messages"]] == [*range(0, count, 64)]
        _, answer = await nsqd.http("GET", "/topic/peek?topic=t&from=10&limit=200")
        assert [each["position"] for each in json.loads(answer)["messages"]] == [*range(10, 210)]


async def test_an_archive_that_does_not_answer_keeps_neither_readers_of_the_disk_nor_the_end(
    tmp_path: Path,
) -> None:
    with ArchivingNsqd(tmp_path).start() as nsqd:
        await archived(nsqd)
        first = nsqd.objects()[0]
        first.unlink()
        os.mkfifo(first)  # to open it takes for ever
        reads = [asyncio.create_task(nsqd.http("GET", "/log/read?topic=t&from=0")) for _ in range(3)]
        here = (await nsqd.range())["local_first"]
        assert await nsqd.read_all(here, COUNT) == bodies(COUNT)[here:]
        await nsqd.publish(10, first=COUNT)
        for status, answer in await asyncio.gather(*reads):
            assert (status, json.loads(answer)["message"]) == (503, "ARCHIVE_UNAVAILABLE")
        assert await ok(nsqd)
        assert nsqd.stop(within=10.0) == 0


async def test_an_object_store_that_hangs_does_not_keep_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections and answers nothing. pyarrow's end of S3 would wait for its requests."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    asked = asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = f"s3://bucket/nsq?scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1"
    with ArchivingNsqd(tmp_path).start(f"--archive-url={url}") as nsqd:
        await nsqd.post("/topic/create?topic=t")
        await nsqd.publish(COUNT)
        await asyncio.wait_for(asked.wait(), PATIENCE)
        assert await asyncio.to_thread(nsqd.stop, within=6.0) == 0
        assert nsqd.lines[-1].endswith("NSQ: bye")
    server.close()


async def test_a_damaged_object_is_not_delivered_and_nothing_is_given_up(tmp_path: Path) -> None:
    with ArchivingNsqd(tmp_path).start() as nsqd:
        await archived(nsqd)
        first = nsqd.objects()[0]
        data = first.read_bytes()
        damaged = bytearray(data)
        damaged[len(data) // 2] ^= 1
        first.write_bytes(damaged)
        status, answer = await nsqd.http("GET", "/log/read?topic=t&from=0")
        assert status == 503
        assert first.name in json.loads(answer)["reason"]
        await nsqd.post("/channel/seek?topic=t&channel=c&to=earliest")
        async with await nsqd.connect() as client:
            await client.sub("t", "c", rdy=10)
            nsqd.wait_for_line("channel t:c cannot read")
            assert await ok(nsqd)
            first.write_bytes(data)
            assert await consumed(client, COUNT) == bodies(COUNT)


async def test_a_segment_that_is_damaged_on_the_disk_is_read_from_the_archive(tmp_path: Path) -> None:
    with ArchivingNsqd(tmp_path, "--retention-time=1h").start() as nsqd:
        await nsqd.post("/topic/create?topic=t")
        await nsqd.publish(COUNT)
        await until(lambda: len(nsqd.records()) == len(nsqd.segments()) - 1 > 2)
        nsqd.kill()
        first = nsqd.segments()[0]
        data = bytearray(first.read_bytes())
        data[len(data) // 2] ^= 1
        first.write_bytes(data)
        nsqd.restart()
        assert await nsqd.read_all(0, COUNT) == bodies(COUNT)
        nsqd.wait_for_line("the archive has all of it")
        assert not first.exists()
        assert await ok(nsqd)


async def test_a_topic_that_is_created_again_does_not_have_the_old_messages(tmp_path: Path) -> None:
    with ArchivingNsqd(tmp_path).start() as nsqd:
        await archived(nsqd)
        before = nsqd.objects()
        await nsqd.post("/topic/delete?topic=t")
        await archived(nsqd)
        told = await nsqd.range()
        assert told["first"] == COUNT
        assert set(before) < set(nsqd.objects())
        assert await nsqd.read_all(COUNT, 2 * COUNT) == bodies(COUNT)
        nsqd.kill()
        nsqd.restart()
        assert (await nsqd.range())["first"] == COUNT


async def test_without_the_flag_the_archive_is_not_read_and_with_it_again_it_is(tmp_path: Path) -> None:
    with ArchivingNsqd(tmp_path).start() as nsqd:
        await archived(nsqd)
        here = (await nsqd.range())["local_first"]
        assert nsqd.stop() == 0
        nsqd.restart("--archive-url=")
        nsqd.wait_for_line("without --archive-url, logs lack what the archive has of 1 topics, such as t")
        assert (await nsqd.range())["first"] == here
        assert nsqd.stop() == 0
        nsqd.restart()
        assert (await nsqd.range())["first"] == 0


async def test_nothing_is_lost_or_doubled_by_kills_while_segments_go(tmp_path: Path) -> None:
    draw = random.Random(7)
    published = 0
    with ArchivingNsqd(tmp_path).start() as nsqd:
        await nsqd.post("/topic/create?topic=t")
        await nsqd.post("/channel/create?topic=t&channel=c")
        for _ in range(8):
            async with await nsqd.connect() as client:
                await publish_over_tcp(client, published, 250)
            published += 250
            await nsqd.post("/channel/empty?topic=t&channel=c")
            wanted = draw.randrange(len(nsqd.records()) + 1, len(nsqd.records()) + 4)
            gone = draw.random() < 0.5
            await until(lambda wanted=wanted, gone=gone: reached(nsqd, wanted, gone))
            nsqd.kill()
            nsqd.restart()
        await nsqd.post("/channel/empty?topic=t&channel=c")
        await nsqd.emptied()
        told = await nsqd.range()
        assert (told["first"], told["next"]) == (0, published)
        assert await nsqd.read_all(0, published) == bodies(published)
        await nsqd.post("/channel/seek?topic=t&channel=c&to=earliest")
        async with await nsqd.connect() as client:
            await client.sub("t", "c", rdy=100)
            assert await consumed(client, published) == bodies(published)
        assert await ok(nsqd)


def reached(nsqd: ArchivingNsqd, records: int, gone: bool) -> bool:
    """Whether so many segments are archived, or the first of them is gone, too; it may be the last moment."""
    there = len(nsqd.records()) >= records
    return there and (not gone or len(nsqd.segments()) < 3)


async def publish_over_tcp(client: Client, first: int, count: int) -> None:
    for start in range(first, first + count, 50):
        await client.mpub("t", bodies(50, start))


async def test_the_archive_keeps_so_much_and_what_it_deleted_is_answered_as_gone(tmp_path: Path) -> None:
    with ArchivingNsqd(tmp_path).start("--archive-retention-bytes=1") as nsqd:
        await nsqd.post("/topic/create?topic=t")
        await nsqd.post("/channel/create?topic=t&channel=c")
        await nsqd.post("/channel/create?topic=t&channel=slow")
        await nsqd.publish(COUNT)
        await nsqd.post("/channel/empty?topic=t&channel=c")
        await nsqd.post("/channel/seek?topic=t&channel=slow&to=100")
        await until(lambda: len(nsqd.records()) == len(nsqd.segments()) - 1 + gone(nsqd))
        first = (await deleted_up_to(nsqd, 1))["first"]
        assert 0 < first <= 100  # what a channel needs stays, whatever the limit
        assert await nsqd.read_all(first, COUNT) == bodies(COUNT)[first:]
        for path in ("/log/read?topic=t&from=0", "/log/read?topic=t&from=0&index=0&archive=1"):
            status, answer = await nsqd.http("GET", path)
            assert (status, json.loads(answer)["message"]) == (410, "POSITION_GONE")
            assert json.loads(answer)["first"] == first
        status, answer = await nsqd.http("POST", "/channel/seek?topic=t&channel=c&to=0")
        assert (status, json.loads(answer)["message"]) == (410, "POSITION_GONE")
        await nsqd.post("/channel/seek?topic=t&channel=c&to=earliest")
        async with await nsqd.connect() as client:
            await client.sub("t", "c", rdy=10)
            assert await consumed(client, COUNT - first) == bodies(COUNT)[first:]
        for channel in ("c", "slow"):
            await nsqd.post(f"/channel/empty?topic=t&channel={channel}")
        await until(lambda: all_deleted(nsqd))
        told = await nsqd.range()
        assert told["first"] == told["local_first"] > first
        assert (await nsqd.archive())["failure"] == ""
        nsqd.kill()
        nsqd.restart()
        assert (await nsqd.range())["first"] == told["first"]


async def test_a_topic_has_limits_of_its_own_in_the_archive_by_size_and_by_age(tmp_path: Path) -> None:
    with ArchivingNsqd(tmp_path).start() as nsqd:
        await archived(nsqd)
        size = (await nsqd.range())["bytes"]
        retained = json.loads(await retain(nsqd, f"archive_bytes={size}"))
        assert (retained["archive_bytes"], retained["archive_time"]) == (size, -1)
        assert (retained["own_archive_bytes"], retained["own_archive_time"]) == (size, None)
        assert retained["archived_bytes"] > 0
        before = nsqd.objects()
        await retain(nsqd, f"archive_bytes={sum(each.stat().st_size for each in before) - 1}")
        await until(lambda: len(nsqd.objects()) == len(before) - 1)
        assert nsqd.objects() == before[1:]
        nsqd.kill()
        nsqd.restart()  # the limit holds on
        await retain(nsqd, "archive_bytes=unlimited&archive_time=1ms")
        await until(lambda: all_deleted(nsqd))
        status, _ = await nsqd.http("POST", "/topic/retention?topic=t&archive_time=0")
        assert status == 400


async def test_kills_between_the_steps_of_a_deletion_leave_nothing_behind(tmp_path: Path) -> None:
    """Each step is made by hand where nsqd would be killed behind it: the next start goes on from there."""
    with ArchivingNsqd(tmp_path).start() as nsqd:
        await archived(nsqd)
        nsqd.kill()
        records, objects = nsqd.records(), nsqd.objects()
        assert len(records) >= 3
        for record in records[:2]:  # the log has let go of two, and one object is deleted
            record.rename(record.with_suffix(".expired"))
        objects[0].unlink()
        nsqd.restart()
        told = await deleted_up_to(nsqd, 2)
        assert told["first"] == int(records[2].stem)
        assert nsqd.objects() == objects[2:]
        await until(lambda: not list((nsqd.data_path / "topics" / "t").glob("*.expired")))
        assert await nsqd.read_all(told["first"], COUNT) == bodies(COUNT)[told["first"] :]


async def test_kills_while_segments_come_and_go_leave_no_object_that_no_record_names(tmp_path: Path) -> None:
    draw = random.Random(11)
    published = 0
    with ArchivingNsqd(tmp_path).start(f"--archive-retention-bytes={2 * SEGMENT}") as nsqd:
        await nsqd.post("/topic/create?topic=t")
        await nsqd.post("/channel/create?topic=t&channel=c")
        for _ in range(6):
            async with await nsqd.connect() as client:
                await publish_over_tcp(client, published, 250)
            published += 250
            await nsqd.post("/channel/empty?topic=t&channel=c")
            before = {each.name for each in nsqd.objects()}
            wanted = draw.choice(("expired", "gone", "added"))
            await until(lambda wanted=wanted, before=before: is_there(nsqd, wanted, before))
            nsqd.kill()
            nsqd.restart(f"--archive-retention-bytes={2 * SEGMENT}")
        await nsqd.post("/channel/empty?topic=t&channel=c")
        await nsqd.emptied()
        await until(lambda: len(nsqd.objects()) == len(nsqd.records()) <= 2)
        told = await nsqd.range()
        assert 0 < told["first"] < told["local_first"]
        assert await nsqd.read_all(told["first"], published) == bodies(published)[told["first"] :]
        assert await ok(nsqd)


def is_there(nsqd: ArchivingNsqd, what: str, before: set[str]) -> bool:
    """Whether a deletion has begun or ended, or an object has come; it may be the last moment."""
    now = {each.name for each in nsqd.objects()}
    if what == "expired":
        return bool(list((nsqd.data_path / "topics" / "t").glob("*.expired"))) or bool(before - now)
    return bool(before - now if what == "gone" and before else now - before)


async def test_what_cannot_be_deleted_is_tried_again_and_is_no_part_of_the_log(tmp_path: Path) -> None:
    with ArchivingNsqd(tmp_path).start() as nsqd:
        await archived(nsqd)
        before = nsqd.objects()
        nsqd.store.rename(tmp_path / "away")
        nsqd.store.write_bytes(b"a file, where a folder should be")
        await retain(nsqd, "archive_bytes=1")
        nsqd.wait_for_line("WARNING: ARCHIVE: ")
        told = await nsqd.range()
        assert told["first"] == told["local_first"]
        assert await ok(nsqd)
        nsqd.kill()
        nsqd.store.unlink()
        (tmp_path / "away").rename(nsqd.store)
        assert nsqd.objects() == before
        nsqd.restart()
        await until(lambda: all_deleted(nsqd))
        assert (await nsqd.archive())["deleted"] == len(before)
        assert (
            b"nsqd_archive_deleted_segments_total %d.0" % len(before)
            in (await nsqd.http("GET", "/metrics"))[1]
        )


async def retain(nsqd: ArchivingNsqd, what: str) -> bytes:
    status, answer = await nsqd.http("POST", f"/topic/retention?topic=t&{what}")
    assert status == 200, answer
    return answer


def gone(nsqd: ArchivingNsqd) -> int:
    """Records of segments that are only in the archive."""
    here = {each.stem for each in nsqd.segments()}
    return sum(each.stem not in here for each in nsqd.records())


async def deleted_up_to(nsqd: ArchivingNsqd, number: int) -> dict[str, Any]:
    """What `/log/range` tells once so many objects, and their records, are deleted."""

    async def deleted() -> bool:
        return bool((await nsqd.archive())["deleted"] >= number)

    await until(deleted)
    return await nsqd.range()


def all_deleted(nsqd: ArchivingNsqd) -> bool:
    """Whether there are neither objects nor anything that tells of them, and one file of the log."""
    records = [*nsqd.records(), *(nsqd.data_path / "topics" / "t").glob("*.expired")]
    return not nsqd.objects() and not records and len(nsqd.segments()) == 1


async def test_a_follower_archives_nothing_and_reads_the_archive_once_it_is_promoted(tmp_path: Path) -> None:
    with ArchivingNsqd(tmp_path).start() as primary:
        node = ("--replica-of=http://" + primary.http_address, f"--archive-url=file://{tmp_path}/other")
        follower = ArchivingNsqd(tmp_path / "follower")
        follower.services = ("HTTP",)  # it has no other port until it is promoted
        with follower.start(*node):
            await archived(primary)
            await until(
                lambda: len(follower.records()) == len(primary.records()) and len(follower.segments()) == 1
            )
            await primary.publish(10, first=COUNT)
            await until(lambda: same(primary.segments()[-1], follower.segments()[-1]))
            primary.kill()
            follower.kill()
        assert not (tmp_path / "other").exists()
        follower.services = Nsqd.services
        follower.restart(f"--archive-url=file://{primary.store}")
        with follower:
            assert await follower.read_all(0, COUNT + 10) == bodies(COUNT + 10)
            await follower.publish(COUNT, first=COUNT + 10)
            await follower.post("/channel/empty?topic=t&channel=c")
            await follower.emptied()
            assert await follower.read_all(0, 2 * COUNT + 10) == bodies(2 * COUNT + 10)


def same(one: Path, other: Path) -> bool:
    return one.name == other.name and one.stat().st_size == other.stat().st_size
