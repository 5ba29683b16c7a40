"""The writers that Spark gets: record batches in, on the executors; commit and abort, on the driver.

At least once, rows are published as they come, and a commit has nothing to do. Exactly once, tasks stage
their rows and the commit publishes what the successful ones have staged; whoever failed or was too slow has
staged for nothing. How that is once over several nsqds is told in `application`.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from nsquark.errors import NsquarkError

from ..errors import OptionError, in_one_line
from .application import Application
from .nsqds import find_tcp
from .options import SinkOptions
from .publisher import Publisher
from .rows import by_defer, runs
from .staging_client import Attempt, Staged

logger = logging.getLogger(__name__)

BATCH_ID, QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    staged: Staged | None = None


class _Writer:
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._app = options.app
        self._batch: int | None = options.version

    def _application(self, app: str) -> Application:
        raise NotImplementedError

    @in_one_line
    def write(self, iterator: Iterator[Any]) -> Written:
        context = TaskContext.get()
        assert context is not None
        if self._options.exactly_once:
            return Written(self._stage(iterator, context))
        self._publish(iterator, context.partitionId())
        return Written()

    def _publish(self, iterator: Iterator[Any], partition: int) -> None:
        options = self._options
        publisher: Publisher | None = None
        with contextlib.ExitStack() as stack:
            for batch in iterator:
                if publisher is None:  # a task without rows needs none
                    nsqds = find_tcp(options.addresses)
                    publisher = stack.enter_context(Publisher(nsqds, options, partition))
                for run in runs(batch, options.topic):
                    if run.defers is not None:
                        for commands, number in run.dpubs(options.body_bytes):
                            publisher.publish(commands, number)
                    else:
                        head = b"MPUB %b\n" % run.topic.encode()
                        for command, _ in run.mpubs(head, options.body_bytes):
                            publisher.publish(command, 1)

    def _stage(self, iterator: Iterator[Any], context: TaskContext) -> Staged:
        options = self._options
        app = self._app or context.getLocalProperty(QUERY_ID)
        number = self._batch if self._batch is not None else context.getLocalProperty(BATCH_ID)
        if not app or number is None:
            raise OptionError("txnAppId", "missing, and Spark does not say which query this is")
        attempt: Attempt | None = None
        for batch in iterator:
            if attempt is None:  # a task without rows needs none
                attempt = self._application(app).attempt(int(number), context.partitionId())
            if attempt.known:
                continue  # Spark wants its rows read
            for run in runs(batch, options.topic):
                for defer_ms, part in by_defer(run):
                    for body, messages in part.mpubs(b"", options.body_bytes):
                        attempt.put(run.topic, defer_ms, body, messages)
        if attempt is None:
            return Staged(app, int(number), context.partitionId(), "", 0)
        return attempt.staged

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = _staged(messages)
        if staged:
            app, batch = staged[0].app, staged[0].batch
            if self._application(app).commit(batch, staged).known:
                logger.info("batch %d of %s was published before", batch, app)

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What is left behind expires: that it cannot be deleted now is no reason to fail."""
        staged = _staged(messages)
        if staged:
            try:
                self._application(staged[0].app).abort(staged[0].batch, staged)
            except NsquarkError as error:
                logger.warning("what was staged could not be dropped: %s", error)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [each.staged for each in messages if isinstance(each, Written) and each.staged is not None]


class NsqBatchWriter(_Writer, DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, overwrite: bool) -> None:
        super().__init__(options)
        if overwrite:
            raise OptionError("mode", "a topic can be appended to, and not overwritten")
        if options.exactly_once:
            # Without a name, it is an application of this one job: tasks may be repeated, the job may not.
            self._app = self._app or f"job-{uuid.uuid4().hex}"
            if self._batch is None:
                if options.app:
                    raise OptionError(
                        "txnVersion", "missing: a number that grows with each write of 'txnAppId'"
                    )
                self._batch = 0
            self._application(self._app).check()

    def _application(self, app: str) -> Application:
        return Application(self._options, app, lasting=bool(self._options.app))

    @in_one_line
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages)

    @in_one_line
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class NsqStreamWriter(_Writer, DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options)
        if options.version is not None:
            raise OptionError("txnVersion", "not for a stream, whose batches have numbers")
        if options.exactly_once:
            self._application("-").check()

    def _application(self, app: str) -> Application:
        return Application(self._options, app, begins=bool(self._options.app))

    @in_one_line
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages)

    @in_one_line
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages)
