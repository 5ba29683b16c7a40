"""An ordinary consumer in a thread of its own: what it gets is staged, and then finished."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable
from urllib.parse import urlsplit

from nsquark.client import Config, Consumer, Message
from nsquark.errors import NsquarkError

from ..options import StreamOptions
from ..source.directory import Directory
from .folder import Staging

logger = logging.getLogger(__name__)

_IN_FLIGHT = 2500
_TOGETHER = 0.05  # seconds that messages wait for others to share a file with
_AHEAD = 1_000_000  # messages that may be staged and not acknowledged: then consuming pauses


class Consuming:
    def __init__(self, options: StreamOptions, directory: Directory, staging: Staging) -> None:
        self._options = options
        self._directory = directory
        self._staging = staging
        self._consumers: dict[str, asyncio.Task[None]] = {}
        self._stop = threading.Event()
        self.news = threading.Condition()
        self.failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="consumer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Return when nothing is written any more."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._consume())
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self.news:
            self.failed = error
            self.news.notify_all()

    async def _consume(self) -> None:
        """Start a consumer for every topic there is, now and later."""
        try:
            while not self._stop.is_set():
                if self._directory.due or not self._consumers:
                    for topic in await asyncio.to_thread(self._topics):
                        if topic not in self._consumers:
                            self._consumers[topic] = asyncio.create_task(self._consume_topic(topic))
                for task in self._consumers.values():
                    if task.done():
                        task.result()
                await asyncio.sleep(_TOGETHER)
        finally:
            for task in self._consumers.values():
                task.cancel()
            await asyncio.gather(*self._consumers.values(), return_exceptions=True)

    def _topics(self) -> Iterable[str]:
        try:
            return list(self._directory.find())
        except NsquarkError as error:
            logger.warning("%s", error)
            return self._options.subscription.topics

    def _consumer(self, topic: str) -> Consumer:
        addresses, access = self._options.addresses, self._options.addresses.access
        secure = bool(access.ca_file or access.cert_file or not access.verify)
        config = Config(
            max_in_flight=_IN_FLIGHT,
            max_attempts=0,
            user_agent="nsquark-spark",
            tls=access.ssl_context() if secure else False,
            auth_secret=access.secret or None,
            lookupd_poll_interval=addresses.poll_interval,
        )
        nsqds: list[str] = []
        if not addresses.lookupd:
            nsqds = [_tcp_address(node.name, node.url) for node in self._directory.nodes(topic)]
        return Consumer(topic, self._options.channel, nsqd=nsqds, lookupd=addresses.lookupd, config=config)

    async def _consume_topic(self, topic: str) -> None:
        async with self._consumer(topic) as consumer:
            async for batch in consumer.batches(_IN_FLIGHT, _TOGETHER):
                by_nsqd: dict[str, list[Message]] = {}
                for message in batch:
                    by_nsqd.setdefault(message.nsqd_address, []).append(message)
                for nsqd, messages in by_nsqd.items():
                    await asyncio.to_thread(self._staging.add, topic, nsqd, messages)
                    for message in messages:
                        message.finish()
                with self.news:
                    self.news.notify_all()
                await self._wait_for_spark(consumer)

    async def _wait_for_spark(self, consumer: Consumer) -> None:
        if self._staging.end - self._staging.acknowledged < _AHEAD:
            return
        consumer.set_max_in_flight(0)
        while self._staging.end - self._staging.acknowledged >= _AHEAD:  # noqa: ASYNC110 - told by a thread
            await asyncio.sleep(_TOGETHER)
        consumer.set_max_in_flight(_IN_FLIGHT)


def _tcp_address(name: str, url: str) -> str:
    """Where we can reach it: at the host that was given, and the port that it says."""
    host = urlsplit(url).hostname if url else None
    if host is None:
        return name
    return f"{f'[{host}]' if ':' in host else host}:{name.rpartition(':')[2]}"
