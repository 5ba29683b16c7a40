"""Staged publishing: what an application puts aside per batch and partition, to be published as a whole.

    staged/
      nightly/                an application; a leading dot of its name is written %2E
        app.json              the batches it has published last, and the one being published
        17/                   a batch
          0.c0ffee            what attempt `c0ffee` at partition 0 has put: see stage_file
      .deleted.…              on its way out

An application's batches are published in the order of their numbers, one at a time, and each once: what is
not above the last one published is answered as known. `publication` does the publishing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nsquark.durable import sync_path
from nsquark.errors import NsquarkError
from nsquark.log import Record, acknowledge, records
from nsquark.names import from_file_name, to_file_name
from nsquark.nsqd.storage.metadata import BadMetadata
from nsquark.nsqd.storage.node import write_atomically

from . import stage_file
from .application import App, Home, Published, Stage, Wanted, parse_state
from .publication import Intent, Part, Publication, Share, stage_name

if TYPE_CHECKING:
    from nsquark.nsqd.broker import Broker

logger = logging.getLogger(__name__)

FOLDER = "staged"
STATE = "app.json"
DELETED = ".deleted."
REMEMBERED = 64  # batches of an application whose counts are kept
MAX_APPS = 10_000
MAX_STAGES = 100_000
SWEEP_INTERVAL = 60.0
RESUME_AGAIN = 1.0

_T = TypeVar("_T")


class StagingError(NsquarkError):
    """A request that cannot be met; `status` and `code` are those of the HTTP answer."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class Staging:
    def __init__(self, broker: Broker, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.apps: dict[str, App] = {}
        self.bytes = 0
        self.stages = 0
        self._broker = broker
        self._path = path / FOLDER
        self._loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()
        self._doubtful: set[Path] = set()  # stages whose fsync has failed
        self._damage: dict[Path, Record] = {}  # of stages, not acknowledged

    # ---- the files

    def load(self) -> None:
        """Take up what there is. Raises BadMetadata: better not to start than to publish a batch twice."""
        if not self._path.is_dir():
            return
        for entry in os.scandir(self._path):
            if entry.name.startswith(DELETED):
                self._broker.syncer.delete([Path(entry.path)])
            elif entry.is_dir():
                self._load_app(Path(entry.path), entry.stat().st_mtime)

    def _load_app(self, directory: Path, touched: float) -> None:
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
                        stage = Stage(Path(file.path), int(partition), attempt, stat.st_size, stat.st_mtime)
                        stages[stage.partition, attempt] = stage
                        self._count(1, stage.size)
            elif entry.name.endswith(".tmp"):  # a crash came while it was written
                os.unlink(entry.path)
        state = directory / STATE
        try:
            app.last, app.published, intent, app.note, app.prepared, app.home = parse_state(
                state.read_bytes()
            )
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise BadMetadata(f"failed to parse staging state in {state} - {error!r}") from None
        app.touched = state.stat().st_mtime
        if intent is not None:
            app.publication = Publication(self._broker, app.batch_directory(intent.batch), intent)
            self._start(app, self._resume(app, app.publication))

    def _count(self, stages: int, size: int) -> None:
        self.stages += stages
        self.bytes += size

    def _delete_batches(self, app: App, condition: Callable[[int], bool]) -> None:
        """Let go of all stages of these batches. Raises OSError."""
        for batch in [each for each in app.batches if condition(each)]:
            for stage in app.batches.pop(batch).values():
                self._count(-1, -stage.size)
            self._delete(app.batch_directory(batch))

    def _delete(self, path: Path) -> None:
        """Away at once as far as names go; the bytes follow in a thread."""
        gone = self._path / f"{DELETED}{os.urandom(8).hex()}"
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, gone)
        self._broker.syncer.delete([gone])

    async def _save(self, app: App, *stages: Path) -> None:
        """Write down what is true of the application, once these files are on the disk. Raises OSError."""
        data = app.as_json()

        def write() -> None:
            for path in stages:
                self._sync_stage(path)
            for folder in {path.parent for path in stages}:
                sync_path(folder)
            state = app.directory / STATE
            new = not state.exists()
            write_atomically(state, data)
            if stages or new:
                sync_path(self._path)
                sync_path(self._path.parent)

        await asyncio.shield(self._loop.run_in_executor(None, write))
        app.touched = time.time()

    def _sync_stage(self, path: Path) -> None:
        """Bring a stage that nobody adds to to the disk. For a thread. Raises OSError."""
        if path in self._doubtful:
            stage_file.rewrite(path)
            self._doubtful.discard(path)
            return
        try:
            sync_path(path)
        except OSError:
            self._doubtful.add(path)
            raise

    # ---- putting

    def _app(self, name: str) -> App:
        app = self.apps.get(name)
        if app is None:
            if len(self.apps) >= MAX_APPS:
                self._forget_one(time.time())
            app = App(name, self._path / to_file_name(name), time.time())
            app.directory.mkdir(parents=True, exist_ok=True)
            self.apps[name] = app
        return app

    def _forget_one(self, now: float) -> None:
        """Make room: the application that was silent longest goes, if that is long enough."""
        silent = [app for app in self.apps.values() if not app.batches and app.publication is None]
        oldest = min(silent, key=lambda app: app.touched, default=None)
        if oldest is None or now - oldest.touched < self._broker.options.staged_timeout:
            raise StagingError(503, "TOO_MANY_APPS")
        del self.apps[oldest.name]
        self._delete(oldest.directory)

    def stage(self, name: str, batch: int, partition: int, attempt: str) -> Stage | None:
        """The stage of this attempt, new or as it is; None when the batch is published or being published.

        Raises StagingError and OSError.
        """
        app = self._app(name)
        if app.is_known(batch):
            return None
        stages = app.batches.get(batch)
        stage = None if stages is None else stages.get((partition, attempt))
        if stage is None:
            if self.stages >= MAX_STAGES:
                raise StagingError(503, "STAGING_FULL")
            directory = app.batch_directory(batch)
            if stages is None:
                directory.mkdir(exist_ok=True)
                stages = app.batches[batch] = {}
            stage = Stage(directory / stage_name(partition, attempt), partition, attempt, 0, time.time())
            stages[partition, attempt] = stage
            self._count(1, 0)
        return stage

    def put(self, stage: Stage, seq: int, topic: str, count: int, defer_ms: int, body: bytes) -> None:
        """Add a checked MPUB body to a stage whose content is known. Raises StagingError and OSError."""
        if stage.closed:
            raise StagingError(409, "STAGE_CLOSED")
        if seq < stage.records:
            return  # it has come before, and its answer was lost
        if seq > stage.records:
            raise StagingError(409, "SEQ_GAP")
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
        stage.size = size
        stage.records += 1
        stage.topics[topic] = stage.topics.get(topic, 0) + count
        stage.touched = time.time()

    async def recover(self, stage: Stage) -> None:
        """Have the content of a stage known that another process has written. Raises OSError."""
        while stage.records < 0:
            before = stage.size
            contents = await asyncio.to_thread(stage.recover)
            if stage.records < 0:
                stage.known(contents)
                self._count(0, stage.size - before)
            if contents.damage is not None:
                logger.error("STAGED(%s): %s", stage.path.parent.parent.name, contents.damage)
                self._tell_damage(contents.damage)
            elif contents.cut:
                logger.warning("cut off %d bytes at the end of %s: a torn write", contents.cut, stage.path)

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

    # ---- taking part

    async def prepare(self, name: str, batch: int, wanted: list[Wanted], home: Home) -> bool:
        """Promise to keep these stages until `home` has decided; False if the batch is published.

        Without stages, it is only written down where the home is. Raises StagingError and OSError.
        """
        if name not in self.apps and any(each.messages for each in wanted):
            raise StagingError(404, "STAGE_NOT_FOUND")
        app = self._app(name)
        while app.task is not None:
            await asyncio.wait([app.task])
        if app.home is not None and app.home.node != home.node:
            raise StagingError(409, "HOME_DIFFERS")
        if app.is_known(batch) and wanted:
            return False
        await asyncio.shield(self._start(app, self._promise(app, batch, wanted, home)))
        return True

    async def _promise(self, app: App, batch: int, wanted: list[Wanted], home: Home) -> None:
        stages = await self._winners(app, batch, wanted)
        before = app.home, app.prepared
        app.home = home
        if stages:
            app.prepared = batch
        try:
            if stages or app.home != before[0]:
                await self._save(app, *[stage.path for stage in stages])
        except OSError:
            app.home, app.prepared = before
            raise
        finally:
            for stage in stages:
                stage.closed = False

    # ---- publishing

    async def publish(self, name: str, batch: int, wanted: list[Wanted], note: str = "") -> Published:
        """Publish these stages as the batch. Raises StagingError and OSError.

        The note is kept with it, and comes back when it is asked for again while no other batch has followed.
        """
        if name not in self.apps and any(each.messages for each in wanted):
            raise StagingError(404, "STAGE_NOT_FOUND")
        app = self._app(name)
        while app.task is not None:
            await asyncio.wait([app.task])
        if app.publication is not None:  # begun, and the disk refused: first things first
            await asyncio.shield(self._start(app, self._finish(app, app.publication)))
        if batch <= app.last:
            return Published(True, batch, app.published.get(batch), app.note if batch == app.last else "")
        # Whoever asks may go away meanwhile; the work goes on.
        return await asyncio.shield(self._start(app, self._begin(app, batch, wanted, note)))

    def _start(self, app: App, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """One piece of work for an application at a time."""

        def done(task: asyncio.Task[_T]) -> None:
            self._tasks.discard(task)
            app.task = None
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("STAGED(%s): %r", app.name, error)

        app.task = task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(done)
        return task

    async def _begin(self, app: App, batch: int, wanted: list[Wanted], note: str) -> Published:
        stages = await self._winners(app, batch, wanted)
        try:
            counts: dict[str, int] = {}
            for stage in stages:
                for name, count in stage.topics.items():
                    counts[name] = counts.get(name, 0) + count
            await self._make_sure_of(counts)
            intent = self._intend(batch, stages, counts, note)
            app.publication = Publication(self._broker, app.batch_directory(batch), intent)
            try:
                await self._save(app, *[stage.path for stage in stages])
            except OSError:
                app.publication.release()
                app.publication = None
                raise
        finally:
            for stage in stages:
                stage.closed = False
        return await self._finish(app, app.publication)

    async def _make_sure_of(self, topics: Iterable[str]) -> None:
        """Have these topics on the disk: one that is not there after a power cut will count as deleted."""
        for name in topics:
            topic = self._broker.topic(name)
            if topic.log.new_file:
                await self._broker.syncer.sync_now(topic)

    def _intend(self, batch: int, stages: list[Stage], counts: Mapping[str, int], note: str) -> Intent:
        """Note for each topic where its log ends, and set message ids aside. Raises OSError."""
        parts = [Part(stage.partition, stage.attempt, stage.size) for stage in stages]
        intent = Intent(batch, time.time_ns(), parts, note=note)
        for name, count in counts.items():
            log = self._broker.topic(name).log
            intent.shares[name] = Share(log.end + log.pending, log.reserve_ids(count), count)
        return intent

    async def _winners(self, app: App, batch: int, wanted: list[Wanted]) -> list[Stage]:
        """The stages that are meant, by partition, closed and with as many messages as they must have."""
        found: list[Stage] = []
        try:
            for partition, attempt, messages in sorted(wanted):
                stage = app.batches.get(batch, {}).get((partition, attempt))
                if stage is None:
                    if messages:
                        raise StagingError(404, "STAGE_NOT_FOUND")
                    continue
                await self.recover(stage)
                if stage.messages != messages:
                    raise StagingError(409, "STAGE_INCOMPLETE")
                if messages:
                    stage.closed = True
                    found.append(stage)
        except BaseException:
            for stage in found:
                stage.closed = False
            raise
        return found

    async def _finish(self, app: App, publication: Publication) -> Published:
        """Bring a publication to its end, and its end to the disk."""
        await publication.run()
        batch = publication.intent.batch
        before = app.last, app.note
        app.published[batch] = publication.counts
        app.last, app.note = batch, publication.intent.note
        app.publication = None
        for old in list(app.published)[:-REMEMBERED]:
            del app.published[old]
        try:
            await self._save(app)
        except OSError:
            app.publication = publication  # all of it is stored: that much, the next try will find
            del app.published[batch]
            app.last, app.note = before
            raise
        publication.release()
        self._delete_batches(app, lambda each: each <= batch)
        return Published(False, batch, publication.counts, publication.intent.note)

    async def _resume(self, app: App, publication: Publication) -> Published:
        """Finish what a crash has interrupted, however long the disk refuses."""
        batch, what = publication.intent.batch, ("/staged", app.name)
        logger.info("STAGED(%s): going on to publish batch %d", app.name, batch)
        while True:
            try:
                await publication.find_stored()
                published = await self._finish(app, publication)
            except (OSError, stage_file.BadStage) as error:
                logger.error("STAGED(%s): batch %d: %s", app.name, batch, error)
                self._broker.unhealthy(f"batch {batch} of {app.name}: {error}", what)
                await asyncio.sleep(RESUME_AGAIN)
            else:
                self._broker.healthy(what)
                return published

    # ---- giving up

    def abort(self, name: str, batch: int, partition: int | None, attempt: str | None) -> int:
        """Let go of what was staged: of a batch, of a partition or of one attempt at it; returns how many.

        Raises StagingError when it is being published, and OSError.
        """
        app = self.apps.get(name)
        if app is None:
            return 0
        if app.publication is not None and app.publication.intent.batch == batch:
            raise StagingError(409, "BATCH_PUBLISHING")
        stages = app.batches.get(batch, {})
        gone = [
            stage
            for stage in stages.values()
            if partition in (None, stage.partition) and attempt in (None, stage.attempt)
        ]
        if any(stage.closed for stage in gone):
            raise StagingError(409, "BATCH_PUBLISHING")
        if len(gone) == len(stages):
            self._delete_batches(app, lambda each: each == batch)
        else:
            for stage in gone:
                del stages[stage.partition, stage.attempt]
                self._count(-1, -stage.size)
                self._delete(stage.path)
        return len(gone)

    def sweep(self, now: float) -> None:
        """Let go of batches that nobody has touched for long, and of applications. Called now and then."""
        options = self._broker.options
        for app in list(self.apps.values()):
            if app.task is not None or app.publication is not None:
                continue
            try:
                for batch, stages in list(app.batches.items()):
                    touched = max((stage.touched for stage in stages.values()), default=0.0)
                    promised = batch == app.prepared
                    patience = options.staged_app_timeout if promised else options.staged_timeout
                    if now - touched > patience and not any(stage.closed for stage in stages.values()):
                        logger.warning("STAGED(%s): batch %d was abandoned", app.name, batch)
                        self._delete_batches(app, lambda each, batch=batch: each == batch)  # type: ignore[misc]
                if not app.batches and now - app.touched > options.staged_app_timeout:
                    del self.apps[app.name]
                    self._delete(app.directory)
            except OSError as error:
                logger.error("what %s has staged could not be deleted: %s", app.name, error)

    # ---- telling

    def listed(self, wanted: str | None, now: float) -> Iterator[dict[str, Any]]:
        """What there is, an application at a time."""
        for app in list(self.apps.values()):
            if wanted in (None, app.name):
                yield {
                    "app": app.name,
                    "last_batch": None if app.last < 0 else app.last,
                    "publishing_batch": app.publication.intent.batch if app.publication else None,
                    "prepared_batch": app.prepared if app.prepared in app.batches else None,
                    "home": None if app.home is None else app.home._asdict(),
                    "batches": [
                        {
                            "batch": batch,
                            "stages": len(stages),
                            "bytes": sum(stage.size for stage in stages.values()),
                            "idle_seconds": max(
                                0, int(now - max((stage.touched for stage in stages.values()), default=now))
                            ),
                        }
                        for batch, stages in sorted(app.batches.items())
                    ],
                }

    async def stop(self) -> None:
        """Leave what is under way to the next start."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
