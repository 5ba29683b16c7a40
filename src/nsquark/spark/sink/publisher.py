"""Publishing at least once from an executor, with several commands under way and several nsqds to try.

The publisher keeps every command until nsqd has answered it. When a connection fails, the commands without an
answer go to the next nsqd. The window bounds how many bytes are kept.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import Unreachable
from .options import SinkOptions
from .publish_connection import ConnectionFailed, PublishConnection, idle_connections


class _Unanswered(NamedTuple):
    commands: bytes
    number: int  # of the commands; each has an answer of its own


class Publisher:
    """Publishes commands in order.

    Use it as `with Publisher(...)`. When the block ends without an error, nsqd has answered all commands.
    """

    def __init__(self, addresses: Sequence[str], options: SinkOptions, first: int = 0) -> None:
        """Begins with nsqd number `first`, so that the tasks of a job spread over all nsqds."""
        self._addresses = addresses
        self._access = options.addresses.access
        self._window_bytes = options.window_bytes
        self._retries = options.retries
        self._retry_interval = options.retry_interval
        self._next = first
        self._connection: PublishConnection | None = None
        self._unanswered: deque[_Unanswered] = deque()
        self._unanswered_bytes = 0
        self._failures = 0

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._read_answers(0)
        finally:
            if self._connection is not None:
                if kind is None:
                    idle_connections.put(self._connection, self._access)
                else:
                    self._connection.close()
                self._connection = None

    def publish(self, commands: bytes, number: int) -> None:
        """Send commands that nsqd answers `number` times. Raises PublishRefused or Unreachable."""
        self._unanswered.append(_Unanswered(commands, number))
        self._unanswered_bytes += len(commands)
        if self._connection is None:
            self._connect_and_resend()
        else:
            try:
                self._connection.send(commands)
            except ConnectionFailed as error:
                self._reconnect(error)
        self._read_answers(self._window_bytes)

    def _read_answers(self, max_unanswered: int) -> None:
        """Read answers until at most so many bytes are without one."""
        while self._unanswered_bytes > max_unanswered:
            connection = self._connection
            assert connection is not None
            oldest = self._unanswered[0]
            try:
                for _ in range(oldest.number):
                    connection.wait_for_ok()
            except ConnectionFailed as error:
                self._reconnect(error)
                continue
            self._failures = 0
            self._unanswered.popleft()
            self._unanswered_bytes -= len(oldest.commands)

    def _reconnect(self, error: ConnectionFailed) -> None:
        """Go on with the next nsqd, after a pause if all have failed. Raises Unreachable in the end."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._failures += 1
        if self._failures > self._retries * len(self._addresses):
            raise Unreachable(str(error)) from None
        if self._failures % len(self._addresses) == 0:
            time.sleep(self._retry_interval)
        self._connect_and_resend()

    def _connect_and_resend(self) -> None:
        address = self._addresses[self._next % len(self._addresses)]
        self._next += 1
        try:
            idle = idle_connections.take(address, self._access)
            self._connection = idle or PublishConnection(address, self._access)
            for each in self._unanswered:
                self._connection.send(each.commands)
        except ConnectionFailed as error:
            self._reconnect(error)
