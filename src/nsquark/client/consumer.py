"""`Consumer`: a topic and a channel, consumed by iterating, in batches, or by a handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

from nsquark.errors import UsageError
from nsquark.names import is_valid_name

from .addresses import Addresses, as_addresses
from .config import Config
from .discovery import Discovery, lookup_url
from .engine import Engine, EventHook, GiveUpHook
from .events import ConnectionStats, ConsumerStats, Drained
from .handling import Handling
from .message import Message
from .roster import DiscoveryFilter, Roster
from .subscription import Subscription

Handler = Callable[[Message], Awaitable[object] | object]
DEFAULT_CONFIG = Config()


class Consumer:
    """Consumes one channel of one topic, from the nsqds given and from those the lookupds list.

    `async with` starts and closes it. Then one of:

    - `async for message in consumer`: the message is yours until you answer it. Several tasks may iterate.
    - `async for batch in consumer.batches(size, max_wait)`
    - `await consumer.run(handler, concurrency=…)`: returns when the consumer is closed.

    At most `config.max_in_flight` messages are in flight at once. Constructing does no I/O and needs no event
    loop.
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
        """From one nsqd or nsqlookupd, or several.

        `fail_fast`: `start` raises if nothing can be reached or we are refused, instead of trying on.
        `discovery_filter` chooses among the addresses found. `on_give_up` gets each message that has had
        `max_attempts`, before it is finished; if it raises, the message is requeued. `on_event` gets every
        `Event`.
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
        self._engine: Engine | None = None
        self._roster: Roster | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._closed: asyncio.Future[Drained] | None = None
        self._hurry = asyncio.Event()

    # ---- the beginning

    async def start(self) -> None:
        """Begin to connect. Raises UsageError the second time, and ConnectFailed only with `fail_fast`."""
        if self._engine is not None:
            raise UsageError("a consumer starts once")
        self._engine = Engine(self.topic, self.channel, self.config, self._on_give_up, self._on_event)
        discovery = Discovery(self._lookupd, self.topic, self.config) if self._lookupd else None
        self._roster = Roster(self._engine, self._nsqd, discovery, self._discovery_filter)
        try:
            await self._roster.start(self._fail_fast)
        except BaseException:
            await self.close(0)
            raise

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # With an exception on its way nobody will answer what was taken.
        await self.close(30.0 if error is None else 0.0)

    @property
    def _running(self) -> Engine:
        if self._engine is None:
            raise UsageError(
                "the consumer was not started: `async with consumer`, or `await consumer.start()`"
            )
        return self._engine

    # ---- taking messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        engine = self._running
        if not engine.closing:
            message = engine.take_ready()
            if message is not None:
                return message
        message = await engine.take()
        if message is None:
            raise StopAsyncIteration
        return message

    async def take(self, limit: int = 1) -> list[Message]:
        """At least one message, up to `limit` if they are here already; none when it is closed."""
        engine = self._running
        first = await engine.take()
        if first is None:
            return []
        messages = [first]
        while len(messages) < limit and (message := engine.take_ready()) is not None:
            messages.append(message)
        return messages

    def put_back(self, messages: Sequence[Message]) -> None:
        """Messages that were taken and not used: they are the next to be taken."""
        self._running.put_back(messages)

    async def batches(self, size: int, max_wait: float) -> AsyncGenerator[list[Message], None]:
        """Lists of up to `size` messages, none waiting for more than `max_wait` seconds for the others.

        A list is shorter too when no more can come before some are answered: `max_in_flight` bounds it.
        """
        if size < 1:
            raise UsageError(f"batches of {size!r}")
        engine = self._running
        while (message := await engine.take()) is not None:
            batch = [message]
            try:
                await self._fill(batch, size, max_wait)
            except BaseException:
                engine.put_back(batch)
                raise
            yield batch

    async def _fill(self, batch: list[Message], size: int, max_wait: float) -> None:
        engine = self._running
        deadline = asyncio.get_running_loop().time() + max_wait
        while len(batch) < size:
            message = engine.take_ready()
            if message is not None:
                batch.append(message)
                continue
            if engine.closing or engine.sharing.is_starved():
                return
            try:
                async with asyncio.timeout_at(deadline):
                    await engine.wait()
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

        When it returns the message is finished; when it raises, requeued with backoff, and that is logged.
        `Requeue` and `Discard` choose otherwise. A handler that takes longer than `handler_timeout` is
        cancelled, which counts as a failure. `touch_every` seconds nsqd is told that the handler still works.
        """
        if concurrency < 1:
            raise UsageError(f"a concurrency of {concurrency!r}")
        engine = self._running
        handling = Handling(engine, handler, handler_timeout, touch_every)
        workers = [asyncio.create_task(handling.work(), name=f"worker {n}") for n in range(concurrency)]
        engine.takers += len(workers)
        self._workers.update(workers)
        try:
            await asyncio.wait(workers)
            for worker in workers:
                if not worker.cancelled() and worker.exception() is not None:
                    raise worker.exception()  # type: ignore[misc]
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            engine.takers -= len(workers)
            self._workers.difference_update(workers)
            if engine.closing and not engine.takers:
                engine.give_back_queue()

    # ---- steering

    def set_max_in_flight(self, n: int) -> None:
        """From now on. 0 pauses: nothing new comes, what is in flight goes on."""
        if n < 0:
            raise UsageError(f"max_in_flight {n!r}")
        self._running.change_max_in_flight(n)

    def pause(self) -> None:
        self.set_max_in_flight(0)

    def resume(self) -> None:
        """After `pause`: as much as the config says."""
        self.set_max_in_flight(self.config.max_in_flight)

    @property
    def is_starved(self) -> bool:
        """Whether no more messages will come until some are answered. Time to process a batch."""
        return self._running.sharing.is_starved()

    def add_nsqd(self, address: str) -> None:
        (checked,) = as_addresses(address)
        self._started_roster.add(checked)

    def remove_nsqd(self, address: str) -> None:
        """Leave it, after what is in flight there is answered."""
        self._started_roster.remove(address)

    def add_lookupd(self, address: str) -> None:
        """Raises UsageError unless the consumer began with one."""
        self._discovery.add(address)

    def remove_lookupd(self, address: str) -> None:
        """Raises UsageError if it is unknown, or the last."""
        self._discovery.remove(address)

    @property
    def _started_roster(self) -> Roster:
        if self._roster is None or self._running.closing:
            raise UsageError("the consumer does not run")
        return self._roster

    @property
    def _discovery(self) -> Discovery:
        discovery = self._started_roster.discovery
        if discovery is None:
            raise UsageError("the consumer was made without nsqlookupd")
        return discovery

    def stats(self) -> ConsumerStats:
        engine = self._running
        discovery = self._roster.discovery if self._roster is not None else None
        age = None
        if discovery is not None and discovery.last_answer is not None:
            age = asyncio.get_running_loop().time() - discovery.last_answer
        return ConsumerStats(
            received=engine.received_count,
            finished=engine.finished,
            requeued=engine.requeued,
            touched=engine.touched,
            discarded=engine.discarded,
            gave_up=engine.gave_up,
            expired_answers=engine.expired_answers,
            queued=len(engine.ready),
            in_flight=engine.in_flight(),
            most_in_flight=engine.most_in_flight,
            max_in_flight=engine.sharing.max_in_flight,
            backoff_level=engine.backoff.level,
            connections=tuple(
                ConnectionStats(
                    each.address,
                    each.lane.rdy,
                    each.lane.in_flight,
                    each.connection.identify_response.version,
                )
                for each in engine.subscriptions.values()
            ),
            last_error=engine.last_error,
            discovery_age=age,
        )

    # ---- the end

    async def close(self, timeout: float = 30.0) -> Drained:
        """Take nothing more, let what was taken be answered, give back the rest, disconnect.

        Handlers of `run` get to the end of what is queued; what is queued for iteration is given back at
        once. After `timeout` seconds (or when called again) handlers are cancelled, and everything that is
        unanswered is given back with `REQ 0`.
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
        engine, roster = self._engine, self._roster
        if engine is None or roster is None:
            return Drained(0, 0, 0)
        finished, requeued = engine.finished, engine.requeued
        engine.start_closing()
        await roster.stop()
        subscriptions = list(engine.subscriptions.values())
        try:
            await self._drained(subscriptions, timeout)
        finally:
            await self._cancel_workers()
            engine.give_back_queue()
            engine.end()
            for subscription in subscriptions:
                subscription.close()
            await _gone(subscriptions, self.config.write_timeout)
        abandoned = sum(subscription.abandoned for subscription in subscriptions)
        return Drained(engine.finished - finished, engine.requeued - requeued, abandoned)

    async def _drained(self, subscriptions: list[Subscription], timeout: float) -> None:
        """Wait until everything is answered, the time is up, or somebody is in a hurry."""
        drained = asyncio.create_task(_all_gone(subscriptions))
        hurry = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait((drained, hurry), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (drained, hurry):
                task.cancel()
            await asyncio.gather(drained, hurry, return_exceptions=True)

    async def _cancel_workers(self) -> None:
        workers = self._workers - {asyncio.current_task()}  # a handler may be who closes
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _all_gone(subscriptions: list[Subscription]) -> None:
    for subscription in subscriptions:
        await subscription.gone.wait()


async def _gone(subscriptions: list[Subscription], within: float) -> None:
    """Let the last answers leave; cut whoever does not take them."""
    try:
        async with asyncio.timeout(within):
            await _all_gone(subscriptions)
    except TimeoutError:
        for subscription in subscriptions:
            subscription.connection.abort()
        await _all_gone(subscriptions)
