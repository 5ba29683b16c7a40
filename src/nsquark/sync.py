"""The client library for code without an event loop: scripts, notebooks, threads.

`Producer` and `Consumer` are those of `nsquark` with plain methods. They may be used from any thread; the
work is done by one event loop in a thread of its own; a forked child has another. Producers and consumers of
before the fork belong to the parent: make new ones in the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from nsquark import client
from nsquark.client.addresses import Addresses
from nsquark.client.config import DEFAULT_CONFIG, Config
from nsquark.client.consumer.handler_threads import HandlerThreads, PlainHandler
from nsquark.client.events import ConsumerStats, Drained, Event
from nsquark.client.message import Discard, Message, Requeue
from nsquark.client.producer import Body, Mode
from nsquark.errors import UsageError

__all__ = ["Consumer", "Discard", "Message", "Producer", "Requeue"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
_AT_ONCE = 64  # messages fetched from the loop's thread in one go


class _LoopThread:
    """An event loop in a daemon thread, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may interrupt the thread that holds it
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
        self._check_process(coroutine)
        return _loop.call(coroutine)

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        self._check_process(coroutine)
        return _loop.submit(coroutine)

    def _check_process(self, coroutine: Coroutine[Any, Any, T]) -> None:
        if os.getpid() != self._pid:
            coroutine.close()
            raise UsageError("made before a fork: make a new one in the child")


class Producer(_ProcessBound):
    """`nsquark.Producer` with plain methods: `with Producer("127.0.0.1:4150") as producer: …`"""

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
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__()
        self._producer = client.Producer(
            nsqd,
            mode=mode,
            group=group,
            lookupd=lookupd,
            repeat_unknown=repeat_unknown,
            config=config,
            max_pending=max_pending,
            on_event=on_event,
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

    def publish_nowait(self, topic: str, body: Body, *, timeout: float = 10.0) -> Future[None]:
        """Publish without waiting. The future (of concurrent.futures) is done when nsqd has stored it."""
        return _loop.submit(self._producer.publish(topic, body, timeout=timeout))

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

    Or hand it a handler, which is called until the process gets SIGTERM or SIGINT:

        Consumer("clicks", "audit", lookupd="127.0.0.1:4161").run(handler, concurrency=10)

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
        self._started = False

    def start(self) -> None:
        self._call(self._consumer.start())
        self._started = True

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

    def run(
        self,
        handler: PlainHandler,
        *,
        concurrency: int = 1,
        touch_every: float | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Call `handler` with each message, in `concurrency` threads, until the consumer is closed.

        A consumer that was not started is started. When the handler returns, the message is finished; when it
        raises, the message is requeued, as in `nsquark.Consumer.run`.

        In the main thread, SIGTERM and SIGINT close the consumer: no more messages are taken, and those that
        were taken have `timeout` seconds to be answered. A second signal requeues them at once. Messages
        whose handlers have not returned by then are requeued, and the handlers are not waited for.
        """
        if concurrency < 1:
            raise UsageError(f"a concurrency of {concurrency!r}")
        if not self._started:
            self.start()
        threads = HandlerThreads(handler, concurrency)
        try:
            working = self._submit(
                self._consumer.run(threads, concurrency=concurrency, touch_every=touch_every)
            )
            with _on_stop_signals(lambda: self._submit(self._consumer.close(timeout))):
                working.result()
                self.close()  # waits for the close that ended the work
        except BaseException:
            self.close(0.0)
            raise
        finally:
            threads.stop()

    def set_max_in_flight(self, n: int) -> None:
        self._call(_run(self._consumer.set_max_in_flight, n))

    def pause(self) -> None:
        self._call(_run(self._consumer.pause))

    def resume(self) -> None:
        self._call(_run(self._consumer.resume))

    def stats(self) -> ConsumerStats:
        return self._call(_run(self._consumer.stats))


@contextlib.contextmanager
def _on_stop_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` at each SIGTERM and SIGINT, if this is the main thread, the only one to get signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stopping(number: int, frame: FrameType | None) -> None:
        stop()  # first: what comes after the line must find the consumer closing
        logger.info("%s: closing the consumer", signal.Signals(number).name)

    before = {number: signal.signal(number, stopping) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


async def _next(stream: AsyncGenerator[T, None]) -> T | None:
    return await anext(stream, None)


async def _run(call: Callable[..., T], *arguments: Any) -> T:
    return call(*arguments)
