"""A replay: messages in order of time are published in slices, and a file keeps how far the replay is.

A slice is published before the file is written. If the process dies in between, nsquark's nsqd knows the
slice by its number and tells how many messages it had, and the replay skips so many. A stock nsqd gets the
slice twice.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from nsquark.cli.flags import StartError
from nsquark.spark.sink.application import Application
from nsquark.spark.sink.nsqds import find_tcp_addresses
from nsquark.spark.sink.options import SinkOptions
from nsquark.spark.sink.publisher import Publisher
from nsquark.spark.sink.rows import split_by_topic

from . import durable
from .delivery import new_app_name
from .pacing import Pace

# A slice holds the messages that are due within this time.
_SLICE_SECONDS: Final = 0.05
_SLICE_ROWS: Final = 5000
_SLICE_BYTES: Final = 4 << 20


class Message(NamedTuple):
    """A row of a replay. Rows are ordered by all fields but the value."""

    timestamp: datetime
    topic: str
    nsqd: str
    offset: int
    value: bytes


@dataclass
class ReplayState:
    """How far a replay is, as the file `replay.json` keeps it."""

    app: str
    slice: int = 0  # the next one
    messages: int = 0
    last: list[Any] | None = None  # the last message published: ISO time, topic, nsqd, offset
    passed_over: int = 0  # how many messages behind it are published, too

    @classmethod
    def load(cls, checkpoint: Path) -> ReplayState:
        """The state in the file, or a new state if there is none. Raises StartError."""
        path = checkpoint / "replay.json"
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            state = cls(new_app_name())
            durable.make_folder(checkpoint)
            state.save(checkpoint)
            return state
        except (ValueError, TypeError) as error:
            raise StartError(f"--checkpoint: {str(path)!r} cannot be read: {error}") from None

    def save(self, checkpoint: Path) -> None:
        durable.replace_text(checkpoint / "replay.json", json.dumps(asdict(self)))


class SlicePublisher(Protocol):
    def send(self, number: int, messages: Sequence[Message]) -> int:
        """Publish a slice; how many messages it has. It may differ if an earlier run published the slice."""
        ...


class ExactlyOncePublisher:
    """Publishes to nsquark's nsqds, each slice to one of them."""

    def __init__(self, options: SinkOptions, app: str) -> None:
        self._options = options
        self._application = Application(options, app)

    def send(self, number: int, messages: Sequence[Message]) -> int:
        with contextlib.closing(self._application.begin_attempt(number, 0)) as attempt:
            if not attempt.batch_is_known:
                for rows in split_by_topic(_as_batch(messages), self._options.topic):
                    for body, count in rows.pack_mpubs(b"", self._options.body_bytes):
                        attempt.put(rows.topic, 0, body, count)
            part = attempt.finish()
        return self._application.commit(number, [part]).messages


class AtLeastOncePublisher:
    """Publishes to any nsqds."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._nsqds = find_tcp_addresses(options.addresses)

    def send(self, number: int, messages: Sequence[Message]) -> int:
        with Publisher(self._nsqds, self._options, number) as publisher:
            for rows in split_by_topic(_as_batch(messages), self._options.topic):
                head = b"MPUB %b\n" % rows.topic.encode()
                for command, _ in rows.pack_mpubs(head, self._options.body_bytes):
                    publisher.publish(command, 1)
        return len(messages)


def _as_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "value": pa.array([each.value for each in messages], pa.binary()),
            "topic": pa.array([each.topic for each in messages], pa.string()),
        }
    )


class Replayer:
    """Publishes messages when they are due."""

    def __init__(
        self,
        publisher: SlicePublisher,
        pace: Pace,
        state: ReplayState,
        checkpoint: Path | None,
        wait: Callable[[float], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wait` sleeps for so many seconds, and returns whether to stop."""
        self._publisher = publisher
        self._pace = pace
        self._state = state
        self._checkpoint = checkpoint
        self._wait = wait
        self._clock = clock
        self._slice: list[Message] = []
        self._slice_bytes = 0

    def run(
        self, messages: Iterator[Message], report: Callable[[ReplayState], None] = lambda state: None
    ) -> None:
        """Publish all messages, or until a stop; calls `report` after every slice."""
        for message in messages:
            if self._state.passed_over:
                self._state.passed_over -= 1
                self._state.last = _key(message)
                continue
            now = self._clock()
            pause = self._pace.due(message.timestamp.timestamp(), now) - now
            if pause > _SLICE_SECONDS or len(self._slice) >= _SLICE_ROWS or self._slice_bytes >= _SLICE_BYTES:
                self._send(report)
                if self._wait(max(0.0, pause)):
                    return
            self._slice.append(message)
            self._slice_bytes += len(message.value)
        while self._slice:
            self._send(report)
        self._save()

    def _send(self, report: Callable[[ReplayState], None]) -> None:
        if not self._slice:
            return
        state = self._state
        sent = self._publisher.send(state.slice, self._slice)
        published = self._slice[:sent]
        del self._slice[:sent]
        self._slice_bytes = sum(len(each.value) for each in self._slice)
        state.slice += 1
        state.messages += sent
        state.passed_over = sent - len(published)
        state.last = _key(published[-1])
        self._save()
        report(state)

    def _save(self) -> None:
        if self._checkpoint is not None:
            self._state.save(self._checkpoint)


def _key(message: Message) -> list[Any]:
    return [message.timestamp.isoformat(), message.topic, message.nsqd, message.offset]
