from collections import deque
from collections.abc import Callable
from typing import Any

from .fast import BatchWriter, Buffer
from .pure_intake import Receipt

class AnswerQueue:
    queue: deque[Any]
    transport: Any
    ended: bool
    closed: bool
    fd: int
    def __init__(self, *args: object) -> None: ...
    def refuse(self, answer: Answer, reason: str) -> None: ...
    def flush(self) -> None: ...

class Answer:
    data: bytes
    last: bool
    def __init__(self, answers: AnswerQueue, error: Any, count: int) -> None: ...
    @property
    def answers(self) -> AnswerQueue: ...
    @property
    def error(self) -> Any: ...
    @property
    def count(self) -> int: ...
    def settle(self, reason: str | None) -> None: ...

def settle_all(receipts: list[Receipt]) -> None: ...

class Intake:
    receipts: list[Receipt]
    since: int
    consumers: int
    open: bool
    def __init__(
        self,
        writer: BatchWriter,
        published: Callable[[], object],
        commit: Callable[[], object],
        large: int,
        too_much: int,
    ) -> None: ...
    def added(self, receipt: Receipt, size: int, now: int) -> None: ...

class Source:
    taken: int
    heard: int
    def __init__(self, answers: AnswerQueue, max_msg_size: int, max_body_size: int) -> None: ...
    @property
    def following(self) -> bool: ...
    def follow(self, intake: Intake, line: bytes, error: Any) -> None: ...
    @property
    def kept(self) -> bytes: ...
    def forget(self) -> bytes: ...
    def take(self, data: Buffer, start: int, end: int, now: int) -> int: ...
