"""An ordinary consumer in a thread of its own. It writes messages to the spool, and then finishes them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable
from urllib.parse import urlsplit

from nsquark.client import Config, Consumer, Message
from nsquark.errors import NsquarkError
from nsquark.net.addresses import join_address, split_address

from ..source.directory import Directory, Node
from ..source.options import StreamOptions
from .folder import Spool

logger = logging.getLogger(__name__)

_MAX_IN_FLIGHT = 2500
_BATCH_SECONDS = 0.05  # how long a message waits for others to share a file with
_MAX_AHEAD = 1_000_000  # messages in the spool that Spark has not acknowledged; beyond it consuming pauses


class SpoolConsumer:
    def __init__(self, options: StreamOptions, directory: Directory, spool: Spool) -> None:
        self._options = options
        self._directory = directory
        self._spool = spool
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by topic
        self._stop = threading.Event()
        self.changed = threading.Condition()  # notified when the spool has grown, or the consumer has failed
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="consumer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop consuming. Nothing is written to the spool after this returns."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._consume())
        except BaseException as error:
            with self.changed:
                self.failure = error
                self.changed.notify_all()

    async def _consume(self) -> None:
        """Consume every topic of the subscription, and look for new topics every poll interval."""
        try:
            while not self._stop.is_set():
                if self._directory.due or not self._tasks:
                    for topic in await asyncio.to_thread(self._find_topics):
                        if topic not in self._tasks:
                            self._tasks[topic] = asyncio.create_task(self._consume_topic(topic))
                for task in self._tasks.values():
                    if task.done():
                        task.result()
                await asyncio.sleep(_BATCH_SECONDS)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _find_topics(self) -> Iterable[str]:
        try:
            return list(self._directory.find())
        except NsquarkError as error:
            logger.warning("%s", error)
            return self._options.subscription.topics

    def _consumer(self, topic: str) -> Consumer:
        addresses, access = self._options.addresses, self._options.addresses.access
        config = Config(
            max_in_flight=_MAX_IN_FLIGHT,
            max_attempts=0,
            user_agent="nsquark-spark",
            tls=access.ssl_context() if access.asks_for_tls else False,
            auth_secret=access.secret or None,
            lookupd_poll_interval=addresses.poll_interval,
        )
        nsqds: list[str] = []
        if not addresses.lookupd:
            nsqds = [_tcp_address(node) for node in self._directory.nodes(topic)]
        return Consumer(topic, self._options.channel, nsqd=nsqds, lookupd=addresses.lookupd, config=config)

    async def _consume_topic(self, topic: str) -> None:
        async with self._consumer(topic) as consumer:
            async for batch in consumer.batches(_MAX_IN_FLIGHT, _BATCH_SECONDS):
                by_nsqd: dict[str, list[Message]] = {}
                for message in batch:
                    by_nsqd.setdefault(message.nsqd_address, []).append(message)
                for nsqd, messages in by_nsqd.items():
                    await asyncio.to_thread(self._spool.add, topic, nsqd, messages)
                    for message in messages:
                        message.finish()
                with self.changed:
                    self.changed.notify_all()
                await self._wait_for_spark(consumer)

    async def _wait_for_spark(self, consumer: Consumer) -> None:
        if self._spool.end - self._spool.acknowledged < _MAX_AHEAD:
            return
        consumer.set_max_in_flight(0)
        # Another thread acknowledges, so there is no event of this loop to wait for.
        while self._spool.end - self._spool.acknowledged >= _MAX_AHEAD:  # noqa: ASYNC110
            await asyncio.sleep(_BATCH_SECONDS)
        consumer.set_max_in_flight(_MAX_IN_FLIGHT)


def _tcp_address(node: Node) -> str:
    """host:port of the TCP port: the host that the options name, and the port that nsqd broadcasts."""
    host = urlsplit(node.url).hostname if node.url else None
    return node.name if host is None else join_address(host, split_address(node.name)[1])
