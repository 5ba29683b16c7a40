"""`Producer`: publishing to one nsqd, to several by one of NSQ's ways to choose, or to a replica group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from nsquark.errors import PendingFull, UsageError
from nsquark.wire.commands import MAX_DELAY_MS, body_bytes, line, pack_many, pack_size, split_bodies

from ..addresses import Addresses, as_addresses
from ..config import DEFAULT_CONFIG, Config, milliseconds
from ..events import EventHook
from .group import GroupPublisher
from .nsqd_publisher import NsqdPublisher
from .nsqd_publishers import NsqdPublishers
from .pool import Mode
from .size_limits import LARGEST, Body

logger = logging.getLogger(__name__)

_MOST_LINES = 1000  # topics whose command lines are remembered


class Producer:
    """Publishes messages. `async with` closes it. It connects at its first use and after every loss.

    Publishes are pipelined: any number of tasks may publish at once over the one connection to each nsqd.
    With several nsqds, `mode` chooses the one that gets a message: `hostpool` (in turn, avoiding those that
    failed), `round-robin`, `epsilon-greedy` (preferring the fast ones) or `random`; with `all`, each of them
    gets it.

    With `mode="group"` the nsqds are the members of one replica group, or `group` is its name and `lookupd`
    the nsqlookupds to find it by. The producer follows the group's primary. While there is none, publishes
    wait. What was surely not stored is sent again, in order; what may be stored is not, unless
    `repeat_unknown`.

    How a publish can end:

    - it returns: the message is stored;
    - `ProtocolError`: nsqd refused the message, it is not stored;
    - `UsageError`: the producer refused the message, nothing was sent;
    - `ConnectFailed`, `PublishTimeout` with `sent=False`, `PendingFull`: the message was not sent;
    - `OutcomeUnknown`, `PublishTimeout` with `sent=True`: the message may be stored or not. Publishing it
      again may store it twice.
    """

    def __init__(
        self,
        nsqd: Addresses = (),
        *,
        mode: Mode = "hostpool",
        group: str | None = None,
        lookupd: Addresses = (),
        repeat_unknown: bool = False,
        config: Config = DEFAULT_CONFIG,
        max_pending: int = 10_000,
        on_event: EventHook | None = None,
    ) -> None:
        """At most `max_pending` publishes to an nsqd are unanswered; `publish` waits beyond that.

        A `group` needs no `mode`. With `repeat_unknown`, publishes to a group whose outcome is unknown are
        sent again within their timeout, so that they may be stored twice.
        """
        addresses = as_addresses(nsqd)
        lookupds = (lookupd,) if isinstance(lookupd, str) else tuple(lookupd)
        in_group = group is not None or mode == "group"
        if not addresses and not (lookupds and in_group):
            raise UsageError("no nsqd to publish to")
        if not in_group and (lookupds or repeat_unknown):
            raise UsageError(f"{'lookupd' if lookupds else 'repeat_unknown'} is for a replica group")
        if max_pending < 1:
            raise UsageError(f"max_pending {max_pending!r}")
        self.config = config
        self._max_pending = max_pending
        self._group: GroupPublisher | None = None
        self._only: NsqdPublisher | None = None
        self._publishers: NsqdPublishers | GroupPublisher
        if in_group:
            self._publishers = self._group = GroupPublisher(
                addresses, group, lookupds, config, max_pending, repeat_unknown, on_event
            )
        else:
            several = NsqdPublishers(addresses, mode, config, max_pending, on_event)
            self._publishers, self._only = several, several.only
        # What nsqd tells is checked when the connection is there.
        self._max_msg_size = config.max_msg_size or LARGEST
        self._max_body_size = config.max_body_size or LARGEST
        self._lines: dict[str, bytes] = {}  # topic: the line of its PUB
        self._late: set[asyncio.Future[None]] = set()  # of `publish_nowait`: not sent yet
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(10.0 if error is None else 0.0)

    # ---- publishing

    async def publish(
        self,
        topic: str,
        body: Body,
        *,
        delay: float | None = None,
        timeout: float = 10.0,
        retries: int = 0,
    ) -> None:
        """Publish a message, deliverable after `delay` seconds, and return when nsqd has stored it.

        All of it takes at most `timeout` seconds, the wait for a connection included. `retries` is how often
        to try again when the outcome is unknown or nsqd failed; with more than 0 a message may be stored
        twice. In a replica group, what nsqd could not store is tried again anyhow.
        """
        if type(body) is not bytes or not 0 < len(body) <= self._max_msg_size:
            body = body_bytes(body, self._max_msg_size)
        head = self._pub_line(topic) if delay is None else self._dpub_line(topic, delay)
        command = (head, pack_size(len(body)), body)
        answer = self._publish_at_once(command, len(body), timeout, retries)
        if answer is not None:
            await answer
        else:
            await self._several.publish(command, timeout, retries)

    async def publish_many(
        self,
        topic: str,
        bodies: Sequence[Body],
        *,
        timeout: float = 10.0,
        retries: int = 0,
        split: bool = False,
    ) -> None:
        """Publish messages with one MPUB: all are stored, or none.

        More than fits into one is a UsageError, or with `split` several MPUBs, one after the other.
        """
        head = self._mpub_line(topic)
        self._check_open()
        runs = split_bodies(bodies, await self._publishers.split_size(timeout)) if split else [bodies]
        for run in runs:
            command = pack_many(head, run, self._max_msg_size, self._max_body_size)
            answer = self._publish_at_once((command,), len(command), timeout, retries, run)
            if answer is not None:
                await answer
            else:
                await self._several.publish((command,), timeout, retries, run)

    def publish_many_nowait(
        self, topic: str, bodies: Sequence[Body], *, timeout: float = 10.0
    ) -> asyncio.Future[None]:
        """`publish_many` without waiting, as `publish_nowait`."""
        command = pack_many(self._mpub_line(topic), bodies, self._max_msg_size, self._max_body_size)
        return self._send_nowait((command,), len(command), timeout, bodies)

    def publish_nowait(self, topic: str, body: Body, *, timeout: float = 10.0) -> asyncio.Future[None]:
        """Publish a message without waiting: the future is done when nsqd has stored it, or fails.

        Raises PendingFull when `max_pending` are unanswered: await some of the futures, or use `publish`.
        """
        body = body_bytes(body, self._max_msg_size)
        return self._send_nowait((self._pub_line(topic), pack_size(len(body)), body), len(body), timeout)

    def _send_nowait(
        self, command: Sequence[bytes], size: int, timeout: float, bodies: Sequence[Body] | None = None
    ) -> asyncio.Future[None]:
        self._check_open()
        if self._group is not None:
            return self._group.publish_nowait(command, size, timeout, bodies)  # type: ignore[return-value]
        publisher = self._only
        if publisher is not None:
            connection = publisher.connection
            if connection is not None and connection.open:
                if connection.unanswered >= self._max_pending:
                    raise PendingFull(f"{self._max_pending} publishes are unanswered")
                if size > publisher.limits.unchecked:
                    publisher.limits.check(publisher.address, command, bodies)
                deadline = connection.loop.time() + timeout
                return publisher.ask(connection, command, size, deadline)  # type: ignore[return-value]
        if len(self._late) >= self._max_pending:
            raise PendingFull(f"{self._max_pending} publishes are not sent yet")
        task = asyncio.ensure_future(self._several.publish(command, timeout, 0, bodies))
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        return task

    @property
    def _several(self) -> NsqdPublishers:
        assert isinstance(self._publishers, NsqdPublishers)
        return self._publishers

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the producer is closed")

    def _pub_line(self, topic: str) -> bytes:
        head = self._lines.get(topic)
        if head is None:
            head = line("PUB", topic)
            if len(self._lines) < _MOST_LINES:
                self._lines[topic] = head
        return head

    def _mpub_line(self, topic: str) -> bytes:
        return b"M" + self._pub_line(topic)

    def _dpub_line(self, topic: str, delay: float) -> bytes:
        delay_ms = milliseconds(delay)
        if not 0 <= delay_ms <= MAX_DELAY_MS:
            raise UsageError(f"a delay of {delay!r} s; it takes 0 to {MAX_DELAY_MS // 1000}")
        return line("DPUB", topic, delay_ms)

    def _publish_at_once(
        self,
        command: Sequence[bytes],
        size: int,
        timeout: float,
        retries: int,
        bodies: Sequence[Body] | None = None,
    ) -> asyncio.Future[bytes] | None:
        """Publish without a task: to a group, or if there is one nsqd, connected, with room for more.

        Returns None otherwise, and for retries at an nsqd.
        """
        self._check_open()
        publisher = self._only
        if self._group is not None:
            return self._group.publish(command, size, timeout, retries, bodies)
        if publisher is None or retries:
            return None
        connection = publisher.connection
        if connection is None or not connection.open or connection.write_resumed is not None:
            return None
        if connection.unanswered >= self._max_pending:
            return None
        if size > publisher.limits.unchecked:
            publisher.limits.check(publisher.address, command, bodies)
        return publisher.ask(connection, command, size, connection.loop.time() + timeout)

    # ---- the rest

    async def ping(self, timeout: float = 10.0) -> None:
        """Return when connected: with one nsqd of several, or with each if `all` are published to.

        Raises ConnectFailed.
        """
        self._check_open()
        await self._publishers.ping(timeout)

    async def flush(self, timeout: float | None = None) -> None:
        """Return when no publish is under way any more, whatever its outcome. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while pending := [*self._late, *self._publishers.unanswered()]:
                await asyncio.wait(pending)

    async def close(self, timeout: float = 10.0) -> None:
        """Refuse further publishes, wait `timeout` seconds for those under way, disconnect.

        Publishes that are unanswered then fail with OutcomeUnknown.
        """
        if self._closed:
            return
        self._closed = True
        try:
            await self.flush(timeout)
        except TimeoutError:
            logger.warning("closed with publishes unanswered")
        finally:
            for task in self._late:
                task.cancel()
            await self._publishers.close()
