"""Reading a topic's log from one nsqd over HTTP, by position, without disturbing any channel.

    reader = LogReader("127.0.0.1:4151", "orders")
    start = await reader.find(parse_place("10m"))
    async for run in reader.runs(start):
        for message in run:
            print(message.position, message.body)

`/log/range` says where the log begins and ends and what lies at a time, `/log/read` sends batches as they lie
on disk. Their CRCs are checked here. In memory there is one answer, of about `max_bytes`, and one run of it.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from nsquark import kernel
from nsquark.errors import ConnectionLost, NsquarkError
from nsquark.http.client.protocol import BadStatus, ClientResponse, nsq_headers, parse_json
from nsquark.http.client.single_request import ask
from nsquark.kernel import Delivery
from nsquark.wire import log_answer

from .log_place import EARLIEST, Place

# What one answer may hold, unless its only batch is larger; and the most that a run hands over.
MAX_BYTES: Final = 4 << 20
RUN_MESSAGES: Final = 1000
_LARGEST_ANSWER: Final = 300 << 20  # nsqd's largest read, and its index
_LONGEST_WAIT: Final = 30.0


class LogError(NsquarkError):
    """The log cannot be read; the text is one line that names the topic and the nsqd."""


class NoLog(LogError):
    """This daemon has no log to be read: it is Go's nsqd, or it is no nsqd."""


class TopicNotFound(LogError):
    """This nsqd has no such topic."""


class LogChanged(LogError):
    """The topic was deleted and created again: positions mean other messages now."""


class PositionGone(LogError):
    """The messages [start, end) are not in the log any more, or were lost to damage."""

    def __init__(self, text: str, start: int, end: int) -> None:
        super().__init__(text)
        self.start = start
        self.end = end


class LogMessage(Delivery):
    """A message of a log. `attempts` is 1, since a log holds what is sent at a first delivery.

    `due_ns` is when a deferred message may be delivered, ns since the epoch; 0 for all others.
    """

    __slots__ = ("due_ns", "position")

    position: int
    due_ns: int


@dataclass(frozen=True, slots=True)
class LogRange:
    """Where a log begins and ends. `position` is that of the time asked for, if there was one."""

    node: str
    topic: str
    epoch: str
    first: int
    next: int
    synced: int
    bytes: int
    position: int | None = None


