"""`check` and `backup` of a data directory whose log begins in the archive."""

import asyncio
import shutil
from pathlib import Path

from nsquark.data_path.backup import back_up
from nsquark.data_path.check import check
from nsquark.data_path.findings import Level
from nsquark.nsqd.importing.existing_topic import copy_topic
from tests.daemon import Nsqd
from tests.nsqd.archive.archived import ArchivingNsqd, bodies

COUNT = 200


async def fill(nsqd: ArchivingNsqd) -> None:
    """A channel that has gone back into what only the archive has, and deferred messages there."""
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=c")
    async with await nsqd.connect() as client:
        await client.dpub("t", 1, b"soon")
    await nsqd.publish(COUNT)
    await nsqd.post("/channel/empty?topic=t&channel=c")
    await nsqd.emptied()
    await nsqd.post("/channel/seek?topic=t&channel=c&to=10")


def test_what_the_archive_has_is_not_missing_and_a_copy_reads_it(tmp_path: Path) -> None:
    with ArchivingNsqd(tmp_path).start() as nsqd:
        asyncio.run(fill(nsqd))
        assert nsqd.stop() == 0
        report = check(nsqd.data_path)
        assert report.findings == []
        (topic,) = report.topics
        assert (topic.first, topic.end, topic.lost) == (0, COUNT + 1, 0)
        assert [(each.unfinished, each.oldest) for each in topic.channels] == [(COUNT + 1 - 10, 10)]
        back_up(nsqd.data_path, tmp_path / "copy")
        shutil.rmtree(nsqd.data_path)
        shutil.move(tmp_path / "copy", nsqd.data_path)
        nsqd.restart()
        assert asyncio.run(nsqd.read_all(0, COUNT + 1)) == [b"soon", *bodies(COUNT)]


def test_a_record_that_does_not_read_is_told(tmp_path: Path) -> None:
    with ArchivingNsqd(tmp_path).start() as nsqd:
        asyncio.run(fill(nsqd))
        assert nsqd.stop() == 0
        record = nsqd.records()[1]
        record.write_bytes(record.read_bytes()[:40])
        report = check(nsqd.data_path)
        assert record in [each.path for each in report.findings if each.level is Level.ERROR]
        assert report.topics[0].lost > 10


def test_a_copy_knows_what_the_archive_is_to_delete(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data").start() as nsqd:
        asyncio.run(nsqd.post("/pub?topic=t", b"x"))
        assert nsqd.stop() == 0
    topic = tmp_path / "data" / "topics" / "t"
    (topic / "00000000000000000000.expired").write_text("what it was")
    back_up(tmp_path / "data", tmp_path / "copy")
    copy_topic(topic, tmp_path / "imported")
    for each in (tmp_path / "copy" / "topics" / "t", tmp_path / "imported"):
        assert (each / "00000000000000000000.expired").read_text() == "what it was"
