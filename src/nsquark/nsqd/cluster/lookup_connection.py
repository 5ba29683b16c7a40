"""One connection to an nsqlookupd: IDENTIFY, then every topic and channel, then the changes, and PINGs.

Changes are kept as names. Whether one is a REGISTER or an UNREGISTER is decided when it is sent.
At most `WINDOW` commands are unanswered, so a lookupd that does not read or answer costs a few kilobytes, and
only until it is given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import cast

from nsquark.errors import BadBody, ConnectionLost
from nsquark.nsqd.core.topic import Topic
from nsquark.wire import (
    LOOKUP_MAGIC,
    PING,
    AnswerParser,
    PeerInfo,
    pack_lookup_identify,
    pack_register,
    pack_unregister,
    parse_lookupd,
)

logger = logging.getLogger(__name__)

WINDOW = 128
PING_INTERVAL = 15.0
ANSWER_WITHIN = 1.0
# If nsqd itself stood still for a second, the answer is already there: it gets this long to be read.
GRACE = 0.1


class LookupConnection(asyncio.Protocol):
    """Once connected, `ended` says at last why it is over."""

    def __init__(self, address: str, document: bytes, topics: Mapping[str, Topic], max_answer: int) -> None:
        """`document` is what to say of ourselves; `topics` is what there is at any time."""
        self.address = address
        self.info: PeerInfo | None = None  # of the lookupd, once it has told
        self.identified = asyncio.Event()  # set once `info` is known, or never will be
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._document = document
        self._topics = topics
        self._parser = AnswerParser(max_answer)
        self._transport: asyncio.Transport | None = None
        self._changed: dict[tuple[str, str], None] = {}  # topic and channel ("" for the topic itself)
        self._sending = False
        self._unanswered = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._next_ping: asyncio.TimerHandle | None = None

    # ---- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask(LOOKUP_MAGIC + pack_lookup_identify(self._document), 1)
        self._expect_answer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc or "EOF"))

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        unanswered = self._unanswered
        try:
            for answer in self._parser.feed(data):
                self._take(answer)
        except (ConnectionLost, BadBody) as error:
            self._end(str(error))
            return
        if self._unanswered < unanswered:
            self._send()
            self._expect_answer()

    def _take(self, answer: bytes) -> None:
        if not self._unanswered:
            raise ConnectionLost("an answer to nothing")
        self._unanswered -= 1
        if self.info is not None:
            if answer != b"OK":
                logger.error("LOOKUPD(%s): answered %s", self.address, ascii(answer[:256]))
            return
        self.info = parse_lookupd(answer)
        self.identified.set()
        info = self.info
        logger.info("LOOKUPD(%s): peer is %s:%d", self.address, info.broadcast_address, info.http_port)
        for topic in self._topics.values():
            self._changed |= dict.fromkeys((topic.name, channel) for channel in topic.channels or ("",))
        self._next_ping = asyncio.get_running_loop().call_later(PING_INTERVAL, self._ping)

    # ---- what is told

    def changed(self, topic: str, channel: str) -> None:
        """This one has come or gone. Told at the end of the loop's turn, once for many."""
        if self.info is None:
            return  # everything will be told
        self._changed[topic, channel] = None
        if not self._sending:
            self._sending = True
            asyncio.get_running_loop().call_soon(self._send_soon)

    def _send_soon(self) -> None:
        self._sending = False
        before = self._unanswered
        self._send()
        if not before:
            self._expect_answer()

    def _send(self) -> None:
        commands: list[bytes] = []
        while self._changed and self._unanswered + len(commands) < WINDOW:
            topic, channel = next(iter(self._changed))
            del self._changed[topic, channel]
            commands.append(self._command(topic, channel))
        if commands:
            self._ask(b"".join(commands), len(commands))

    def _command(self, name: str, channel: str) -> bytes:
        topic = self._topics.get(name)
        there = topic is not None and (not channel or channel in topic.channels)
        command = pack_register(name, channel) if there else pack_unregister(name, channel)
        logger.info("LOOKUPD(%s): %s", self.address, command[:-1].decode())
        return command

    def _ping(self) -> None:
        self._next_ping = asyncio.get_running_loop().call_later(PING_INTERVAL, self._ping)
        if not self._unanswered:  # else it is known soon enough whether it lives
            self._ask(PING, 1)
            self._expect_answer()

    def _ask(self, commands: bytes, number: int) -> None:
        if self._transport is not None:
            self._unanswered += number
            self._transport.write(commands)

    # ---- time and the end

    def _expect_answer(self) -> None:
        """From here on the next answer has a second."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._unanswered and self._transport is not None:
            self._deadline = asyncio.get_running_loop().call_later(ANSWER_WITHIN, self._late)

    def _late(self) -> None:
        reason = f"no answer within {ANSWER_WITHIN:g}s"
        self._deadline = asyncio.get_running_loop().call_later(GRACE, self._end, reason)

    def close(self) -> None:
        self._end("closing")

    def _end(self, reason: str) -> None:
        for timer in (self._deadline, self._next_ping):
            if timer is not None:
                timer.cancel()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        self.identified.set()
        if not self.ended.done():
            self.ended.set_result(reason)
