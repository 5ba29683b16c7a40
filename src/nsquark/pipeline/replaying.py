"""A replay under way: rows in their order go out in slices, and a file knows how far that is.

A slice is published before the file says so. If the process dies in between, an nsqd of nsquark knows the
slice by its number and tells how many messages it had; those are passed over. Any other gets the slice again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from nsquark.flags import StartError
from nsquark.spark.sink.application import Application
from nsquark.spark.sink.nsqds import find_tcp_addresses
from nsquark.spark.sink.options import SinkOptions
from nsquark.spark.sink.publisher import Publisher
from nsquark.spark.sink.rows import split_by_topic

from . import durable
from .delivery import new_app
from .pacing import Pace

# Messages that are due within this time of each other go out together.
TICK: Final = 0.05
_SLICE_ROWS: Final = 5000
_SLICE_BYTES: Final = 4 << 20


class Message(NamedTuple):
    """A row of a replay; they are ordered by all but the value."""

    timestamp: datetime
    topic: str
    nsqd: str
    offset: int
    value: bytes


@dataclass
class State:
    """How far a replay is."""

    app: str
    slice: int = 0  # the next one
    messages: int = 0
    last: list[Any] | None = None  # the last message that went out: ISO time, topic, nsqd, offset
    passed_over: int = 0  # how many after that have gone out, too

    @classmethod
    def load(cls, checkpoint: Path) -> State:
        """As the file says; new if there is none. Raises StartError."""
        path = checkpoint / "replay.json"
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            state = cls(new_app())
            durable.make_folder(checkpoint)
            state.save(checkpoint)
            return state
        except (ValueError, TypeError) as error:
            raise StartError(f"--checkpoint: {str(path)!r} cannot be read: {error}") from None

    def save(self, checkpoint: Path) -> None:
        durable.replace_text(checkpoint / "replay.json", json.dumps(asdict(self)))


class Outlet(Protocol):
    def send(self, number: int, messages: Sequence[Message]) -> int:
        """Publish slice `number`; how many messages it has, which was perhaps decided long ago."""
        ...


class ExactOutlet:
    """To nsqds of nsquark, each slice to one of them."""

    def __init__(self, options: SinkOptions, app: str) -> None:
        self._options = options
        self._application = Application(options, app)

    def send(self, number: int, messages: Sequence[Message]) -> int:
        attempt = self._application.begin_attempt(number, 0)
        if not attempt.batch_is_known:
            for rows in split_by_topic(_as_batch(messages), self._options.topic):
                for body, count in rows.pack_mpubs(b"", self._options.body_bytes):
                    attempt.put(rows.topic, 0, body, count)
        return self._application.commit(number, [attempt.part]).messages


class PlainOutlet:
    """To any nsqds."""

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


class Replaying:
    """Sends rows when they are due."""

    def __init__(
        self,
        outlet: Outlet,
        pace: Pace,
        state: State,
        checkpoint: Path | None,
        wait: Callable[[float], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wait` sleeps, and tells whether to stop."""
        self._outlet = outlet
        self._pace = pace
        self._state = state
        self._checkpoint = checkpoint
        self._wait = wait
        self._clock = clock
        self._held: list[Message] = []
        self._held_bytes = 0

    def run(self, messages: Iterator[Message], told: Callable[[State], None] = lambda state: None) -> None:
        """All of them, or until a stop; `told` hears of every slice."""
        for message in messages:
            if self._state.passed_over:
                self._state.passed_over -= 1
                self._state.last = _key(message)
                continue
            now = self._clock()
            pause = self._pace.due(message.timestamp.timestamp(), now) - now
            if pause > TICK or len(self._held) >= _SLICE_ROWS or self._held_bytes >= _SLICE_BYTES:
                self._send(told)
                if self._wait(max(0.0, pause)):
                    return
            self._held.append(message)
            self._held_bytes += len(message.value)
        while self._held:
            self._send(told)
        self._save()

    def _send(self, told: Callable[[State], None]) -> None:
        if not self._held:
            return
        state = self._state
        sent = self._outlet.send(state.slice, self._held)
        gone = self._held[:sent]
        del self._held[:sent]
        self._held_bytes = sum(len(each.value) for each in self._held)
        state.slice += 1
        state.messages += sent
        state.passed_over = sent - len(gone)
        state.last = _key(gone[-1])
        self._save()
        told(state)

    def _save(self) -> None:
        if self._checkpoint is not None:
            self._state.save(self._checkpoint)


def _key(message: Message) -> list[Any]:
    return [message.timestamp.isoformat(), message.topic, message.nsqd, message.offset]
