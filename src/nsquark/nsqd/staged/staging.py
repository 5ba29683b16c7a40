"""Staged publishing: what an application puts aside per batch and partition, to be published as a whole.

An application's batches are published in the order of their numbers, one at a time, and each once: a batch
that is not above the last one published is answered as known. `stage_folder` has the files, `publication`
does the publishing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from . import stage_file
from .application import App, Home, Published, Stage, StagingError, Wanted
from .publication import Intent, Part, Publication, Share
from .stage_folder import StageFolder

if TYPE_CHECKING:
    from nsquark.nsqd.broker import Broker

logger = logging.getLogger(__name__)

REMEMBERED = 64  # batches of an application whose counts are kept
SWEEP_INTERVAL = 60.0
RESUME_AGAIN = 1.0

_T = TypeVar("_T")


class Staging:
    """Decides what is staged, published and given up; `folder` has the files."""

    def __init__(self, broker: Broker, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.folder = StageFolder(broker, path, loop)
        self._apps = self.folder.apps
        self._broker = broker
        self._loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()

    def load(self) -> None:
        """Take up what there is, and go on with what was being published. Raises BadMetadata."""
        for app, intent in self.folder.load():
            app.publication = Publication(self._broker, app.batch_directory(intent.batch), intent)
            self._start(app, self._resume(app, app.publication))

    async def topics_of(self, name: str) -> set[str]:
        """Every topic that an application has staged for or published to, as far as nsqd remembers.

        Raises OSError.
        """
        app = self._apps.get(name)
        if app is None:
            return set()
        while app.unread:
            stage = app.unread[-1]
            with contextlib.suppress(FileNotFoundError):  # it was deleted since
                await self.folder.recover(stage)
            if stage in app.unread[-1:]:
                app.unread.pop()
        return app.topics

    # ---- putting

    def stage(self, name: str, batch: int, partition: int, attempt: str) -> Stage | None:
        """The stage of this attempt, new or as it is; None when the batch is published or being published.

        Raises StagingError and OSError.
        """
        app = self.folder.app(name)
        return None if app.is_known(batch) else self.folder.stage(app, batch, partition, attempt)

    def put(self, stage: Stage, seq: int, topic: str, count: int, defer_ms: int, body: bytes) -> None:
        """Add a checked MPUB body to a stage whose content is known. Raises StagingError and OSError."""
        if stage.closed:
            raise StagingError(409, "STAGE_CLOSED")
        if seq < stage.records:
            return  # it has come before, and its answer was lost
        if seq > stage.records:
            raise StagingError(409, "SEQ_GAP")
        self.folder.append(stage, topic, count, defer_ms, body)

    # ---- taking part

    async def prepare(self, name: str, batch: int, wanted: list[Wanted], home: Home) -> bool:
        """Promise to keep these stages until `home` has decided; False if the batch is published.

        Without stages, it is only written down where the home is. Raises StagingError and OSError.
        """
        if name not in self._apps and any(each.messages for each in wanted):
            raise StagingError(404, "STAGE_NOT_FOUND")
        app = self.folder.app(name)
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
                await self.folder.save(app, *stages)
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
        if name not in self._apps and any(each.messages for each in wanted):
            raise StagingError(404, "STAGE_NOT_FOUND")
        app = self.folder.app(name)
        while app.task is not None:
            await asyncio.wait([app.task])
        if app.publication is not None:  # begun, and the disk refused: first things first
            await asyncio.shield(self._start(app, self._finish(app, app.publication)))
        if batch <= app.last:
            return Published(True, batch, app.published.get(batch), app.note if batch == app.last else "")
        # The client may go away meanwhile; the work goes on.
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
                await self.folder.save(app, *stages)
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
                await self.folder.recover(stage)
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
            await self.folder.save(app)
        except OSError:
            app.publication = publication  # all of it is stored: that much, the next try will find
            del app.published[batch]
            app.last, app.note = before
            raise
        publication.release()
        self.folder.delete_batches(app, lambda each: each <= batch)
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
        """Delete the stages of a batch, of a partition or of one attempt at it; returns how many.

        Raises StagingError when it is being published, and OSError.
        """
        app = self._apps.get(name)
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
            self.folder.delete_batches(app, lambda each: each == batch)
        else:
            self.folder.delete_stages(app, batch, gone)
        return len(gone)

    def sweep(self, now: float) -> None:
        """Delete batches and applications that were not touched for long. Called now and then."""
        options = self._broker.options
        for app in list(self._apps.values()):
            if app.task is not None or app.publication is not None:
                continue
            try:
                for batch, stages in list(app.batches.items()):
                    touched = max((stage.touched for stage in stages.values()), default=0.0)
                    promised = batch == app.prepared
                    patience = options.staged_app_timeout if promised else options.staged_timeout
                    if now - touched > patience and not any(stage.closed for stage in stages.values()):
                        logger.warning("STAGED(%s): batch %d was abandoned", app.name, batch)
                        self.folder.delete_batches(app, lambda each, batch=batch: each == batch)  # type: ignore[misc]
                if not app.batches and now - app.touched > options.staged_app_timeout:
                    self.folder.forget(app)
            except OSError as error:
                logger.error("what %s has staged could not be deleted: %s", app.name, error)

    # ---- telling

    def listed(self, wanted: str | None, now: float) -> Iterator[dict[str, Any]]:
        """The applications and their batches, an application at a time."""
        for app in list(self._apps.values()):
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
        """Stop publishing. The next start goes on with it."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
