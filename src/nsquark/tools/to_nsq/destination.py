"""One nsqd that `to_nsq` publishes to: commands in order, several of them unanswered at a time.

The connection is made at the first command. One that is lost while nothing is unanswered is made again at the
next command, as NSQ's producers do. One that is lost with commands unanswered is an error: sending what
follows would change the order of the messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from nsquark.client.config import Config
from nsquark.client.connection import NsqdConnection, connect
from nsquark.client.message import Message
from nsquark.errors import ConnectionLost, ProtocolError

logger = logging.getLogger(__name__)

# What may be unanswered, in bytes of commands. A command is sent if there is less.
MAX_UNANSWERED: Final = 8 << 20


class Destination:
    """`failed` is called once, with the first error that an unanswered command ends with."""

    def __init__(self, address: str, config: Config, failed: Callable[[Exception], None]) -> None:
        self.address = address
        self.stored = 0  # messages that nsqd has answered with OK
        self.unanswered = 0  # messages
        self.error: Exception | None = None
        self._config = config
        self._failed = failed
        self._connection: NsqdConnection[Message] | None = None
        self._unanswered_bytes = 0
        self._changed = asyncio.Event()  # an answer has come, or none will

    @property
    def connected(self) -> bool:
        return self._connection is not None

    async def connect(self) -> None:
        """Connect, unless there is a connection. Raises ConnectFailed."""
        if self._connection is None and self.error is None:
            self._connection = await connect(self.address, self._config, Message, self)

    async def publish(self, command: bytes, messages: int) -> None:
        """Send a command with so many messages, once there is room for it. Raises what `failed` is told."""
        while True:
            if self.error is not None:
                raise self.error
            connection = self._connection
            if connection is None:
                await self.connect()
            elif not connection.open or self._unanswered_bytes >= MAX_UNANSWERED:
                await self._change()
            elif connection.write_resumed is not None:
                await asyncio.shield(connection.write_resumed)
            else:
                break
        self.unanswered += messages
        self._unanswered_bytes += len(command)
        answer = connection.ask_in_pieces((command,), len(command))
        answer.add_done_callback(partial(self._answered, messages, len(command)))
        connection.flush()

    async def answered(self) -> None:
        """Return when nothing is unanswered, or the nsqd has failed."""
        while self.unanswered and self.error is None:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _answered(self, messages: int, size: int, answer: asyncio.Future[bytes]) -> None:
        error = answer.exception()
        if self.error is not None:
            pass  # the error was told; what was sent behind the failed command may or may not be stored
        elif error is None:
            self.stored += messages
            self.unanswered -= messages
            self._unanswered_bytes -= size
        else:
            assert isinstance(error, Exception)
            self.error = error
            if isinstance(error, ProtocolError):
                self.unanswered = 0  # nsqd refused this command, and reads nothing behind it
            self._failed(error)
        self._changed.set()

    def report(self) -> str:
        """How many messages are stored here."""
        messages = "1 message" if self.stored == 1 else f"{self.stored} messages"
        text = f"{messages} stored at {self.address}"
        return f"{text} (and {self.unanswered} unanswered)" if self.unanswered else text

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            try:
                async with asyncio.timeout(0.2):
                    await self._connection.wait_closed()
            except TimeoutError:
                self._connection.abort()

    # ---- the calls of the connection

    def messages_received(self, messages: list[Message]) -> None:
        for message in messages:
            message.answered = True
        if self._connection is not None:
            self._connection.abort(ConnectionLost("a message without a subscription"))

    def answer_failed(self, error: ProtocolError) -> None:
        logger.warning("%s: %s", self.address, error)

    def connection_lost(self, error: Exception | None) -> None:
        self._connection = None
        if error is not None and not self.unanswered and self.error is None:
            logger.info("%s; connecting again at the next message", error)
        self._changed.set()
