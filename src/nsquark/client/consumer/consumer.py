"""`Consumer`: a topic and a channel, consumed by iterating, in batches, or by a handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Self

from nsquark.errors import UsageError
from nsquark.names import is_valid_name

from ..addresses import Addresses, as_addresses
from ..config import DEFAULT_CONFIG, Config
from ..events import ConsumerStats, Drained, EventHook
from ..message import Message
from .connector import Connector, DiscoveryFilter
from .discovery import Discovery, lookup_url
from .draining import drain
from .handler_run import Handler, HandlerRun
from .max_attempts import GiveUpHook
from .message_queue import MessageQueue
from .subscriptions import Subscriptions


class Consumer:
    """Consumes one channel of one topic, from the nsqds given and from those the lookupds list.

    `async with` starts and closes it. Then one of:

    - `async for message in consumer`: the message is yours until you answer it. Several tasks may iterate.
    - `async for batch in consumer.batches(size, max_wait)`
    - `await consumer.run(handler, concurrency=…)`: returns when the consumer is closed.

    At most `config.max_in_flight` messages are in flight at once: by default as many as `run` handles at a
    time, and 1 without `run`. Constructing does no I/O and needs no event loop.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        nsqd: Addresses = (),
        lookupd: Addresses = (),
        config: Config = DEFAULT_CONFIG,
        fail_fast: bool = False,
        discovery_filter: DiscoveryFilter | None = None,
        on_give_up: GiveUpHook | None = None,
        on_event: EventHook | None = None,
    ) -> None:
        """`nsqd` and `lookupd` are one address or several.

        With `fail_fast`, `start` raises if no daemon can be reached or one refuses the consumer; otherwise
        the consumer keeps trying. `discovery_filter` chooses among the addresses that the nsqlookupds list.
        `on_give_up` gets each message that was delivered more than `max_attempts` times, before it is
        finished; if the hook raises, the message is requeued. `on_event` gets every `Event`.
        """
        for kind, name in (("topic", topic), ("channel", channel)):
            if not is_valid_name(name):
                raise UsageError(f"{kind} {name!r} is no valid name")
        if config.heartbeat_interval <= 0:
            raise UsageError(
                f"heartbeat_interval {config.heartbeat_interval!r}: nsqd wants heartbeats of consumers"
            )
        self.topic = topic
        self.channel = channel
        self.config = config
        self._nsqd = as_addresses(nsqd)
        self._lookupd = (lookupd,) if isinstance(lookupd, str) else tuple(lookupd)
        for each in self._lookupd:
            lookup_url(each, topic)
        if not self._nsqd and not self._lookupd:
            raise UsageError("no nsqd and no nsqlookupd to consume from")
        self._fail_fast = fail_fast
        self._discovery_filter = discovery_filter
        self._on_give_up = on_give_up
        self._on_event = on_event
        self._subscriptions: Subscriptions | None = None
        self._queue: MessageQueue | None = None  # of the subscriptions
        self._connector: Connector | None = None
        self._closed: asyncio.Future[Drained] | None = None
        self._hurry = asyncio.Event()

    # ---- the beginning

    async def start(self) -> None:
        """Begin to connect. Raises UsageError the second time, and ConnectFailed only with `fail_fast`."""
        if self._subscriptions is not None:
            raise UsageError("a consumer starts once")
        self._subscriptions = Subscriptions(
            self.topic, self.channel, self.config, self._on_give_up, self._on_event
        )
        self._queue = self._subscriptions.queue
        discovery = Discovery(self._lookupd, self.topic, self.config) if self._lookupd else None
        self._connector = Connector(self._subscriptions, self._nsqd, discovery, self._discovery_filter)
        try:
            await self._connector.start(self._fail_fast)
        except BaseException:
            await self.close(0)
            raise

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An exception ends the code that would have answered the messages.
        await self.close(30.0 if error is None else 0.0)

    @property
    def _running(self) -> Subscriptions:
        if self._subscriptions is None:
            raise _not_started()
        return self._subscriptions

    # ---- taking messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        queue = self._queue
        if queue is None:
            raise _not_started()
        if queue.ready and not queue.closing:
            return queue.ready.popleft()
        message = await queue.take()
        if message is None:
            raise StopAsyncIteration
        return message

    async def take(self, limit: int = 1) -> list[Message]:
        """At least one message, up to `limit` if they are here already; none when the consumer is closed."""
        queue = self._running.queue
        first = await queue.take()
        if first is None:
            return []
        messages = [first]
        while len(messages) < limit and (message := queue.take_ready()) is not None:
            messages.append(message)
        return messages

    def put_back(self, messages: Sequence[Message]) -> None:
        """Messages that were taken and not used: they are the next to be taken."""
        self._running.queue.put_back(messages)

    async def batches(self, size: int, max_wait: float) -> AsyncGenerator[list[Message], None]:
        """Lists of up to `size` messages. The first message of a list waits at most `max_wait` seconds.

        A list is shorter too when no more messages can come before some are answered: `max_in_flight` bounds
        it.
        """
        if size < 1:
            raise UsageError(f"batches of {size!r}")
        queue = self._running.queue
        while (message := await queue.take()) is not None:
            batch = [message]
            try:
                await self._fill(batch, size, max_wait)
            except BaseException:
                queue.put_back(batch)
                raise
            yield batch

    async def _fill(self, batch: list[Message], size: int, max_wait: float) -> None:
        queue = self._running.queue
        deadline = asyncio.get_running_loop().time() + max_wait
        while len(batch) < size:
            message = queue.take_ready()
            if message is not None:
                batch.append(message)
                continue
            if queue.closing or self.is_starved:
                return
            try:
                async with asyncio.timeout_at(deadline):
                    await queue.wait()
            except TimeoutError:
                return

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        handler_timeout: float | None = None,
        touch_every: float | None = None,
    ) -> None:
        """Call `handler` with each message, `concurrency` at a time, until the consumer is closed.

        If `config.max_in_flight` is lower than the concurrency, a warning is logged; if it is None, it
        becomes the concurrency.

        When the handler returns, the message is finished. When it raises, the error is logged and the message
        is requeued with backoff; `Requeue` and `Discard` choose another answer. A handler that takes longer
        than `handler_timeout` is cancelled, which counts as a failure. Every `touch_every` seconds a TOUCH
        tells nsqd that the handler still works.
        """
        await HandlerRun(self._running, handler, handler_timeout, touch_every).run(concurrency)

    # ---- steering

    def set_max_in_flight(self, n: int) -> None:
        """Change `max_in_flight`. 0 pauses: no more messages come, those in flight go on."""
        if n < 0:
            raise UsageError(f"max_in_flight {n!r}")
        self._running.flow.change_max_in_flight(n)

    def pause(self) -> None:
        self.set_max_in_flight(0)

    def resume(self) -> None:
        """End a `pause`: `max_in_flight` is that of the config again, or the concurrency of `run`."""
        self.set_max_in_flight(self._running.flow.usual_max_in_flight)

    @property
    def is_starved(self) -> bool:
        """Whether no more messages will come until some are answered: process a batch now."""
        return self._running.flow.sharing.is_starved()

    def add_nsqd(self, address: str) -> None:
        (checked,) = as_addresses(address)
        self._started_connector.add(checked)

    def remove_nsqd(self, address: str) -> None:
        """Disconnect from an nsqd when the messages in flight there are answered."""
        self._started_connector.remove(address)

    def add_lookupd(self, address: str) -> None:
        """Raises UsageError unless the consumer began with one."""
        self._discovery.add(address)

    def remove_lookupd(self, address: str) -> None:
        """Raises UsageError if it is unknown, or the last."""
        self._discovery.remove(address)

    @property
    def _started_connector(self) -> Connector:
        if self._connector is None or self._running.queue.closing:
            raise UsageError("the consumer does not run")
        return self._connector

    @property
    def _discovery(self) -> Discovery:
        discovery = self._started_connector.discovery
        if discovery is None:
            raise UsageError("the consumer was made without nsqlookupd")
        return discovery

    def stats(self) -> ConsumerStats:
        discovery = self._connector.discovery if self._connector is not None else None
        return self._running.stats(discovery.last_answer if discovery is not None else None)

    # ---- the end

    async def close(self, timeout: float = 30.0) -> Drained:
        """Stop taking messages, wait for the answers of those that were taken, requeue the rest, disconnect.

        Handlers of `run` get all messages that are queued; messages that are queued for iteration are
        requeued at once. After `timeout` seconds, or when `close` is called again, handlers are cancelled and
        every unanswered message is requeued with `REQ 0`.
        """
        if self._closed is not None:
            self._hurry.set()
            return await asyncio.shield(self._closed)
        self._closed = asyncio.get_running_loop().create_future()
        try:
            drained = await self._close(timeout)
        except BaseException as error:
            self._closed.set_exception(error)
            self._closed.exception()
            raise
        self._closed.set_result(drained)
        return drained

    async def _close(self, timeout: float) -> Drained:
        if self._subscriptions is None or self._connector is None:
            return Drained(0, 0, 0)
        return await drain(self._subscriptions, self._connector, timeout, self._hurry)


def _not_started() -> UsageError:
    return UsageError("the consumer was not started: `async with consumer`, or `await consumer.start()`")
