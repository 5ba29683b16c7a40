"""The client library for code without an event loop: scripts, notebooks, threads.

`Producer` and `Consumer` are those of `nsquark` with plain methods. They may be used from any thread; the
work is done by one event loop in a thread of its own; a forked child has another. Producers and consumers of
before the fork belong to the parent: make new ones in the child.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from nsquark import client
from nsquark.client.addresses import Addresses
from nsquark.client.config import DEFAULT_CONFIG, Config
from nsquark.client.events import ConsumerStats, Drained, Event
from nsquark.client.message import Discard, Message, Requeue
from nsquark.client.producer import Body, Mode
from nsquark.errors import UsageError

__all__ = ["Consumer", "Discard", "Message", "Producer", "Requeue"]

T = TypeVar("T")
_AT_ONCE = 64  # messages fetched from the loop's thread in one go


class _LoopThread:
    """An event loop in a daemon thread, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="nsquark.sync", daemon=True).start()
            return self._loop

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.get())

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop's thread and wait for it. An interrupt (Ctrl-C) cancels it."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


_loop = _LoopThread()


def _forked() -> None:
    global _loop
    _loop = _LoopThread()


os.register_at_fork(after_in_child=_forked)


class _ProcessBound:
    """Runs coroutines in the loop's thread, and only in the process that made this object."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if os.getpid() != self._pid:
            coroutine.close()
            raise UsageError("made before a fork: make a new one in the child")
        return _loop.call(coroutine)


class Producer(_ProcessBound):
    """`nsquark.Producer` with plain methods: `with Producer("127.0.0.1:4150") as producer: …`"""

    def __init__(
        self,
        nsqd: Addresses,
        *,
        mode: Mode = "hostpool",
        config: Config = DEFAULT_CONFIG,
        max_pending: int = 10_000,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__()
        self._producer = client.Producer(
            nsqd, mode=mode, config=config, max_pending=max_pending, on_event=on_event
        )

    def publish(
        self,
        topic: str,
        body: Body,
        *,
        delay: float | None = None,
        timeout: float = 10.0,
        retries: int = 0,
    ) -> None:
        self._call(self._producer.publish(topic, body, delay=delay, timeout=timeout, retries=retries))

    def publish_many(
        self,
        topic: str,
        bodies: Sequence[Body],
        *,
        timeout: float = 10.0,
        retries: int = 0,
        split: bool = False,
    ) -> None:
        self._call(self._producer.publish_many(topic, bodies, timeout=timeout, retries=retries, split=split))

    def publish_nowait(self, topic: str, body: Body) -> Future[None]:
        """Publish without waiting. The future (of concurrent.futures) is done when nsqd has stored it."""
        return _loop.submit(self._producer.publish(topic, body))

    def ping(self, timeout: float = 10.0) -> None:
        self._call(self._producer.ping(timeout))

    def flush(self, timeout: float | None = None) -> None:
        self._call(self._producer.flush(timeout))

    def close(self, timeout: float = 10.0) -> None:
        self._call(self._producer.close(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(10.0 if error is None else 0.0)


class Consumer(_ProcessBound):
    """`nsquark.Consumer` with plain methods. Iterate it, from as many threads as you like:

        with Consumer("clicks", "audit", lookupd="127.0.0.1:4161") as consumer:
            for message in consumer:
                with message:
                    handle(message.body)

    `on_give_up` is a plain function here, called in the thread of the event loop: it should be quick.
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
        on_give_up: Callable[[Message], None] | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__()

        async def give_up(message: Message) -> None:
            assert on_give_up is not None
            on_give_up(message)

        self._consumer = client.Consumer(
            topic,
            channel,
            nsqd=nsqd,
            lookupd=lookupd,
            config=config,
            fail_fast=fail_fast,
            on_give_up=give_up if on_give_up is not None else None,
            on_event=on_event,
        )
        self._iterating = 0

    def start(self) -> None:
        self._call(self._consumer.start())

    def close(self, timeout: float = 30.0) -> Drained:
        return self._call(self._consumer.close(timeout))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(30.0 if error is None else 0.0)

    def __iter__(self) -> Iterator[Message]:
        """Ends when the consumer is closed. Messages that were fetched and not used go back to the queue."""
        batch: list[Message] = []
        self._iterating += 1
        try:
            # Several threads share: none fetches more than it works on.
            while batch := self._call(self._consumer.take(_AT_ONCE if self._iterating == 1 else 1)):
                batch.reverse()
                while batch:
                    yield batch.pop()
        finally:
            self._iterating -= 1
            if batch:
                batch.reverse()
                self._call(_run(self._consumer.put_back, batch))

    def batches(self, size: int, max_wait: float) -> Iterator[list[Message]]:
        stream = self._consumer.batches(size, max_wait)
        try:
            while (batch := self._call(_next(stream))) is not None:
                yield batch
        finally:
            self._call(stream.aclose())

    def set_max_in_flight(self, n: int) -> None:
        self._call(_run(self._consumer.set_max_in_flight, n))

    def pause(self) -> None:
        self._call(_run(self._consumer.pause))

    def resume(self) -> None:
        self._call(_run(self._consumer.resume))

    def stats(self) -> ConsumerStats:
        return self._call(_run(self._consumer.stats))


async def _next(stream: AsyncGenerator[T, None]) -> T | None:
    return await anext(stream, None)


async def _run(call: Callable[..., T], *arguments: Any) -> T:
    return call(*arguments)
