"""All nsqds of a producer: which of them gets a message, and which is next when one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from nsquark.errors import (
    ConnectFailed,
    DpubFailed,
    MpubFailed,
    NsquarkError,
    OutcomeUnknown,
    PubFailed,
    PublishTimeout,
    UsageError,
)
from nsquark.wire.commands import NOP

from ..config import Config
from ..events import Event, EventHook, call_hook
from .nsqd_publisher import NsqdPublisher
from .pool import Mode, make_pool
from .size_limits import Body, split_size

# Errors of nsqd itself: another nsqd may take the message, or the same one at a later time.
_SERVERS_FAULT = (PubFailed, MpubFailed, DpubFailed)


class NsqdPublishers:
    def __init__(
        self,
        addresses: Sequence[str],
        mode: Mode,
        config: Config,
        max_pending: int,
        on_event: EventHook | None,
    ) -> None:
        self._pool = make_pool(mode, len(addresses))  # None: publish to all
        self._config = config
        self._max_pending = max_pending
        self._on_event = on_event
        self._publishers = [NsqdPublisher(address, config, self._emit) for address in addresses]

    def _emit(self, event: Event) -> None:
        call_hook(self._on_event, event)

    @property
    def only(self) -> NsqdPublisher | None:
        """The one nsqd there is; None if there are several."""
        return self._publishers[0] if len(self._publishers) == 1 else None

    # ---- publishing

    async def publish(
        self, command: Sequence[bytes], timeout: float, retries: int, bodies: Sequence[Body] | None = None
    ) -> None:
        """Publish a PUB or DPUB, or the MPUB of `bodies`."""
        deadline = asyncio.get_running_loop().time() + timeout
        if self._pool is None:
            for publisher in self._publishers:
                await self._publish_to(publisher, command, deadline, bodies, patient=True)
            return
        while True:
            try:
                await self._publish_to_one(command, deadline, bodies)
                return
            except (OutcomeUnknown, *_SERVERS_FAULT):
                if not retries:
                    raise
                retries -= 1

    async def _publish_to_one(
        self, command: Sequence[bytes], deadline: float, bodies: Sequence[Body] | None
    ) -> None:
        """Publish to the nsqd that the pool picks; as long as nothing was sent, try the next ones."""
        assert self._pool is not None
        loop = asyncio.get_running_loop()
        publishers = self._publishers
        failed: set[int] = set()
        while True:
            picked = self._pool.pick(loop.time())
            if len(failed) == len(publishers):
                await self._first_connected(deadline)
                failed.clear()
            elif picked.host in failed:
                continue  # a pool that picks at random may pick the same host again
            publisher = publishers[picked.host]
            try:
                await self._publish_to(publisher, command, deadline, bodies, patient=len(publishers) == 1)
            except ConnectFailed as error:
                picked.mark(False, loop.time())
                failed.add(picked.host)
                if error.permanent and len(failed) == len(publishers):
                    raise
            except UsageError:  # the message is at fault, not the nsqd
                raise
            except NsquarkError:
                picked.mark(False, loop.time())
                raise
            else:
                picked.mark(True, loop.time())
                return

    async def _publish_to(
        self,
        publisher: NsqdPublisher,
        command: Sequence[bytes],
        deadline: float,
        bodies: Sequence[Body] | None,
        patient: bool,
    ) -> None:
        address = publisher.address
        try:
            async with asyncio.timeout_at(deadline):
                connection = await publisher.connected(patient)
                await publisher.room(connection, self._max_pending)
        except TimeoutError:
            raise _too_late([publisher]) from publisher.failure
        if not connection.open:
            raise ConnectFailed(f"{address}: the connection was lost before the message was sent")
        size = sum(map(len, command))
        if size > publisher.limits.unchecked:
            publisher.limits.check(address, command, bodies)
        await publisher.ask(connection, command, size, deadline)

    async def _first_connected(self, deadline: float) -> None:
        """Wait until any nsqd is connected. Raises ConnectFailed if all refuse the client."""
        tasks = [asyncio.create_task(_refusal(publisher)) for publisher in self._publishers]
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
            failures = [each.failure for each in self._publishers if each.failure is not None]
            raise _too_late(self._publishers) from (failures[0] if failures else None)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # ---- all of them

    async def split_size(self, timeout: float) -> int:
        """The size of the MPUBs that a long list is split into, by the limits of the nsqds connected."""
        if self._config.max_body_size is None and not any(each.connection for each in self._publishers):
            await self._first_connected(asyncio.get_running_loop().time() + timeout)
        return split_size(self._config, [each.limits for each in self._publishers])

    async def ping(self, timeout: float) -> None:
        """Return when one nsqd is connected, or each if all are published to. Raises ConnectFailed."""
        async with asyncio.timeout(timeout):
            results = await asyncio.gather(
                *(publisher.connected(patient=False) for publisher in self._publishers),
                return_exceptions=True,
            )
        errors = [each for each in results if isinstance(each, BaseException)]
        if errors and (self._pool is None or len(errors) == len(results)):
            raise errors[0]
        for connection in results:
            if not isinstance(connection, BaseException):
                connection.send(NOP)

    def unanswered(self) -> list[asyncio.Future[Any]]:
        """The newest unanswered command of each nsqd, as a future."""
        connections = [publisher.connection for publisher in self._publishers]
        newest = [connection.last_question for connection in connections if connection is not None]
        return [future for future in newest if future is not None and not future.done()]

    async def close(self) -> None:
        for publisher in self._publishers:
            await publisher.close()


def _too_late(publishers: Sequence[NsqdPublisher]) -> PublishTimeout:
    """The error of a publish that could not be sent, with the reason why each nsqd could not be reached."""
    reasons = [str(each.failure) for each in publishers if each.failure is not None]
    where = "; ".join(reasons) or ", ".join(each.address for each in publishers)
    return PublishTimeout(f"it could not be sent in time: {where}", sent=False)


async def _refusal(publisher: NsqdPublisher) -> ConnectFailed | None:
    """Wait for the connection. None, or the error by which nsqd refused it."""
    try:
        await publisher.connected(patient=True)
    except ConnectFailed as error:
        return error
    return None
