"""The writers that Spark uses: `write` runs on the executors, `commit` and `abort` run on the driver.

At least once, tasks publish their rows at once, and a commit has nothing to do. Exactly once, tasks stage
their rows, and the commit publishes what the successful tasks have staged. The rows of a task that failed or
came too late are never published. `application` tells how this is exactly once over several nsqds.
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

from ..errors import OptionError, without_traceback
from .application import Application
from .nsqds import find_tcp_addresses
from .options import SinkOptions
from .publisher import Publisher
from .rows import split_by_delay, split_by_topic
from .staging_client import StagedPart, TaskAttempt

logger = logging.getLogger(__name__)

# Properties of a task that Spark sets for streaming queries.
BATCH_ID, QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"


@dataclass
class TaskResult(WriterCommitMessage):
    """What a task tells the driver."""

    part: StagedPart | None = None


class _Writer:
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._app = options.app
        self._batch: int | None = options.version

    def _application(self, app: str) -> Application:
        raise NotImplementedError

    @without_traceback
    def write(self, iterator: Iterator[Any]) -> TaskResult:
        context = TaskContext.get()
        assert context is not None
        if self._options.exactly_once:
            return TaskResult(self._stage(iterator, context))
        self._publish(iterator, context.partitionId())
        return TaskResult()

    def _publish(self, iterator: Iterator[Any], partition: int) -> None:
        options = self._options
        publisher: Publisher | None = None
        with contextlib.ExitStack() as stack:
            for batch in iterator:
                if publisher is None:  # a task without rows needs none
                    nsqds = find_tcp_addresses(options.addresses)
                    publisher = stack.enter_context(Publisher(nsqds, options, partition))
                for rows in split_by_topic(batch, options.topic, options.default_topic):
                    if rows.defers is not None:
                        for commands, count in rows.pack_dpubs(options.body_bytes):
                            publisher.publish(commands, count)
                    else:
                        head = b"MPUB %b\n" % rows.topic.encode()
                        for command, _ in rows.pack_mpubs(head, options.body_bytes):
                            publisher.publish(command, 1)

    def _stage(self, iterator: Iterator[Any], context: TaskContext) -> StagedPart:
        options = self._options
        app = self._app or context.getLocalProperty(QUERY_ID)
        number = self._batch if self._batch is not None else context.getLocalProperty(BATCH_ID)
        if not app or number is None:
            raise OptionError("txnAppId", "missing, and Spark does not say which query this is")
        attempt: TaskAttempt | None = None
        with contextlib.ExitStack() as stack:
            for batch in iterator:
                if attempt is None:  # a task without rows needs none
                    attempt = self._application(app).begin_attempt(int(number), context.partitionId())
                    stack.callback(attempt.close)
                if attempt.batch_is_known:
                    continue  # a writer must read all rows that Spark sends
                for rows in split_by_topic(batch, options.topic, options.default_topic):
                    for defer_ms, same_delay in split_by_delay(rows):
                        for body, messages in same_delay.pack_mpubs(b"", options.body_bytes):
                            attempt.put(rows.topic, defer_ms, body, messages)
            if attempt is None:
                return StagedPart(app, int(number), context.partitionId(), "", 0)
            return attempt.finish()

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        parts = _parts(messages)
        if parts:
            app, batch = parts[0].app, parts[0].batch
            if self._application(app).commit(batch, parts).known:
                logger.info("batch %d of %s was published before", batch, app)

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop what was staged. A failure is only logged, since nsqd drops it after a timeout anyway."""
        parts = _parts(messages)
        if parts:
            try:
                self._application(parts[0].app).abort(parts[0].batch, parts)
            except NsquarkError as error:
                logger.warning("what was staged could not be dropped: %s", error)


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[StagedPart]:
    return [each.part for each in messages if isinstance(each, TaskResult) and each.part is not None]


class NsqBatchWriter(_Writer, DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, overwrite: bool) -> None:
        super().__init__(options)
        if overwrite:
            raise OptionError("mode", "a topic can be appended to, and not overwritten")
        if options.exactly_once:
            # Without a name, the job is an application of its own: its tasks may be repeated, but a second
            # job is a second write.
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

    @without_traceback
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages)

    @without_traceback
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
        # Without a name, the application is the query, whose batches begin with 0.
        return Application(self._options, app, may_begin=bool(self._options.app))

    @without_traceback
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages)

    @without_traceback
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages)