class LogReader:
    """The log of one topic at one nsqd. The first answer fixes the epoch; another log then is LogChanged.

    `address` is host:port or a URL. `secret` goes with each request as a bearer token. Every method raises
    LogError, ConnectFailed, ConnectionLost, or BadStatus for what nsqd refuses for other reasons.
    """

    def __init__(
        self,
        address: str,
        topic: str,
        *,
        epoch: str | None = None,
        timeout: float = 30.0,
        connect_timeout: float = 5.0,
        tls: ssl.SSLContext | None = None,
        secret: str | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.address = address
        self.topic = topic
        self.epoch = epoch
        self._base = (address if "://" in address else f"http://{address}").rstrip("/")
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._tls = tls
        self._headers = nsq_headers(secret)
        self._max_bytes = max_bytes

    async def range(
        self, *, time_ns: int | None = None, beyond: int | None = None, wait: float = 0.0
    ) -> LogRange:
        """Where the log begins and ends, and with `time_ns` the position of the first message since then.

        With `wait` the answer comes when there is something behind the position `beyond`, or after so many
        seconds (30 at the most).
        """
        wait = min(wait, _LONGEST_WAIT)
        response = await self._ask(
            "/log/range",
            wait,
            **({} if time_ns is None else {"timestamp_ms": time_ns // 1_000_000}),
            **({"wait_ms": int(wait * 1000)} if wait > 0 else {}),
            **({} if beyond is None else {"from": beyond}),
        )
        document = parse_json(self._base + "/log/range", response.body)
        try:
            found = LogRange(**{name: document[name] for name in LogRange.__slots__ if name in document})
        except (TypeError, KeyError):
            raise ConnectionLost(f"{self._base}/log/range: not an answer of nsqd") from None
        self.epoch = found.epoch
        return found

    async def find(self, place: Place) -> int:
        """The position of a place. One that lies outside the log is returned as it was given."""
        if place.position is not None:
            return place.position
        bounds = await self.range(time_ns=place.time_ns)
        if place.time_ns is not None and bounds.position is not None:
            return max(bounds.position, bounds.first)
        return bounds.first if place == EARLIEST else bounds.next

    async def runs(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        follow: bool = False,
        lost: Callable[[int, int], None] | None = None,
    ) -> AsyncIterator[list[LogMessage]]:
        """The messages [start, end) in order, in runs of at most a thousand and about `max_bytes`.

        Without `start` from the first one on, and up to what there is now. With `follow` it waits for more,
        without an `end` for ever. Messages that are gone raise PositionGone. With `lost`, that is called with
        the positions [start, end) that are not there, and reading goes on behind them.
        """
        bounds = await self.range()
        position = bounds.first if start is None else start
        if position > bounds.next:
            raise self._not_reached(position, bounds.next)
        if not follow:
            end = bounds.next if end is None else min(end, bounds.next)
        while end is None or position < end:
            if position >= bounds.next:
                bounds = await self.range(beyond=position, wait=_LONGEST_WAIT)
                continue
            try:
                answer = await self._read(position, end)
            except PositionGone as gone:
                if lost is None:
                    raise
                lost(position, gone.end if end is None else min(gone.end, end))
                position = gone.end
                continue
            for run in self._decode(answer, position):
                position = run[-1].position + 1
                yield run

    async def _read(self, start: int, end: int | None) -> bytes:
        query: dict[str, object] = {"from": start, "max_bytes": self._max_bytes}
        if end is not None:
            query["to"] = end
        return (await self._ask("/log/read", 0.0, **query)).body

    async def _ask(self, path: str, patience: float, **query: object) -> ClientResponse:
        given = {"topic": self.topic, **query, **({"epoch": self.epoch} if self.epoch else {})}
        target = f"{path}?{urlencode(given)}"
        try:
            url, response = await ask(
                "GET",
                self._base + target,
                headers=self._headers,
                timeout=self._timeout + patience,
                connect_timeout=self._connect_timeout,
                tls=lambda: self._tls,
                max_body=_LARGEST_ANSWER,
            )
        except BadStatus as error:
            raise self._explain(error) from None
        self._base = url.removesuffix(target)  # nsqd may have sent us to its https port
        return response

    def _explain(self, error: BadStatus) -> NsquarkError:
        where = f"topic {self.topic!r} at {self.address}"
        details = error.details
        match error.message:
            case "TOPIC_NOT_FOUND":
                return TopicNotFound(f"nsqd {self.address} has no topic {self.topic!r}")
            case "EPOCH_CHANGED":
                return LogChanged(f"{where} was deleted and created again meanwhile")
            case "POSITION_GONE":
                start = _number(details, "position", 0)
                # An ephemeral topic forgets what is in the middle, and cannot tell where it goes on.
                ends = (_number(details, name, 0) for name in ("following", "first", "next"))
                end = next((end for end in ends if end > start), start + 1)
                return PositionGone(f"{where}: the positions from {start} to {end - 1} are gone", start, end)
            case "POSITION_NOT_REACHED":
                return self._not_reached(_number(details, "position", 0), _number(details, "next", 0))
            case "LOG_UNREADABLE":
                return LogError(f"{where}: the log cannot be read; nsqd's own log says why")
        if error.status == 404:
            return NoLog(
                f"{self.address} has no log to read (no /log routes): it is not an nsqd of nsquark;"
                " Go's nsqd keeps no messages that were delivered"
            )
        return error

    def _not_reached(self, position: int, following: int) -> LogError:
        return LogError(
            f"topic {self.topic!r} at {self.address} has not reached position {position}:"
            f" the next message will be at {following}"
        )

    def _decode(self, answer: bytes, position: int) -> Iterator[list[LogMessage]]:
        """The messages of an answer, run by run. Raises ConnectionLost for one that is no answer of nsqd."""
        bad = ConnectionLost(f"{self._base}/log/read: not an answer of nsqd")
        try:
            count, first, _, length = log_answer.parse_head(answer)
        except log_answer.NoLogAnswer:
            raise bad from None
        batches, index = memoryview(answer)[log_answer.SIZE :], log_answer.SIZE + length
        if first != position or not count or len(answer) != index + 4 * count:
            raise bad
        stop, _, marks, _ = kernel.scan_batches(batches, 0, length, True, 1)
        if stop != length:
            raise ConnectionLost(f"{self._base}/log/read: a batch with a wrong checksum behind {position}")

        def offset(message: int) -> int:
            return int.from_bytes(answer[index + 4 * message : index + 4 * message + 4], "big")

        for at, size, number, begin, _, _, due in marks:
            behind = min(begin + number, first + count)
            if begin > position or behind <= position:
                raise bad
            while position < behind:
                until = min(position + RUN_MESSAGES, behind)
                last = offset(until - 1 - first)
                end = last + 4 + int.from_bytes(batches[last : last + 4], "big")
                if end > at + size:
                    raise bad
                _, run = kernel.read_messages(
                    batches, offset(position - first), end, LogMessage, self.address, 0.0
                )
                if len(run) != until - position:
                    raise bad
                for number_in_run, message in enumerate(run):
                    message.position = position + number_in_run
                    message.due_ns = due
                    message.answered = True  # no nsqd waits for an answer
                position = until
                yield run
        if position != first + count:
            raise bad


def _number(details: dict[str, Any], name: str, default: int) -> int:
    value = details.get(name)
    return value if type(value) is int else default
