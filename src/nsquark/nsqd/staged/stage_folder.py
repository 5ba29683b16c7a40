"""The files of staged publishing, and what is known of them.

staged/
  nightly/                an application; a leading dot of its name is written %2E
    app.json              the batches it has published last, and the one being published
    17/                   a batch
      0.c0ffee            what attempt `c0ffee` at partition 0 has put: see stage_file
  .deleted.…              on its way out
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from nsquark import changes
from nsquark.durable import sync_path
from nsquark.log import Record, acknowledge, records
from nsquark.names import from_file_name, to_file_name
from nsquark.nsqd.storage.metadata import BadMetadata
from nsquark.nsqd.storage.node import write_atomically

from . import stage_file
from .application import App, Stage, StagingError, parse_state
from .publication import Intent, stage_name

if TYPE_CHECKING:
    from nsquark.nsqd.broker import Broker

logger = logging.getLogger(__name__)

FOLDER = "staged"
STATE = "app.json"
DELETED = ".deleted."
MAX_APPS = 10_000
MAX_STAGES = 100_000
# A stage that grows goes to the disk in steps of so many bytes, so that little is left to wait for when it
# is published.
SYNC_STEP = 32 << 20


class StageFolder:
    """Every application with its stages. `stages` and `bytes` say how much all of them hold."""

    def __init__(self, broker: Broker, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.apps: dict[str, App] = {}
        self.bytes = 0
        self.stages = 0
        self._broker = broker
        self._path = path / FOLDER
        self._loop = loop
        self._doubtful: set[Path] = set()  # stages whose fsync has failed
        self._early_syncs: dict[Stage, asyncio.Future[None]] = {}  # of stages that still grow
        self._damage: dict[Path, Record] = {}  # of stages, not acknowledged
        self._recovering: dict[Path, asyncio.Task[None]] = {}

    def load(self) -> list[tuple[App, Intent]]:
        """Take up what earlier processes have left; returns which batches they were publishing at their end.

        Raises BadMetadata: better not to start than to publish a batch twice.
        """
        unfinished: list[tuple[App, Intent]] = []
        for entry in os.scandir(self._path) if self._path.is_dir() else ():
            if entry.name.startswith(DELETED):
                self._broker.syncer.delete([Path(entry.path)])
            elif entry.is_dir():
                app, intent = self._load_app(Path(entry.path), entry.stat().st_mtime)
                if intent is not None:
                    unfinished.append((app, intent))
        return unfinished

    def _load_app(self, directory: Path, touched: float) -> tuple[App, Intent | None]:
        app = App(from_file_name(directory.name), directory, touched)
        self.apps[app.name] = app
        for record in records(directory):
            if not record.acknowledged:
                self._tell_damage(record)
        for entry in os.scandir(directory):
            if entry.name.isdigit() and entry.is_dir():
                app.batches[int(entry.name)] = stages = {}
                for file in os.scandir(entry.path):
                    partition, _, attempt = file.name.partition(".")
                    if partition.isdigit():
                        stat = file.stat()
                        stage = Stage(
                            Path(file.path),
                            int(partition),
                            attempt,
                            stat.st_size,
                            stat.st_mtime,
                            app.topics,
                        )
                        stages[stage.partition, attempt] = stage
                        app.unread.append(stage)
                        self._count(1, stage.size)
            elif entry.name.endswith(".tmp"):  # a crash came while it was written
                os.unlink(entry.path)
        state = directory / STATE
        try:
            app.last, app.published, intent, app.note, app.prepared, app.home = parse_state(
                state.read_bytes()
            )
        except FileNotFoundError:
            return app, None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise BadMetadata(f"failed to parse staging state in {state} - {error!r}") from None
        app.topics.update(*app.published.values(), intent.shares if intent is not None else ())
        app.touched = state.stat().st_mtime
        return app, intent

    # ---- applications and stages

    def app(self, name: str) -> App:
        app = self.apps.get(name)
        if app is None:
            if len(self.apps) >= MAX_APPS:
                self._forget_one(time.time())
            app = App(name, self._path / to_file_name(name), time.time())
            for directory in (self._path, app.directory):
                directory.mkdir(mode=0o700, exist_ok=True)
            self.apps[name] = app
        return app

    def _forget_one(self, now: float) -> None:
        """Make room: the application that was silent longest goes, if that is long enough."""
        silent = [app for app in self.apps.values() if not app.batches and app.publication is None]
        oldest = min(silent, key=lambda app: app.touched, default=None)
        if oldest is None or now - oldest.touched < self._broker.options.staged_timeout:
            raise StagingError(503, "TOO_MANY_APPS")
        self.forget(oldest)

    def forget(self, app: App) -> None:
        """Delete an application and what it has published. Raises OSError."""
        del self.apps[app.name]
        self._delete(app.directory)

    def stage(self, app: App, batch: int, partition: int, attempt: str) -> Stage:
        """The stage of this attempt, new or as it is. Raises StagingError and OSError."""
        stages = app.batches.get(batch)
        stage = None if stages is None else stages.get((partition, attempt))
        if stage is None:
            if self.stages >= MAX_STAGES:
                raise StagingError(503, "STAGING_FULL")
            directory = app.batch_directory(batch)
            if stages is None:
                directory.mkdir(mode=0o700, exist_ok=True)
                stages = app.batches[batch] = {}
            path = directory / stage_name(partition, attempt)
            stage = Stage(path, partition, attempt, 0, time.time(), app.topics)
            stages[partition, attempt] = stage
            self._count(1, 0)
        return stage

    def append(self, stage: Stage, topic: str, count: int, defer_ms: int, body: bytes) -> None:
        """Add a checked MPUB body to a stage. Raises StagingError and OSError."""
        limit = self._broker.options.staged_max_bytes
        if limit and self.bytes + len(body) > limit:
            raise StagingError(503, "STAGING_FULL")
        head = stage_file.pack_head(topic, count, defer_ms, body)
        try:
            size = stage_file.append(stage.path, stage.size, head, body)
        except OSError as error:
            logger.error("%s could not be written: %s", stage.path, error)
            stage.records = -1  # look again before the next
            raise
        self._count(0, size - stage.size)
        stage.count(topic, count, size, time.time())
        if stage.size - stage.sync_asked >= SYNC_STEP and stage not in self._early_syncs:
            self._sync_early(stage)

    def _sync_early(self, stage: Stage) -> None:
        """Bring to the disk what a stage holds by now, while more is put. A failure is noted for `save`."""
        stage.sync_asked = stage.size

        def work() -> None:
            # A file in doubt is written again when it is complete. The file is gone if it was deleted.
            if stage.path not in self._doubtful:
                with contextlib.suppress(OSError):
                    self._sync_stage(stage.path)

        self._early_syncs[stage] = early = self._loop.run_in_executor(None, work)
        early.add_done_callback(lambda _: self._early_syncs.pop(stage))

    async def recover(self, stage: Stage) -> None:
        """Have the content of a stage known that another process has written. Raises OSError."""
        while stage.records < 0:
            # One at a time: a second one, begun before, could cut off what was put after the first.
            task = self._recovering.get(stage.path)
            if task is None:
                task = self._recovering[stage.path] = self._loop.create_task(self._recover(stage))
                task.add_done_callback(lambda _: self._recovering.pop(stage.path))
            await asyncio.shield(task)

    async def _recover(self, stage: Stage) -> None:
        before = stage.size
        contents = await asyncio.to_thread(stage.recover)
        stage.known(contents)
        self._count(0, stage.size - before)
        if contents.damage is not None:
            logger.error("STAGED(%s): %s", stage.path.parent.parent.name, contents.damage)
            self._tell_damage(contents.damage)
        elif contents.cut:
            logger.warning("cut off %d bytes at the end of %s: a torn write", contents.cut, stage.path)

    def _count(self, stages: int, size: int) -> None:
        self.stages += stages
        self.bytes += size

    def delete_batches(self, app: App, condition: Callable[[int], bool]) -> None:
        """Let go of all stages of these batches. Raises OSError."""
        for batch in [each for each in app.batches if condition(each)]:
            for stage in app.batches.pop(batch).values():
                self._count(-1, -stage.size)
            self._delete(app.batch_directory(batch))

    def delete_stages(self, app: App, batch: int, gone: Iterable[Stage]) -> None:
        """Let go of some stages of a batch. Raises OSError."""
        stages = app.batches[batch]
        for stage in gone:
            del stages[stage.partition, stage.attempt]
            self._count(-1, -stage.size)
            self._delete(stage.path)

    def _delete(self, path: Path) -> None:
        """Away at once as far as names go; the bytes follow in a thread."""
        gone = self._path / f"{DELETED}{os.urandom(8).hex()}"
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, gone)
            changes.tell_renamed(path, gone)
        self._broker.syncer.delete([gone])

    async def save(self, app: App, *stages: Stage) -> None:
        """Write down what is true of the application, once these stages are on the disk. Raises OSError.

        The stages are closed.
        """
        # The kernel tells of a failure once: to the early fsync, or to the one that follows here.
        early = [self._early_syncs[stage] for stage in stages if stage in self._early_syncs]
        if early:
            await asyncio.wait(early)
        data = app.as_json()
        paths = [stage.path for stage in stages]

        def write() -> None:
            for path in paths:
                self._sync_stage(path)
            for folder in {path.parent for path in paths}:
                sync_path(folder)
            if paths:
                # The batch's folder first: a power cut must not leave a state that names files it took.
                sync_path(app.directory)
            state = app.directory / STATE
            new = not state.exists()
            write_atomically(state, data)
            if paths or new:
                sync_path(self._path)
                sync_path(self._path.parent)

        await asyncio.shield(self._loop.run_in_executor(None, write))
        app.touched = time.time()

    def _sync_stage(self, path: Path) -> None:
        """Bring a stage to the disk; a closed one also after a failure. For a thread. Raises OSError."""
        if path in self._doubtful:
            stage_file.rewrite(path)
            self._doubtful.discard(path)
            return
        try:
            sync_path(path)
        except FileNotFoundError:
            raise
        except OSError:
            self._doubtful.add(path)
            raise

    # ---- damage

    def _tell_damage(self, record: Record) -> None:
        self._damage[record.path] = record
        self._broker.unhealthy(str(record), ("/staged", "/damage", str(record.path)))

    async def acknowledge(self) -> list[Record]:
        """An operator has seen what was damaged. Raises OSError."""
        known = [record for record in self._damage.values() if record.path.exists()]
        done: list[Record] = []
        await self._broker.syncer.run(lambda: done.extend(map(acknowledge, known)))
        self._damage.clear()
        self._broker.healthy(("/staged", "/damage"))
        return done
