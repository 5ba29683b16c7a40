"""`Producer`: publishing to one nsqd, or to several by one of NSQ's ways to choose."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from nsquark.errors import (
    ConnectFailed,
    DpubFailed,
    MpubFailed,
    NsquarkError,
    OutcomeUnknown,
    PendingFull,
    PubFailed,
    PublishTimeout,
    UsageError,
)
from nsquark.wire.commands import MAX_DELAY_MS, body_bytes, line, pack_many, pack_size, split_bodies

from .addresses import Addresses, as_addresses
from .config import Config, milliseconds
from .events import Event
from .nsqd_publisher import NsqdPublisher
from .pool import Mode, make_pool

logger = logging.getLogger(__name__)

Body = bytes | bytearray | memoryview
DEFAULT_CONFIG = Config()
_MOST_LINES = 1000  # topics whose command lines are remembered
_SERVERS_FAULT = (PubFailed, MpubFailed, DpubFailed)  # another nsqd, or a later time, may take it


class Producer:
    """Publishes. `async with` closes it; it connects when it is first used, and again whenever that is lost.

    Publishes are pipelined: any number of tasks may publish at once over the one connection to each nsqd.
    Several nsqds share the messages by `mode`: `hostpool` (in turn, avoiding those that failed),
    `round-robin`, `epsilon-greedy` (preferring the fast), `random`; or each gets `all`.

    How a publish can end:

    - it returns: stored;
    - `ProtocolError`: refused by nsqd, not stored;
    - `UsageError`: refused here, nothing was sent;
    - `ConnectFailed`, `PublishTimeout` with `sent=False`, `PendingFull`: not sent;
    - `OutcomeUnknown`, `PublishTimeout` with `sent=True`: nobody can tell. Publishing it again may double it.
    """

    def __init__(
        self,
        nsqd: Addresses,
        *,
        mode: Mode = "hostpool",
        config: Config = DEFAULT_CONFIG,
        max_pending: int = 10_000,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        """`max_pending`: how many publishes to an nsqd may be unanswered; `publish` waits beyond that."""
        self._addresses = as_addresses(nsqd)
        if not self._addresses:
            raise UsageError("no nsqd to publish to")
        if max_pending < 1:
            raise UsageError(f"max_pending {max_pending!r}")
        self._pool = make_pool(mode, len(self._addresses))
        self.config = config
        self._max_pending = max_pending
        self._on_event = on_event
        self._made: list[NsqdPublisher] = []
        self._lines: dict[str, bytes] = {}
        self._late: set[asyncio.Future[None]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(10.0 if error is None else 0.0)

    @property
    def _links(self) -> list[NsqdPublisher]:
        if not self._made:
            self._made = [NsqdPublisher(address, self.config, self._emit) for address in self._addresses]
        return self._made

    def _emit(self, event: Event) -> None:
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                logger.exception("on_event failed on %s", type(event).__name__)

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

        Within `timeout` seconds; meanwhile it waits for a connection if there is none. `retries` is how often
        to try again when the outcome is unknown or nsqd failed: more than 0 if a message may come twice.
        """
        if type(body) is not bytes or not 0 < len(body) <= self.config.max_msg_size:
            body = body_bytes(body, self.config.max_msg_size)
        head = self._pub_line(topic) if delay is None else self._dpub_line(topic, delay)
        command = (head, pack_size(len(body)), body)
        answer = None if retries else self._publish_at_once(command, len(body), timeout)
        if answer is not None:
            await answer
        else:
            await self._publish(command, timeout, retries)

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
        config = self.config
        runs = split_bodies(bodies, config.max_body_size) if split else [bodies]
        for run in runs:
            command = pack_many(self._mpub_line(topic), run, config.max_msg_size, config.max_body_size)
            answer = None if retries else self._publish_at_once((command,), len(command), timeout)
            if answer is not None:
                await answer
            else:
                await self._publish((command,), timeout, retries)

    def publish_many_nowait(self, topic: str, bodies: Sequence[Body]) -> asyncio.Future[None]:
        """`publish_many` without waiting, as `publish_nowait`."""
        config = self.config
        command = pack_many(self._mpub_line(topic), bodies, config.max_msg_size, config.max_body_size)
        return self._send_nowait((command,), len(command))

    def publish_nowait(self, topic: str, body: Body) -> asyncio.Future[None]:
        """Publish a message without waiting: the future is done when nsqd has stored it, or fails.

        Raises PendingFull when `max_pending` are unanswered: await some of the futures, or use `publish`.
        """
        body = body_bytes(body, self.config.max_msg_size)
        return self._send_nowait((self._pub_line(topic), pack_size(len(body)), body), len(body))

    def _send_nowait(self, command: Sequence[bytes], size: int) -> asyncio.Future[None]:
        self._check_open()
        if len(self._made) == 1:
            link = self._made[0]
            connection = link.connection
            if connection is not None and connection.open:
                if connection.unanswered >= self._max_pending:
                    raise PendingFull(f"{self._max_pending} publishes are unanswered")
                deadline = connection.loop.time() + 10.0
                return link.ask(connection, command, size, deadline)  # type: ignore[return-value]
        if len(self._late) >= self._max_pending:
            raise PendingFull(f"{self._max_pending} publishes are not sent yet")
        task = asyncio.ensure_future(self._publish(command, 10.0, 0))
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        return task

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
        self, command: Sequence[bytes], size: int, timeout: float
    ) -> asyncio.Future[bytes] | None:
        """The way of nearly all: one nsqd, connected, with room for more. None if it is not like that."""
        self._check_open()
        if len(self._made) != 1:
            return None
        link = self._made[0]
        connection = link.connection
        if connection is None or not connection.open or connection.write_resumed is not None:
            return None
        if connection.unanswered >= self._max_pending:
            return None
        return link.ask(connection, command, size, connection.loop.time() + timeout)

    async def _publish(self, command: Sequence[bytes], timeout: float, retries: int) -> None:
        deadline = asyncio.get_running_loop().time() + timeout
        if self._pool is None:
            for link in self._links:
                await self._publish_to(link, command, deadline, patient=True)
            return
        while True:
            try:
                await self._publish_somewhere(command, deadline)
                return
            except (OutcomeUnknown, *_SERVERS_FAULT):
                if not retries:
                    raise
                retries -= 1

    async def _publish_somewhere(self, command: Sequence[bytes], deadline: float) -> None:
        """To the nsqd whose turn it is, and as long as nothing was sent to the next ones."""
        assert self._pool is not None
        loop = asyncio.get_running_loop()
        links = self._links
        failed: set[int] = set()
        while True:
            lease = self._pool.pick(loop.time())
            if len(failed) == len(links):
                await self._first_connected(deadline)
                failed.clear()
            elif lease.host in failed:
                continue  # what is picked at random may be picked again
            try:
                await self._publish_to(links[lease.host], command, deadline, patient=len(links) == 1)
            except ConnectFailed as error:
                lease.mark(False, loop.time())
                failed.add(lease.host)
                if error.permanent and len(failed) == len(links):
                    raise
            except NsquarkError:
                lease.mark(False, loop.time())
                raise
            else:
                lease.mark(True, loop.time())
                return

    async def _first_connected(self, deadline: float) -> None:
        """Wait until any nsqd can be reached. Raises ConnectFailed if all refuse us."""
        tasks = [asyncio.create_task(self._connected(link)) for link in self._links]
        refusals = []
        try:
            async with asyncio.timeout_at(deadline):
                for done in asyncio.as_completed(tasks):
                    refusal = await done
                    if refusal is None:
                        return
                    refusals.append(refusal)
            raise refusals[0]
        except TimeoutError:
            raise PublishTimeout("no nsqd could be reached in time", sent=False) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, link: NsqdPublisher) -> ConnectFailed | None:
        try:
            await link.connected(patient=True)
        except ConnectFailed as error:
            return error
        return None

    async def _publish_to(
        self, link: NsqdPublisher, command: Sequence[bytes], deadline: float, patient: bool
    ) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                connection = await link.connected(patient)
                await link.room(connection, self._max_pending)
        except TimeoutError:
            raise PublishTimeout(f"{link.address}: could not be sent in time", sent=False) from None
        if not connection.open:
            raise ConnectFailed(f"{link.address}: the connection was lost before the message was sent")
        await link.ask(connection, command, sum(map(len, command)), deadline)

    # ---- the rest

    async def ping(self, timeout: float = 10.0) -> None:
        """Return when connected: with one nsqd of several, or with each if `all` are published to.

        Raises ConnectFailed.
        """
        self._check_open()
        async with asyncio.timeout(timeout):
            results = await asyncio.gather(
                *(link.connected(patient=False) for link in self._links), return_exceptions=True
            )
        errors = [each for each in results if isinstance(each, BaseException)]
        if errors and (self._pool is None or len(errors) == len(results)):
            raise errors[0]
        for connection in results:
            if not isinstance(connection, BaseException):
                connection.send(b"NOP\n")

    async def flush(self, timeout: float | None = None) -> None:
        """Return when nothing is under way any more, however it ended. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while pending := self._under_way():
                await asyncio.wait(pending)

    def _under_way(self) -> list[asyncio.Future[object]]:
        pending: list[asyncio.Future[object]] = [*self._late]  # type: ignore[list-item]
        for link in self._made:
            last = link.connection.last_question if link.connection is not None else None
            if last is not None and not last.done():
                pending.append(last)  # type: ignore[arg-type]
        return pending

    async def close(self, timeout: float = 10.0) -> None:
        """Take nothing more, wait `timeout` seconds for what is under way, disconnect.

        What is unanswered then fails with OutcomeUnknown.
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
            for link in self._made:
                await link.close()
            self._made = []
