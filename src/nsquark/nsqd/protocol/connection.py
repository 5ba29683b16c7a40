"""One TCP client: its commands, its state, its heartbeat.

The parser says what came, a handler per command (`exec_pub`, found by the command's name) does it, topic and
channel keep the rest. What the client is owed goes out in order through `Answers`; messages and heartbeats
may come between.

Upgrades (TLS, snappy, deflate) put `layers.Layers` between the transport and the connection, which then
writes to it and is fed by it. While one is made, and while an auth server is asked, nothing more is parsed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from time import monotonic_ns
from typing import TYPE_CHECKING

from nsquark.errors import (
    AuthDisabled,
    BadChannel,
    BadTopic,
    ConnectionLost,
    DpubFailed,
    FinFailed,
    IdentifyFailed,
    Invalid,
    MpubFailed,
    ProtocolError,
    PubFailed,
    ReqFailed,
    SubFailed,
    TouchFailed,
    Unauthorized,
)
from nsquark.gotext import quote
from nsquark.kernel import Buffer, Source
from nsquark.names import parse_name
from nsquark.net.layered_transport import Layers
from nsquark.nsqd.core.answers import Answers
from nsquark.nsqd.core.channel import Channel
from nsquark.nsqd.core.consumer import Consumer
from nsquark.nsqd.core.timers import NEVER, Timers
from nsquark.wire import (
    AUTH_BODY,
    CLOSE_WAIT,
    DPUB_BODY,
    HEARTBEAT,
    IDENTIFY_BODY,
    OK,
    PUB_BODY,
    Body,
    CommandParser,
    Event,
    Fins,
    Line,
    Mpub,
    Pubs,
    pack_error,
    pack_response,
    parse_identify,
)

from .auth import Ask
from .negotiation import DEFAULT_HEARTBEAT, Settings, Upgrades

if TYPE_CHECKING:
    from nsquark.nsqd.broker import Broker
    from nsquark.nsqd.core.topic import Topic

    from .auth_servers import Credentials

logger = logging.getLogger(__name__)

INIT, SUBSCRIBED, CLOSING = 0, 3, 4
HIGH_WATER = 256 << 10
UNREAD_ANSWERS = 1 << 20  # a client that does not read its answers is not read from beyond this
PARSE_NS = 2_000_000  # of one connection, before others have their turn
ERRORS_AT_ONCE = 100  # FINs of messages that are not in flight: about a millisecond
LINGER = 1.0  # how long a failed connection stays half open, so that its error is not lost in a reset
PATIENCE = 10.0  # how long a closed connection may take to read what it was sent
_HEX = frozenset(b"0123456789abcdef")
_UINT64 = 1 << 64
MAX_NS = (1 << 63) - 1  # the longest duration there is: as seconds, it is rounded up


class Connection(asyncio.BufferedProtocol):
    __slots__ = (
        "_answers", "_beats_at", "_body", "_broker", "_busy", "_eof", "_fd", "_linger", "_needs_tls",
        "_parser", "_paused_at", "_polled", "_pub_counts", "_pub_line", "_pub_topic", "_query", "_reading",
        "_settings", "_shared", "_source", "_timers", "_transport", "_upgrading", "_waiting_since", "_write",
        "auth", "channel", "client_id", "connect_time", "consumer", "deflate", "hostname", "layers",
        "remote_address", "snappy", "state", "tls", "user_agent", "wakes_at",
    )  # fmt: skip

    def __init__(self, broker: Broker, timers: Timers, shared: bytearray) -> None:
        """`shared` is the read buffer of all connections, `timers` count time.monotonic_ns."""
        options = broker.options
        self._broker = broker
        self._timers = timers
        self._parser = CommandParser(shared, options.max_msg_size, options.max_body_size)
        self._settings = Settings.default(options)
        self._transport: asyncio.Transport
        self._write: Callable[[Buffer], None]
        self._answers: Answers
        self._body: Callable[[memoryview], None] | None = None
        self._pub_line = b"\n"  # of the topic at hand; no command begins with this one
        self._pub_topic: Topic | None = None
        self._source: Source
        self._shared = shared
        self._fd = -1
        self._polled = False  # read by the broker's Poll, not by the transport
        self._reading = True
        self._busy = False  # with something that must end before more is parsed
        self._upgrading = False
        self._query: asyncio.Task[None] | None = None
        self._needs_tls = bool(options.tls_required)  # before anything but an IDENTIFY
        self._eof = False
        self._paused_at = 0
        self._linger: asyncio.TimerHandle | None = None
        self._waiting_since = self._beats_at = 0
        self.wakes_at = NEVER
        self.state = INIT
        self.channel: Channel | None = None
        self.consumer: Consumer | None = None
        self.client_id = self.hostname = self.user_agent = self.remote_address = ""
        self.connect_time = time.time()
        self.deflate = self.snappy = self.tls = False
        self.layers: Layers | None = None
        self.auth = broker.client_auth(self._auth_expired)
        self._pub_counts: defaultdict[str, int] = defaultdict(int)

    @property
    def pub_counts(self) -> dict[str, int]:
        """How many messages it has published to which topic."""
        self._count_taken()
        return self._pub_counts

    @property
    def sample_rate(self) -> int:
        return self._settings.sample_rate

    # ---- the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._write = transport.write
        answers = self._answers = Answers(transport.write, self._end)
        answers.send_past(transport)
        self._fd = answers.fd
        options = self._broker.options
        self._source = Source(answers, options.max_msg_size, options.max_body_size)
        transport.set_write_buffer_limits(HIGH_WATER)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple) and len(peer) >= 2:
            host = str(peer[0])
            self.client_id = self.hostname = host
            self.remote_address = f"[{host}]:{peer[1]}" if ":" in host else f"{host}:{peer[1]}"
        else:
            self.remote_address = "@"
        if self._broker.stopping:
            self.abort()
            return
        self._broker.connections.add(self)
        logger.info("TCP: new client(%s)", self.remote_address)
        now = monotonic_ns()
        self._waiting_since = now
        self._beats_at = now + round(DEFAULT_HEARTBEAT * 1e9)
        self._timers.schedule(self, self._beats_at)
        if self._broker.poll is not None:
            # The transport begins to read when this returns.
            asyncio.get_running_loop().call_soon(self._join_poll)

    def _join_poll(self) -> None:
        """Have the Poll read from here on."""
        may = self._reading and not self._polled and self.layers is None and not self._eof
        if may and not self._transport.is_closing():
            self._transport.pause_reading()
            self._poll()

    def _poll(self) -> None:
        assert self._broker.poll is not None
        try:
            self._broker.poll.add(self._fd, self, self._source)
        except OSError as error:  # the system has a limit for these, too
            logger.warning("PROTOCOL(V2): [%s] is read by the event loop: %s", self.remote_address, error)
            self._transport.resume_reading()
        else:
            self._polled = True

    def _leave_poll(self) -> None:
        if self._polled:
            assert self._broker.poll is not None
            self._broker.poll.remove(self._fd, self)
            self._polled = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave_poll()
        self._broker.connections.discard(self)
        self._timers.cancel(self)
        if self._linger is not None:
            self._linger.cancel()
        if self._query is not None:
            self._query.cancel()
        if self.auth is not None:
            self.auth.close()
        self._leave()
        self._break_cycles()
        logger.info("PROTOCOL(V2): [%s] exiting ioloop", self.remote_address)

    def _break_cycles(self) -> None:
        """Let go of every object that refers back to the connection.

        The connection is then freed with the last reference to it. The garbage collector would come much
        later: it counts objects, and a connection with megabytes of an MPUB is as few objects as any other.
        """
        self._answers.let_go()
        self._body = self._linger = self._query = self._pub_topic = None
        self.auth = self.layers = self.channel = self.consumer = None

    def _leave(self) -> None:
        """Nothing more is said, and no more messages are taken."""
        self._leave_source()
        self._parser.let_go()
        self._answers.ended = self._answers.closed = True
        if self.channel is not None and self.consumer is not None:
            channel, consumer, self.channel, self.consumer = self.channel, self.consumer, None, None
            channel.remove_consumer(consumer)

    def get_buffer(self, sizehint: int) -> Buffer:
        if self._answers.ended:
            return self._shared
        if self._source.following:
            kept = self._source.kept
            self._shared[: len(kept)] = kept
            return memoryview(self._shared)[len(kept) :]
        return self._parser.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """The transport has read something."""
        source = self._source
        if not source.following or self._answers.ended:
            self.received(nbytes)
            return
        end = len(source.kept) + nbytes
        before = source.taken
        taken = source.take(self._shared, 0, end, self._broker.turn.clock())
        if source.taken != before:
            source.heard = monotonic_ns()
        if taken < end:
            self.left(taken, end)

    def received(self, nbytes: int) -> None:
        """Something was read to the buffer of the parser."""
        if self._answers.ended:
            return  # what still comes is of no interest
        taken = 0
        if self.channel is not None and self._parser.idle:
            taken = self.channel.finish_read(self.consumer, self._shared, nbytes)
            if taken:
                self._waiting_since = monotonic_ns()
            if taken == nbytes:
                return
        self._parse(nbytes, taken)
        if self._paused_at:
            self._check_unread()

    def left(self, start: int, end: int) -> None:
        """Something was read, to the shared buffer, that the source does not take."""
        if self._answers.ended:
            return
        self._leave_source()
        self._parser.put_back(memoryview(self._shared)[start:end])
        self.received(0)

    def ended(self) -> None:
        """There is nothing more to read for the Poll: the transport finds out why."""
        self._polled = False
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def lost(self, error: int) -> None:
        """The socket is broken: nobody is there to read what the client is still owed."""
        self._polled = False
        logger.info("PROTOCOL(V2): [%s] closing: %s", self.remote_address, os.strerror(error))
        self.abort()

    def failed(self, error: Exception) -> None:
        """What was received brought up an error that nobody expected."""
        logger.error("PROTOCOL(V2): [%s] failed", self.remote_address, exc_info=error)
        self.abort()

    def _leave_source(self) -> None:
        """The next publish takes the long way."""
        self._count_taken()
        if kept := self._source.forget():
            self._parser.put_back(kept)

    def _count_taken(self) -> None:
        source = self._source
        if source.taken:
            assert self._pub_topic is not None
            self._pub_counts[self._pub_topic.name] += source.taken
            source.taken = 0

    def _parse(self, nbytes: int, taken: int = 0) -> None:
        """Do what has come, but for what is taken of it already."""
        answers, parser = self._answers, self._parser
        parser.received(nbytes)
        parser.start += taken
        event = None
        until = monotonic_ns() + PARSE_NS
        try:
            while parser.start < parser.end and not answers.ended:
                event = parser.next_event()
                if event is None:
                    return
                self._handle(event)
                self._waiting_since = monotonic_ns()
                if self._waiting_since >= until and parser.start < parser.end and not self._busy:
                    self._go_on_after_others()
                if self._busy:
                    parser.keep(event)
                    return
                if type(event) is Pubs:
                    self._follow(PubFailed)
                elif type(event) is Mpub and event.line:
                    self._follow(MpubFailed)
        except ProtocolError as error:
            self._fail(error)
        except Ask as ask:
            assert event is not None
            self._wait_for_auth(ask, parser.keep(event))
        except ConnectionLost as error:
            logger.info("PROTOCOL(V2): [%s] closing: %s", self.remote_address, error)
            self.close()

    def _go_on_after_others(self) -> None:
        """Very many small commands came in one read: the rest of them is for the next turn of the loop."""
        self._busy = True
        self._pause_reading()
        asyncio.get_running_loop().call_soon(self._refuse_more, iter(()))

    def _follow(self, error: type[ProtocolError]) -> None:
        """A publish came: where more of the same comes next, or nothing yet, it goes the short way."""
        topic, parser, source = self._pub_topic, self._parser, self._source
        if topic is None or not topic.intake.open or self._paused_at or self._answers.ended:
            return
        if parser.begins_with(self._pub_line):
            source.follow(topic.intake, self._pub_line, error)
            data, start, end = parser.hand_over()
            taken = source.take(data, start, end, self._broker.turn.clock())
            if taken < end - start:
                self._leave_source()
                parser.put_back(memoryview(data)[start + taken : end])

    def _handle(self, event: Event) -> None:
        if type(event) is Pubs:
            self._publish_run(event)
        elif type(event) is Fins:
            self._finish(event)
        elif type(event) is Line:
            self._dispatch(event.params)
        elif type(event) is Mpub:
            self._publish_mpub(event)
        elif type(event) is Body:
            self._take_body(event.data)

    def _check_unread(self) -> None:
        if self._transport.get_write_buffer_size() > UNREAD_ANSWERS:
            self._pause_reading()

    def _pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            if self._polled:
                self._leave_poll()
            else:
                self._transport.pause_reading()

    def _resume_reading(self) -> None:
        """Unless something else speaks against it."""
        if not self._reading and not self._busy and not self._paused_at and not self._transport.is_closing():
            self._reading = True
            if self._broker.poll is not None and self.layers is None and not self._eof:
                self._poll()
            else:
                self._transport.resume_reading()

    def eof_received(self) -> bool:
        self._eof = True
        error = self._cut_short()
        if self._answers.closed:
            self.close()
        elif error is not None:
            self._fail(error)
        else:
            self._parser.let_go()
            self._answers.say(b"", last=True)
        return True

    def _cut_short(self) -> ProtocolError | None:
        """What NSQ says, if anything, when nothing more comes."""
        if self._source.following:
            self._leave_source()
            self._parse(0)
        return None if self._answers.ended else self._parser.cut_short()

    def pause_writing(self) -> None:
        self._paused_at = monotonic_ns()
        self._leave_source()
        if self.consumer is not None:
            self.consumer.writable = False

    def resume_writing(self) -> None:
        self._paused_at = 0
        if self.consumer is not None and self.channel is not None:
            self.consumer.writable = True
            self.channel.has_room(self.consumer)
        self._resume_reading()

    # ---- the end of a connection

    def close(self) -> None:
        """Close after what has been written is out, or after a while if nobody reads it."""
        self._leave()
        self._leave_poll()
        if self._linger is not None:
            self._linger.cancel()
        self._transport.close()
        self._linger = asyncio.get_running_loop().call_later(PATIENCE, self._transport.abort)

    def abort(self) -> None:
        """Close at once."""
        self._leave()
        self._leave_poll()
        self._transport.abort()

    def _fail(self, error: ProtocolError) -> None:
        """Tell the client, and end the connection if the error is fatal."""
        logger.error("PROTOCOL(V2): [%s] - %s", self.remote_address, error)
        if error.fatal:
            self._parser.let_go()  # the answer may wait for others, and what has come is not parsed meanwhile
        self._answers.say(pack_error(error.pack()), last=error.fatal)

    def _end(self) -> None:
        """The last answer is written."""
        self._leave()
        if self._transport.is_closing():
            return
        if self._eof:
            self.close()
            return
        # Closing with something of the client unread would reset the connection and could take the answer
        # with it: close our half, and wait a little for the other.
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._linger = asyncio.get_running_loop().call_later(LINGER, self.close)

    # ---- time

    def wake(self, now: int) -> None:
        """The heartbeat, and the deadlines of reading and writing."""
        interval = round(self._settings.heartbeat_interval * 1e9)
        if not interval or self._transport.is_closing():
            return
        if self._paused_at and now - self._paused_at >= interval:
            logger.info("PROTOCOL(V2): [%s] closing: it does not read", self.remote_address)
            self.abort()
            return
        if self._busy:
            self._waiting_since = now  # for ourselves
        deadline = max(self._waiting_since, self._source.heard) + 2 * interval
        if now >= self._beats_at:
            if self._may_beat():
                self._write(HEARTBEAT)
            self._beats_at = now + interval
        if now >= deadline:
            error = self._cut_short()
            if error is not None:
                self._fail(error)
            else:
                logger.info("PROTOCOL(V2): [%s] closing: silent for too long", self.remote_address)
                self.close()
            return
        self._timers.schedule(self, min(self._beats_at, deadline))

    def _may_beat(self) -> bool:
        return (
            self._parser.greeted and not self._paused_at and not self._answers.ended and not self._upgrading
        )

    # ---- commands

    def _dispatch(self, params: list[bytes]) -> None:
        handler = HANDLERS.get(params[0])
        if self._needs_tls and params[0] != b"IDENTIFY":
            self._refuse_plain(params[0])
        if handler is None:
            raise Invalid(b"invalid command " + params[0])
        try:
            handler(self, params)
        except ProtocolError as error:
            if error.fatal:
                raise
            self._fail(error)

    def _refuse_plain(self, command: bytes) -> None:
        raise Invalid(b"cannot " + command + b" in current state (TLS required)")

    def _take_body(self, data: memoryview) -> None:
        assert self._body is not None
        self._body(data)

    def exec_identify(self, params: list[bytes]) -> None:
        if self.state != INIT:
            raise Invalid("cannot IDENTIFY in current state")
        self._parser.expect_body(IDENTIFY_BODY, self._broker.options.max_body_size)
        self._body = self._identify

    def _identify(self, body: memoryview) -> None:
        options = self._broker.options
        asked = parse_identify(bytes(body))
        self.client_id, self.hostname, self.user_agent = asked.client_id, asked.hostname, asked.user_agent
        logger.info("PROTOCOL(V2): [%s] %s", self.remote_address, asked)
        self._settings.apply(asked, options)
        upgrades = Upgrades.negotiate(asked, options, self._broker.certificates.offered)
        if upgrades.any and self.layers is not None:
            raise IdentifyFailed("IDENTIFY failed the connection is upgraded already")
        interval = self._settings.heartbeat_interval
        self._timers.cancel(self)
        if interval:
            self._beats_at = monotonic_ns() + round(interval * 1e9)
            self._timers.schedule(self, self._beats_at)
        if not asked.feature_negotiation:
            self._answers.say(OK)
            return
        answer = pack_response(self._settings.pack(options, upgrades))
        if not upgrades.any:
            self._answers.say(answer)
            return
        self._busy = self._upgrading = True
        self._pause_reading()
        self._parser.let_go()  # what came behind the IDENTIFY is of neither protocol
        self._answers.say_then(answer, partial(self._upgrade, upgrades))

    # ---- upgrades, see upgrade.py

    def _upgrade(self, upgrades: Upgrades) -> None:
        from .upgrades import upgrade

        upgrade(self, self._transport, self._broker, upgrades)

    def write_through(self, layers: Layers) -> None:
        self.layers = self._transport = layers
        self._write = layers.write
        self._answers.write_through(layers.write, layers.write_now)

    def upgraded(self, upgrades: Upgrades) -> None:
        self.tls, self.snappy, self.deflate = upgrades.tls, upgrades.snappy, upgrades.deflate
        self._needs_tls = self._needs_tls and not self.tls
        self._upgrading = False
        self._go_on()

    def upgrade_failed(self, error: ProtocolError) -> None:
        self._fail(error)

    def _go_on(self) -> None:
        """What had to end before more is parsed has ended."""
        self._busy = False
        self._waiting_since = monotonic_ns()
        self._parse(0)  # what was read meanwhile
        self._resume_reading()

    # ---- authorization, see client_auth.py

    def exec_auth(self, params: list[bytes]) -> None:
        if self.state != INIT:
            raise Invalid("cannot AUTH in current state")
        if len(params) != 1:
            raise Invalid("AUTH invalid number of parameters")
        self._parser.expect_body(AUTH_BODY, self._broker.options.max_body_size)
        self._body = self._auth

    def _auth(self, body: memoryview) -> None:
        auth = self.auth
        if auth is not None and auth.authed:
            raise Invalid("AUTH already set")
        if auth is None:
            raise AuthDisabled("AUTH disabled")
        raise Ask(self._credentials(bytes(body)), self._authed)

    def _credentials(self, secret: bytes) -> Credentials:
        from .auth_servers import Credentials

        peer = self._transport.get_extra_info("peername")
        tls = self.layers.tls if self.layers is not None else None
        name = tls.common_name if tls is not None else ""
        return Credentials(secret, str(peer[0]) if isinstance(peer, tuple) else "", self.tls, name)

    def _wait_for_auth(self, ask: Ask, event: Event) -> None:
        """Ask; then comes the event again, unless it is known what comes, and what was read behind it."""
        self._busy = True
        self._pause_reading()
        then = ask.then or partial(self._handle, event)
        self._query = asyncio.get_running_loop().create_task(self._ask(ask.who, then))

    async def _ask(self, who: Credentials | None, then: Callable[[], None]) -> None:
        assert self.auth is not None
        try:
            await self.auth.query(who)
            if not self._answers.ended:
                then()
        except ProtocolError as error:
            self._fail(error)
        self._query = None
        self._go_on()

    def _authed(self) -> None:
        assert self.auth is not None
        if not self.auth.authed:
            raise Unauthorized("AUTH no authorizations found")
        self._answers.say(pack_response(self.auth.pack()))

    def _auth_expired(self) -> None:
        """The next publish takes the long way, on which it is checked."""
        self._leave_source()
        self._pub_line = b"\n"

    def exec_sub(self, params: list[bytes]) -> None:
        options = self._broker.options
        if self.state != INIT:
            raise Invalid("cannot SUB in current state")
        if not self._settings.heartbeat_interval:
            raise Invalid("cannot SUB with heartbeats disabled")
        if len(params) < 3:
            raise Invalid("SUB insufficient number of parameters")
        topic_name, channel_name = parse_name(params[1]), parse_name(params[2])
        if topic_name is None:
            raise BadTopic(f"SUB topic name {_quoted(params[1])} is not valid")
        if channel_name is None:
            raise BadChannel(f"SUB channel name {_quoted(params[2])} is not valid")
        if self.auth is not None:
            self.auth.check("SUB", topic_name, channel_name)
        channel = self._open_topic("SUB", topic_name).channel(channel_name)
        limit = options.max_channel_consumers
        if 0 < limit <= len(channel.consumers):
            raise SubFailed(f"SUB failed consumers for {topic_name}:{channel_name} exceeds limit of {limit}")
        settings = self._settings
        timeout = min(round(settings.msg_timeout * 1e9), MAX_NS)
        self.consumer = Consumer(self, self._write, timeout, settings.sample_rate, self._answers)
        self.consumer.writable = not self._paused_at
        channel.add_consumer(self.consumer)
        self.channel = channel
        self.state = SUBSCRIBED
        self._answers.say(OK)

    def exec_rdy(self, params: list[bytes]) -> None:
        if self.state == CLOSING:
            return
        if self.state != SUBSCRIBED or self.channel is None or self.consumer is None:
            raise Invalid("cannot RDY in current state")
        count = 1
        if len(params) > 1:
            number = _parse_number(params[1])
            if number is None:
                raise Invalid(b"RDY could not parse count " + params[1])
            count = number if number < _UINT64 // 2 else number - _UINT64
        limit = self._broker.options.max_rdy_count
        if not 0 <= count <= limit:
            raise Invalid(f"RDY count {count} out of range 0-{limit}")
        self.channel.set_ready(self.consumer, count)

    def exec_cls(self, params: list[bytes]) -> None:
        if self.state != SUBSCRIBED or self.channel is None or self.consumer is None:
            raise Invalid("cannot CLS in current state")
        self.channel.set_ready(self.consumer, 0)
        self.state = CLOSING
        self._answers.say(CLOSE_WAIT)

    def exec_nop(self, params: list[bytes]) -> None:
        pass

    # ---- publishing

    def _topic_of(self, command: str, params: list[bytes]) -> Topic:
        """The topic to publish to, for a client that may."""
        if self._needs_tls:
            self._refuse_plain(params[0])
        name = self._topic_name(command, params)
        if self.auth is not None:
            self.auth.check(command, name)
        return self._open_topic(command, name)

    def _open_topic(self, command: str, name: str) -> Topic:
        try:
            return self._broker.topic(name)
        except OSError as error:
            raise FAILED[command](f"{command} failed {error.strerror or error}") from None

    def _topic_name(self, command: str, params: list[bytes]) -> str:
        if len(params) < 2:
            raise Invalid(f"{command} insufficient number of parameters")
        name = parse_name(params[1])
        if name is None:
            # NSQ says the code twice for MPUB
            twice = "E_BAD_TOPIC " if command == "MPUB" else ""
            raise BadTopic(f"{twice}{command} topic name {_quoted(params[1])} is not valid")
        return name

    def _publish_run(self, pubs: Pubs) -> None:
        topic, count = self._pub_topic, pubs.count
        if topic is None or topic.exiting or not pubs.data.startswith(self._pub_line, pubs.start):
            line = pubs.line
            topic = self._pub_topic = self._topic_of("PUB", _split(line))
            self._pub_line = line
        self._pub_counts[topic.name] += count
        topic.publish_pubs(pubs, self._answers.expect(PubFailed, count))

    def exec_pub(self, params: list[bytes]) -> None:
        name = self._topic_name("PUB", params)
        self._parser.expect_body(PUB_BODY, self._broker.options.max_msg_size)
        self._body = lambda body: self._publish(name, body, 0, PubFailed)

    def exec_dpub(self, params: list[bytes]) -> None:
        options = self._broker.options
        if len(params) < 3:
            raise Invalid("DPUB insufficient number of parameters")
        name = self._topic_name("DPUB", params)
        delay = _parse_number(params[2])
        if delay is None:
            raise Invalid(b"DPUB could not parse timeout " + params[2])
        limit = round(options.max_req_timeout * 1000)
        if delay >= _UINT64 // 2:
            delay -= _UINT64
        if not 0 <= delay <= limit:
            raise Invalid(f"DPUB timeout {delay} out of range 0-{limit}")
        self._parser.expect_body(DPUB_BODY, options.max_msg_size)
        self._body = lambda body: self._publish(name, body, delay, DpubFailed)

    def _publish(self, name: str, body: memoryview, delay_ms: int, error: type[ProtocolError]) -> None:
        command = "DPUB" if error is DpubFailed else "PUB"
        if self.auth is not None:
            self.auth.check(command, name)
        topic = self._open_topic(command, name)
        self._pub_counts[topic.name] += 1
        topic.publish([body], delay_ms / 1000, self._answers.expect(error))

    def exec_mpub(self, params: list[bytes]) -> None:
        topic = self._topic_of("MPUB", params)
        self._parser.expect_mpub()
        self._pub_topic, self._pub_line = topic, b"\n"

    def _publish_mpub(self, mpub: Mpub) -> None:
        topic = self._pub_topic
        if mpub.line and (topic is None or topic.exiting or mpub.line != self._pub_line):
            topic = self._pub_topic = self._topic_of("MPUB", _split(mpub.line))
            self._pub_line = mpub.line
        assert topic is not None
        answer = self._answers.expect(MpubFailed)
        if topic.exiting:  # deleted while the body came in
            answer.settle("exiting")
            return
        self._pub_counts[topic.name] += mpub.count
        topic.publish_mpub(mpub, answer)

    # ---- answering messages

    def _held(self, command: str) -> tuple[Channel, Consumer]:
        if self.state not in (SUBSCRIBED, CLOSING) or self.channel is None or self.consumer is None:
            if self._needs_tls:
                self._refuse_plain(command.encode())
            raise Invalid(f"cannot {command} in current state")
        return self.channel, self.consumer

    def _message(self, command: str, params: list[bytes], least: int) -> tuple[Channel, Consumer, bytes]:
        channel, consumer = self._held(command)
        if len(params) < least:
            raise Invalid(f"{command} insufficient number of params")
        if len(params[1]) != 16:
            raise Invalid("invalid message ID")
        return channel, consumer, params[1]

    def _not_held(self, error: type[ProtocolError], message: bytes) -> ProtocolError:
        number = _parse_id(message)
        held = number is not None and self.channel is not None and self.channel.holder(number) is not None
        reason = b"client does not own message" if held else b"ID not in flight"
        command = error.code.removeprefix("E_").removesuffix("_FAILED").encode()
        return error(command + b" " + message + b" failed " + reason)

    def _finish(self, fins: Fins) -> None:
        channel, consumer = self._held("FIN")
        missing: list[int] = []
        for first, end in fins.ranges:
            missing += channel.finish(consumer, first, end)
        if missing:
            self._refuse(iter(missing))

    def _refuse(self, missing: Iterator[int]) -> None:
        """Tell the client which FINs failed; of very many some, and the rest after others had their turn."""
        for number in islice(missing, ERRORS_AT_ONCE):
            self._fail(self._not_held(FinFailed, b"%016x" % number))
        following = next(missing, None)
        if following is not None:
            self._busy = True
            self._pause_reading()
            asyncio.get_running_loop().call_soon(self._refuse_more, chain((following,), missing))

    def _refuse_more(self, missing: Iterator[int]) -> None:
        if self._answers.ended:
            return
        self._busy = False
        self._refuse(missing)
        if not self._busy:
            self._go_on()

    def exec_fin(self, params: list[bytes]) -> None:
        channel, consumer, message = self._message("FIN", params, 2)
        number = _parse_id(message)
        if number is None or channel.finish(consumer, number, number + 1):
            raise self._not_held(FinFailed, message)

    def exec_req(self, params: list[bytes]) -> None:
        channel, consumer, message = self._message("REQ", params, 3)
        delay = _parse_number(params[2])
        if delay is None:
            raise Invalid(b"REQ could not parse timeout " + params[2])
        if delay >= _UINT64 // 2:
            delay = 0
        limit = round(self._broker.options.max_req_timeout * 1000)
        if delay > limit:
            logger.info("PROTOCOL(V2): [%s] REQ timeout %d clamped to %d", self.remote_address, delay, limit)
            delay = limit
        number = _parse_id(message)
        if number is None or not channel.requeue(consumer, number, delay * 1_000_000, time.time_ns()):
            raise self._not_held(ReqFailed, message)

    def exec_touch(self, params: list[bytes]) -> None:
        channel, consumer, message = self._message("TOUCH", params, 2)
        number = _parse_id(message)
        longest = round(self._broker.options.max_msg_timeout * 1e9)
        if number is None or not channel.touch(consumer, number, longest, monotonic_ns()):
            raise self._not_held(TouchFailed, message)


FAILED: dict[str, type[ProtocolError]] = {
    "PUB": PubFailed,
    "MPUB": MpubFailed,
    "DPUB": DpubFailed,
    "SUB": SubFailed,
}

HANDLERS: dict[bytes, Callable[[Connection, list[bytes]], None]] = {
    name.removeprefix("exec_").upper().encode(): getattr(Connection, name)
    for name in dir(Connection)
    if name.startswith("exec_")
}


def _split(line: bytes) -> list[bytes]:
    return line[:-1].removesuffix(b"\r").split(b" ")


def _quoted(name: bytes) -> str:
    return quote(name.decode("utf-8", "surrogateescape"))


def _parse_number(digits: bytes) -> int | None:
    """NSQ's numbers: ASCII digits, wrapping at 64 bits; nothing at all is 0."""
    if not digits:
        return 0
    if not digits.isdigit():
        return None
    return int(digits[-40:]) % _UINT64


def _parse_id(message: bytes) -> int | None:
    return int(message, 16) if _HEX.issuperset(message) else None
