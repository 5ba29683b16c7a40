"""Finding the primary of a replica group: only the primary takes TCP connections and shakes hands.

All members are dialled at the same time, each again after a delay, until one has shaken hands. A search sends
no publish.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from nsquark.errors import ConnectFailed, ConnectionLost, ProtocolError

from ...config import Config, Reconnect
from ...connection import NsqdConnection, connect
from ...events import ConnectionRefused, Event
from ...message import Message
from .members import GroupMembers

logger = logging.getLogger(__name__)

FIRST_DELAY = 0.1  # seconds; a group has a new primary within seconds
LONGEST_DELAY = 1.0
_HANDSHAKE_WITHIN = 5.0  # seconds; a process that is stopped accepts connections and says nothing
_DISCOVER_EVERY = 5.0  # seconds, once the first answers are there


class MemberConnection:
    """A connection to a member, and the Receiver of it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.connection: NsqdConnection[Message] | None = None
        self.on_lost: Callable[[MemberConnection, Exception | None], None] | None = None

    @property
    def open(self) -> bool:
        return self.connection is not None and self.connection.open

    def is_same_nsqd(self, other: MemberConnection) -> bool:
        """Whether both connections lead to one socket, though their addresses may be spelt differently."""
        peers = [each.connection.peer if each.connection is not None else None for each in (self, other)]
        return peers[0] is not None and peers[0] == peers[1]

    def abort(self, error: Exception | None = None) -> None:
        if self.connection is not None:
            self.connection.abort(error)

    def messages_received(self, messages: list[Message]) -> None:
        for message in messages:
            message.answered = True
        self.abort(ConnectionLost("a message without a subscription"))

    def answer_failed(self, error: ProtocolError) -> None:
        logger.warning("%s: %s", self.address, error)

    def connection_lost(self, error: Exception | None) -> None:
        if self.on_lost is not None:
            self.on_lost(self, error)


def group_delays(config: Config) -> Reconnect:
    """The delays between two attempts at a member: the config's, and at most those of a group."""
    given = config.reconnect
    return Reconnect(
        first=min(given.first, FIRST_DELAY), cap=min(given.cap, LONGEST_DELAY), jitter=given.jitter
    )


class PrimarySearch:
    """One search. `failures` has the last failure of each member."""

    def __init__(
        self,
        members: GroupMembers,
        config: Config,
        emit: Callable[[Event], None],
        failures: dict[str, ConnectFailed],
    ) -> None:
        self._members = members
        self._config = config
        self._emit = emit
        self._failures = failures
        self._news = asyncio.Event()
        self._reported: set[str] = set()

    async def find(self, skipped: Collection[str] = ()) -> MemberConnection:
        """Return when a member that is not among `skipped` has shaken hands. The caller owns the connection.

        Raises ConnectFailed when a member refuses the client for good and no other could be reached.
        """
        self._members.on_change = self._news.set
        dials: dict[str, asyncio.Task[MemberConnection]] = {}
        discovery = asyncio.create_task(self._discover()) if self._members.discovers else None
        try:
            while True:
                self._news.clear()
                for address in self._members.addresses:
                    if address not in dials and address not in skipped:
                        dials[address] = asyncio.create_task(self._dial(address), name=f"nsqd {address}")
                        dials[address].add_done_callback(lambda _: self._news.set())
                refusals = []
                for address, dial in dials.items():
                    if dial.done():
                        try:
                            found = dial.result()
                        except ConnectFailed as error:
                            refusals.append(error)
                        else:
                            del dials[address]
                            return found
                if refusals and self._reported.issuperset(dials):
                    raise refusals[0]
                await self._news.wait()
        finally:
            tasks = [*dials.values(), *([discovery] if discovery is not None else [])]
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                # A second member shook hands in the same moment.
                if isinstance(result, MemberConnection):
                    result.abort()

    async def _dial(self, address: str) -> MemberConnection:
        """Return when the member has shaken hands. Raises ConnectFailed if it refuses this client."""
        for delay in group_delays(self._config).delays():
            member = MemberConnection(address)
            try:
                async with asyncio.timeout(self._config.dial_timeout + _HANDSHAKE_WITHIN):
                    member.connection = await connect(address, self._config, Message, member)
                if member.connection.open:
                    self._failures.pop(address, None)
                    return member
                error = ConnectFailed(f"{address} closed the connection")
            except TimeoutError:
                error = ConnectFailed(f"{address}: no handshake within {_HANDSHAKE_WITHIN} s")
            except ConnectFailed as failure:
                error = failure
            self._failures[address] = error
            if address not in self._reported:  # a standby refuses connections: once is enough
                logger.info("no primary: %s", error)
                self._emit(ConnectionRefused(address, error, None if error.permanent else delay))
            self._reported.add(address)
            self._news.set()
            if error.permanent:
                raise error
            await asyncio.sleep(delay)
        raise AssertionError("the delays have no end")

    async def _discover(self) -> None:
        period = FIRST_DELAY
        while True:
            await self._members.refresh()
            await asyncio.sleep(period)
            period = min(2 * period, _DISCOVER_EVERY)
