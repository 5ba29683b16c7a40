"""Keeps a consumer connected to its nsqds: those given by address, and those that an nsqlookupd lists.

There is one task per address. When the connection to a given nsqd is lost, its task dials again, each time
after a longer delay. When the connection to a listed nsqd is lost, its task ends and the nsqlookupds are
asked at once; an nsqd that is still listed gets a new task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from nsquark.errors import ConnectFailed, NsquarkError, ProtocolError

from ..events import Connected, ConnectionRefused, DiscoveryFailed, NothingListed
from .discovery import Discovery
from .subscription import Subscription
from .subscriptions import Subscriptions

logger = logging.getLogger(__name__)

DiscoveryFilter = Callable[[Sequence[str]], Iterable[str]]
_SLOW = 30.0  # seconds at least before the next attempt at an nsqd that refused the client


class Connector:
    """The addresses of a consumer's nsqds, each with the task that connects to it."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        direct: Iterable[str],
        discovery: Discovery | None,
        discovery_filter: DiscoveryFilter | None,
    ) -> None:
        self.discovery = discovery
        self._subscriptions = subscriptions
        self._direct = list(direct)
        self._filter = discovery_filter
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._open: dict[str, Subscription] = {}
        self._missing: dict[str, int] = {}  # how many polls in a row have not listed an open connection
        self._poller: asyncio.Task[None] | None = None

    async def start(self, fail_fast: bool) -> None:
        """Begin to connect. With `fail_fast`, wait for the first attempts.

        Raises the error of an nsqd that refused the client, or ConnectFailed if no daemon was reached.
        """
        first: list[asyncio.Future[None]] = []
        for address in self._direct:
            tried = asyncio.get_running_loop().create_future()
            first.append(tried)
            self._tasks[address] = asyncio.create_task(self._keep(address, tried), name=f"nsqd {address}")
        if self.discovery is not None:
            tried = asyncio.get_running_loop().create_future()
            first.append(tried)
            self._poller = asyncio.create_task(self._discover(self.discovery, tried), name="discovery")
        if fail_fast:
            await asyncio.wait(first)
            errors = [tried.exception() for tried in first]
            for error in errors:
                # A single refusal (a wrong name, no permission) is an error; an unreachable nsqd is not.
                if isinstance(error, ProtocolError) or getattr(error, "permanent", False):
                    raise error  # type: ignore[misc]
            if all(errors):
                raise ConnectFailed("; ".join(map(str, errors)))
        else:
            for tried in first:
                tried.add_done_callback(lambda done: done.exception())

    async def _keep(self, address: str, tried: asyncio.Future[None]) -> None:
        delays: Iterator[float] = self._subscriptions.config.reconnect.delays()
        while True:
            try:
                subscription = await self._subscribe(address)
            except NsquarkError as error:
                delay = next(delays)
                if _is_refusal(error):
                    delay = max(delay, _SLOW)
                self._refused(address, error, delay)
                _settle(tried, error)
            else:
                _settle(tried, None)
                delays = self._subscriptions.config.reconnect.delays()
                await subscription.gone.wait()
                if self._subscriptions.queue.closing:
                    return
                delay = next(delays)
            await asyncio.sleep(delay)

    async def _visit(self, address: str) -> None:
        try:
            subscription = await self._subscribe(address)
        except NsquarkError as error:
            self._refused(address, error, None)
            if _is_refusal(error):
                await asyncio.sleep(_SLOW)  # not at every poll
            return
        await subscription.gone.wait()
        if self.discovery is not None:
            self.discovery.poll_soon()

    async def _subscribe(self, address: str) -> Subscription:
        subscription = Subscription(self._subscriptions, address)
        await subscription.subscribe()
        if subscription.lost:  # between the answer to SUB and now
            raise ConnectFailed(f"{address}: {subscription.error}")
        if self._subscriptions.queue.closing:
            subscription.connection.close()
            raise ConnectFailed(f"{address}: the consumer is closing")
        logger.info("%s: connected to %s/%s", address, self._subscriptions.topic, self._subscriptions.channel)
        self._open[address] = subscription
        self._missing.pop(address, None)
        self._subscriptions.add(subscription)
        self._subscriptions.emit(Connected(address))
        return subscription

    def _refused(self, address: str, error: NsquarkError, retry_in: float | None) -> None:
        logger.warning("no connection: %s", error)
        self._subscriptions.counters.last_error = error
        self._subscriptions.emit(ConnectionRefused(address, error, retry_in))

    # ---- discovery

    async def _discover(self, discovery: Discovery, tried: asyncio.Future[None]) -> None:
        polls = 0
        found = told = False
        while True:
            addresses, failed = await discovery.poll()
            polls += 1
            for lookupd, error in failed.items():
                logger.warning("nsqlookupd: %s", error)
                self._subscriptions.counters.last_error = error
                self._subscriptions.emit(DiscoveryFailed(lookupd, error))
            all_failed = bool(failed) and len(failed) == len(discovery.urls)
            _settle(tried, ConnectFailed("; ".join(map(str, failed.values()))) if all_failed else None)
            if not all_failed:
                if not addresses and not found and not told:
                    told = True
                    self._nothing_listed(discovery)
                found = found or bool(addresses)
                self._listed(addresses)
            await discovery.wait(polls, found)

    def _nothing_listed(self, discovery: Discovery) -> None:
        topic = self._subscriptions.topic
        lookupds = ", ".join(discovery.urls.values())
        logger.warning(
            "no nsqd has topic %s yet, by nsqlookupd %s; the consumer goes on asking", topic, lookupds
        )
        self._subscriptions.emit(NothingListed(topic))

    def _listed(self, addresses: Sequence[str]) -> None:
        if self._filter is not None:
            try:
                addresses = list(self._filter(addresses))
            except Exception:
                logger.exception("discovery_filter failed; nothing changes")
                return
        for address in addresses:
            task = self._tasks.get(address)
            if task is None or (task.done() and address not in self._direct):
                self._tasks[address] = asyncio.create_task(self._visit(address), name=f"nsqd {address}")
        self._drop_missing(set(addresses))

    def _drop_missing(self, listed: set[str]) -> None:
        limit = self._subscriptions.config.drop_missing_after
        self._tasks = {address: task for address, task in self._tasks.items() if not task.done()}
        for address in [each for each in self._tasks if each not in self._direct]:
            subscription = self._open.get(address)
            if address in listed or subscription is None or subscription.lost:
                self._missing.pop(address, None)
                continue
            self._missing[address] = self._missing.get(address, 0) + 1
            if limit is not None and self._missing[address] >= limit and not subscription.draining:
                logger.info("%s: not listed any more, leaving", address)
                self._subscriptions.leave(subscription)

    # ---- changes

    def add(self, address: str) -> None:
        if address not in self._direct:
            self._direct.append(address)
            old = self._tasks.get(address)
            if old is None or old.done():
                tried = asyncio.get_running_loop().create_future()
                tried.add_done_callback(lambda done: done.exception())
                self._tasks[address] = asyncio.create_task(self._keep(address, tried), name=f"nsqd {address}")

    def remove(self, address: str) -> None:
        """Leave an nsqd, which is drained, or stop trying to reach it."""
        if address in self._direct:
            self._direct.remove(address)
        task = self._tasks.pop(address, None)
        if task is not None:
            task.cancel()
        subscription = self._open.pop(address, None)
        if subscription is not None and not subscription.lost:
            self._subscriptions.leave(subscription)

    async def stop(self) -> None:
        """Make no more connections. Those that are open stay open."""
        tasks = [*self._tasks.values(), *([self._poller] if self._poller is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()


def _is_refusal(error: NsquarkError) -> bool:
    """Whether trying again at once would be answered the same way."""
    return isinstance(error, ProtocolError) or getattr(error, "permanent", False)


def _settle(tried: asyncio.Future[None], error: NsquarkError | None) -> None:
    if not tried.done():
        if error is None:
            tried.set_result(None)
        else:
            tried.set_exception(error)
