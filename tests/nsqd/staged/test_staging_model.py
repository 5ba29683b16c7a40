"""Staged publishing against a model: whatever is put, published, replayed and aborted, and wherever it stops.

nsqd runs in this process. A crash is a copy of its data directory, taken between any two steps of a
publication, less some of the bytes that were not synced, as after a power cut; the story goes on there.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from nsquark.log import Cursor
from nsquark.nsqd.broker import Broker
from nsquark.nsqd.core.topic import Topic
from nsquark.nsqd.options import Options
from nsquark.nsqd.staged import publication, stage_folder
from nsquark.nsqd.staged.application import Published, StagingError, Wanted
from nsquark.nsqd.storage.syncer import Syncer
from tests.nsqd.staged.test_staging import mpub_body

TOPICS = ("t", "u")


class Stopped(Exception):
    """The machine is gone, as far as this process is concerned."""


class Story:
    def __init__(self, path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rng = random.Random(seed)
        self.path = path
        self.lives = 0
        self.batch = 0
        self.stages: dict[tuple[int, str], list[tuple[str, list[bytes]]]] = {}
        self.expected: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.counts: dict[int, dict[str, int]] = {}
        self.steps_left = -1
        self.sure: dict[Path, int] = {}  # what is synced of the segments
        monkeypatch.setattr(publication, "PIECE", 100)
        for target, name in (
            (publication.Publication, "_store"),
            (stage_folder, "write_atomically"),
            (stage_folder.StageFolder, "delete_batches"),
        ):
            self.interrupt(monkeypatch, target, name)
        sync_now = Syncer.sync_now

        async def note(syncer: Syncer, topic: Topic) -> None:
            await sync_now(syncer, topic)
            self.synced(topic.name)

        monkeypatch.setattr(Syncer, "sync_now", note)

    def interrupt(self, monkeypatch: pytest.MonkeyPatch, target: Any, name: str) -> None:
        """Count the calls of a function as steps, and stop before or after the one that is one too many."""
        real = getattr(target, name)

        def step(*arguments: Any) -> Any:
            before = self.rng.random() < 0.5
            self.steps_left -= 1
            if self.steps_left == 0 and before:
                raise Stopped
            result = real(*arguments)
            if self.steps_left == 0:
                raise Stopped
            return result

        monkeypatch.setattr(target, name, step)

    # ---- lives

    def start(self) -> None:
        self.lives += 1
        self.path.mkdir(exist_ok=True)
        options = Options(data_path=str(self.path), max_bytes_per_file=self.rng.choice((200, 2000, 1 << 20)))
        self.broker = Broker(options, asyncio.get_running_loop())
        self.broker.load()

    async def end(self) -> None:
        self.steps_left = -1
        await self.broker.stop_saving()
        self.broker.close()

    async def crash(self) -> None:
        """Go on with a copy of the files as they are now, some of their last bytes lost."""
        copy = self.path.with_name(f"life{self.lives}")
        # what a thread deletes or replaces meanwhile is not for us to copy
        await self.broker.syncer.run(lambda: None)
        shutil.copytree(self.path, copy, ignore=shutil.ignore_patterns(".deleted.*", "*.tmp"))
        for topic in TOPICS:
            segments = sorted((copy / "topics" / topic).glob("*.log"))
            if segments and self.rng.random() < 0.7:
                newest = segments[-1]
                data = newest.read_bytes()
                sure = self.sure.get(Path(topic) / newest.name, 0)
                newest.write_bytes(data[: self.rng.randint(min(sure, len(data)), len(data))])
        await self.end()
        self.path = copy
        self.start()

    def synced(self, topic: str) -> None:
        for path in (self.path / "topics" / topic).glob("*.log"):
            self.sure[Path(topic) / path.name] = path.stat().st_size

    # ---- what an application does

    def put(self) -> None:
        key = self.rng.randrange(3), self.rng.choice("abc")
        bodies = [b"%d %d %d" % (self.batch, key[0], self.rng.getrandbits(40)) for _ in range(3)]
        topic = self.rng.choice(TOPICS)
        stage = self.broker.staging.stage("app", self.batch, *key)
        assert stage is not None
        if stage.records < 0:  # of an earlier life
            stage.known(stage.recover())
        known = self.stages.setdefault(key, [])
        assert stage.records == len(known)
        self.broker.staging.put(stage, len(known), topic, len(bodies), 0, mpub_body(bodies))
        known.append((topic, bodies))

    def abort(self) -> None:
        gone = self.broker.staging.abort("app", self.batch, None, None)
        assert gone == len(self.stages)
        self.stages = {}

    async def publish(self) -> None:
        winners = {}
        for partition, attempt in sorted(self.stages):
            if partition not in winners or self.rng.random() < 0.5:
                winners[partition] = attempt
        wanted = [
            Wanted(partition, attempt, sum(len(bodies) for _, bodies in self.stages[partition, attempt]))
            for partition, attempt in winners.items()
        ]
        counts: dict[str, int] = {}
        rows: list[tuple[str, list[bytes]]] = []
        for partition, attempt in sorted(winners.items()):
            rows += self.stages[partition, attempt]
        for topic, bodies in rows:
            counts[topic] = counts.get(topic, 0) + len(bodies)
        self.steps_left = self.rng.choice((-1, -1, *range(1, 12)))
        crashed = False
        while True:
            try:
                published = await self.broker.staging.publish("app", self.batch, wanted)
                break
            except Stopped:
                crashed = True
                await self.crash()
        assert published == Published(published.known, self.batch, counts)
        assert crashed or not published.known
        self.steps_left = -1
        for topic, bodies in rows:
            self.expected[topic] += bodies
        self.counts[self.batch] = counts
        self.stages = {}
        self.batch += 1

    async def replay(self) -> None:
        if self.counts:
            batch = self.rng.choice(list(self.counts))
            again = await self.broker.staging.publish("app", batch, [Wanted(0, "x", 1)])
            assert again == Published(True, batch, self.counts[batch])
            assert self.broker.staging.stage("app", batch, 0, "late") is None

    # ---- what is in the topics

    def check(self) -> None:
        for topic, bodies in self.expected.items():
            log = self.broker.topic(topic).log
            cursor, found = Cursor(log, log.first), []
            while (run := cursor.read(100, 1 << 20)) is not None and run.count:
                at = 0
                for _ in range(run.count):
                    size = int.from_bytes(run.frames[at : at + 4], "big")
                    found.append(bytes(run.frames[at + 34 : at + 4 + size]))
                    at += 4 + size
            assert sorted(found) == sorted(bodies)

    async def run(self, steps: int) -> None:
        self.start()
        try:
            for _ in range(steps):
                action = self.rng.choices(
                    (self.put, self.publish, self.replay, self.abort, self.crash), (8, 3, 1, 1, 1)
                )[0]
                result = action()
                if result is not None:
                    await result
            self.check()
        finally:
            await self.end()


@pytest.mark.parametrize("seed", range(10))
async def test_every_batch_is_there_once_wherever_it_was_interrupted(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Story(tmp_path / "life", seed, monkeypatch).run(60)


async def test_a_batch_out_of_order_and_an_unknown_stage_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(tmp_path, 0, monkeypatch)
    story.start()
    with pytest.raises(StagingError, match="STAGE_NOT_FOUND"):
        await story.broker.staging.publish("app", 3, [Wanted(0, "x", 1)])
    await story.end()
