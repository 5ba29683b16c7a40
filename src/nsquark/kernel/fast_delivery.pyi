from collections.abc import Callable, Sequence
from typing import Any

from .fast import Buffer
from .fast_intake import AnswerQueue
from .fast_log import Committer, LogCursor, Records, Run, Tally

class Flight:
    first: int
    end: int
    position: int
    attempts: int
    delivered: int
    deadline: int
    published: Sequence[tuple[int, int]]
    def __init__(
        self, first: int, end: int, position: int, attempts: int, delivered: int, deadline: int
    ) -> None: ...
    def piece(self, first: int, end: int) -> Flight: ...

class Taker:
    send: Callable[[Buffer], None]
    outlet: Outlet | None
    answers: AnswerQueue | None
    msg_timeout_ns: int
    sample_rate: int
    ready_count: int
    in_flight_count: int
    message_count: int
    finish_count: int
    requeue_count: int
    writable: bool
    flights: list[Flight]
    next_deadline: int
    def __init__(
        self,
        send: Callable[[Buffer], None],
        answers: AnswerQueue | None,
        msg_timeout_ns: int,
        sample_rate: int,
    ) -> None: ...
    @property
    def free(self) -> int: ...
    def add(self, flight: Flight) -> None: ...
    def put(self, frames: Buffer, alone: bool) -> None: ...

class Outlet:
    topic: Committer
    cursor: LogCursor
    delivery_times: Tally
    journal: Records | None
    again: Any
    skipped: Any
    latency: Any
    deliveries: list[tuple[int, int, Any]] | None
    ready: dict[Any, None]
    number: int
    max_run_bytes: int
    max_runs: int
    in_flight_count: int
    paused: bool
    exiting: bool
    unreadable: bool
    bounded: bool
    listed: bool
    def __init__(self, topic: Committer, number: int, times: Tally, max_run_bytes: int) -> None: ...
    def deliver_rest(self, now: int, monotonic: int) -> None: ...
    def not_sent(self, run: Run, attempts: int) -> None: ...
    def drop_excess(self) -> None: ...
    def finish_pieces(self, consumer: Any, first: int, end: int) -> list[int]: ...
    def deliver(self, now: int, monotonic: int) -> None: ...
    def offer(self, consumer: Any) -> bool: ...
    def take_off(
        self, consumer: Any, run: Run, frames: Buffer, attempts: int, monotonic: int, alone: bool = False
    ) -> None: ...
    def finish(self, consumer: Any, first: int, end: int) -> list[int]: ...
    def finish_read(self, consumer: Any, data: Buffer, end: int) -> int: ...
    def finished(self, start: int, end: int) -> None: ...
    def landed(self, consumer: Any, number: int) -> None: ...
