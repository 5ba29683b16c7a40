"""The commands of a TCP client: a handler for each, found by the command's name.

A handler checks the state and the parameters in NSQ's order, and raises ProtocolError with NSQ's words. The
session keeps what the client is, topic and channel do the work, and `Publishing` has the publishes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from time import monotonic_ns
from typing import TYPE_CHECKING

from nsquark.errors import (
    AuthDisabled,
    BadChannel,
    BadTopic,
    DpubFailed,
    FinFailed,
    IdentifyFailed,
    Invalid,
    ProtocolError,
    PubFailed,
    ReqFailed,
    SubFailed,
    TouchFailed,
    Unauthorized,
)
from nsquark.names import parse_name
from nsquark.nsqd.core.consumer import Consumer
from nsquark.wire import (
    AUTH_BODY,
    CLOSE_WAIT,
    DPUB_BODY,
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
    Reqs,
    pack_response,
    parse_identify,
)

from .auth.authorizations import AuthServerNeeded
from .negotiation import Upgrades
from .publishing import Publishing, checked_name, quoted
from .session import CLOSING, INIT, SUBSCRIBED, Session

if TYPE_CHECKING:
    from nsquark.nsqd.broker import Broker
    from nsquark.nsqd.core.answers import AnswerQueue
    from nsquark.nsqd.core.channel import Channel

    from .connection import Connection

logger = logging.getLogger(__name__)

ERRORS_AT_ONCE = 100  # FINs or REQs of messages that are not in flight: about a millisecond
MAX_NS = (1 << 63) - 1  # the longest duration there is: as seconds, it is rounded up
_UINT64 = 1 << 64
_HEX = frozenset(b"0123456789abcdef")


class Commands:
    """Does the commands of one connection as the parser finds them."""

    __slots__ = ("_answers", "_body", "_broker", "_connection", "_parser", "_publishing", "_session")

    def __init__(
        self,
        connection: Connection,
        broker: Broker,
        parser: CommandParser,
        answers: AnswerQueue,
        publishing: Publishing,
    ) -> None:
        self._connection = connection
        self._session: Session = connection.session
        self._broker = broker
        self._parser = parser
        self._answers = answers
        self._publishing = publishing
        self._body: Callable[[memoryview], None] | None = None  # what to do with the body that comes next

    def let_go(self) -> None:
        """The connection is gone: refer to it no more."""
        self._body = None
        del self._connection

    def handle(self, event: Event) -> None:
        """Raises ProtocolError if the connection must end, AuthServerNeeded if the event must wait."""
        if type(event) is Pubs:
            self._publishing.publish_run(event)
        elif type(event) is Fins:
            self._finish(event)
        elif type(event) is Reqs:
            self._requeue(event)
        elif type(event) is Line:
            self._dispatch(event.params)
        elif type(event) is Mpub:
            self._publishing.publish_mpub(event)
        elif type(event) is Body:
            assert self._body is not None
            self._body(event.data)

    def _dispatch(self, params: list[bytes]) -> None:
        handler = HANDLERS.get(params[0])
        if self._session.needs_tls and params[0] != b"IDENTIFY":
            self._session.refuse_plain(params[0])
        if handler is None:
            raise Invalid(b"invalid command " + params[0])
        try:
            handler(self, params)
        except ProtocolError as error:
            if error.fatal:
                raise
            self._connection.fail(error)

    # ---- IDENTIFY and AUTH

    def exec_identify(self, params: list[bytes]) -> None:
        if self._session.state != INIT:
            raise Invalid("cannot IDENTIFY in current state")
        self._parser.expect_body(IDENTIFY_BODY, self._broker.options.max_body_size)
        self._body = self._identify

    def _identify(self, body: memoryview) -> None:
        session, options = self._session, self._broker.options
        asked = parse_identify(bytes(body))
        logger.info("PROTOCOL(V2): [%s] %s", session.remote_address, asked)
        session.identify(asked, options)
        upgrades = Upgrades.negotiate(asked, options, self._broker.certificates.offered)
        if upgrades.any and session.layers is not None:
            raise IdentifyFailed("IDENTIFY failed the connection is upgraded already")
        self._connection.heartbeat.set_interval(session.settings.heartbeat_interval)
        if not asked.feature_negotiation:
            self._answers.say(OK)
            return
        answer = pack_response(session.settings.pack(options, upgrades))
        if upgrades.any:
            self._connection.upgrade(upgrades, answer)
        else:
            self._answers.say(answer)

    def exec_auth(self, params: list[bytes]) -> None:
        if self._session.state != INIT:
            raise Invalid("cannot AUTH in current state")
        if len(params) != 1:
            raise Invalid("AUTH invalid number of parameters")
        self._parser.expect_body(AUTH_BODY, self._broker.options.max_body_size)
        self._body = self._auth

    def _auth(self, body: memoryview) -> None:
        auth = self._session.auth
        if auth is not None and auth.authed:
            raise Invalid("AUTH already set")
        if auth is None:
            raise AuthDisabled("AUTH disabled")
        raise AuthServerNeeded(self._session.credentials(bytes(body)), self._authed)

    def _authed(self) -> None:
        auth = self._session.auth
        assert auth is not None
        if not auth.authed:
            raise Unauthorized("AUTH no authorizations found")
        self._answers.say(pack_response(auth.pack()))

    def exec_nop(self, params: list[bytes]) -> None:
        pass

    # ---- publishing

    def exec_pub(self, params: list[bytes]) -> None:
        name = checked_name("PUB", params)
        self._parser.expect_body(PUB_BODY, self._broker.options.max_msg_size)
        self._body = lambda body: self._publishing.publish_one(name, body, 0, PubFailed)

    def exec_dpub(self, params: list[bytes]) -> None:
        options = self._broker.options
        if len(params) < 3:
            raise Invalid("DPUB insufficient number of parameters")
        name = checked_name("DPUB", params)
        delay = _parse_signed(params[2])
        if delay is None:
            raise Invalid(b"DPUB could not parse timeout " + params[2])
        limit = round(options.max_req_timeout * 1000)
        if not 0 <= delay <= limit:
            raise Invalid(f"DPUB timeout {delay % _UINT64} out of range 0-{limit}")  # NSQ tells it unsigned
        self._parser.expect_body(DPUB_BODY, options.max_msg_size)
        self._body = lambda body: self._publishing.publish_one(name, body, delay, DpubFailed)

    def exec_mpub(self, params: list[bytes]) -> None:
        self._publishing.begin_mpub(params)
        self._parser.expect_mpub()

    # ---- the subscription

    def exec_sub(self, params: list[bytes]) -> None:
        session, settings = self._session, self._session.settings
        if session.state != INIT:
            raise Invalid("cannot SUB in current state")
        if not settings.heartbeat_interval:
            raise Invalid("cannot SUB with heartbeats disabled")
        if len(params) < 3:
            raise Invalid("SUB insufficient number of parameters")
        topic_name, channel_name = parse_name(params[1]), parse_name(params[2])
        if topic_name is None:
            raise BadTopic(f"SUB topic name {quoted(params[1])} is not valid")
        if channel_name is None:
            raise BadChannel(f"SUB channel name {quoted(params[2])} is not valid")
        if session.auth is not None:
            session.auth.check("SUB", topic_name, channel_name)
        if self._broker.draining:
            raise SubFailed("SUB failed nsqd is stopping")
        topic = self._publishing.open_topic("SUB", topic_name)
        is_new = channel_name not in topic.channels
        channel = topic.channel(channel_name)
        if is_new and not topic.ephemeral:
            topic.journaling.flush()  # before the OK, which may leave before the turn ends
        limit = self._broker.options.max_channel_consumers
        if 0 < limit <= len(channel.consumers):
            raise SubFailed(f"SUB failed consumers for {topic_name}:{channel_name} exceeds limit of {limit}")
        connection = self._connection
        timeout = min(round(settings.msg_timeout * 1e9), MAX_NS)
        consumer = Consumer(connection, connection.write, timeout, settings.sample_rate, self._answers)
        consumer.writable = not connection.unread_since
        session.subscribe(channel, consumer)
        if topic.gate is not None and channel in topic.unconfirmed:  # by this client or another
            topic.gate.then(partial(self._answers.expect(SubFailed).settle, None))
        else:
            self._answers.say(OK)

    def exec_rdy(self, params: list[bytes]) -> None:
        session = self._session
        if session.state == CLOSING:
            return
        if session.state != SUBSCRIBED or session.channel is None or session.consumer is None:
            raise Invalid("cannot RDY in current state")
        count = _parse_signed(params[1]) if len(params) > 1 else 1
        if count is None:
            raise Invalid(b"RDY could not parse count " + params[1])
        limit = self._broker.options.max_rdy_count
        if not 0 <= count <= limit:
            raise Invalid(f"RDY count {count} out of range 0-{limit}")
        session.channel.set_ready(session.consumer, count)

    def exec_cls(self, params: list[bytes]) -> None:
        session = self._session
        if session.state != SUBSCRIBED or session.channel is None or session.consumer is None:
            raise Invalid("cannot CLS in current state")
        session.start_closing()
        self._answers.say(CLOSE_WAIT)

    # ---- answering messages

    def _message(self, command: str, params: list[bytes], least: int) -> tuple[Channel, Consumer, bytes]:
        channel, consumer = self._session.subscription(command)
        if len(params) < least:
            raise Invalid(f"{command} insufficient number of params")
        if len(params[1]) != 16:
            raise Invalid("invalid message ID")
        return channel, consumer, params[1]

    def _not_in_flight(self, error: type[ProtocolError], message: bytes) -> ProtocolError:
        """Why a message cannot be answered by this client."""
        number, channel = _parse_id(message), self._session.channel
        held = number is not None and channel is not None and channel.holder(number) is not None
        reason = b"client does not own message" if held else b"ID not in flight"
        command = error.code.removeprefix("E_").removesuffix("_FAILED").encode()
        return error(command + b" " + message + b" failed " + reason)

    def _finish(self, fins: Fins) -> None:
        channel, consumer = self._session.subscription("FIN")
        missing: list[int] = []
        for first, end in fins.ranges:
            missing += channel.finish(consumer, first, end)
        if missing:
            self._refuse(FinFailed, iter(missing))

    def _requeue(self, reqs: Reqs) -> None:
        channel, consumer = self._session.subscription("REQ")
        delay_ns = self._delay_ns(reqs.timeout)
        now = time.time_ns()
        missing: list[int] = []
        for first, end in reqs.ranges:
            missing += channel.requeue(consumer, first, end, delay_ns, now)
        if missing:
            self._refuse(ReqFailed, iter(missing))

    def _refuse(self, error: type[ProtocolError], missing: Iterator[int]) -> None:
        """Tell the client which answers failed. Of very many, the rest comes after others had a turn."""
        for number in islice(missing, ERRORS_AT_ONCE):
            self._connection.fail(self._not_in_flight(error, b"%016x" % number))
        following = next(missing, None)
        if following is not None:
            self._connection.put_off(partial(self._refuse, error, chain((following,), missing)))

    def exec_fin(self, params: list[bytes]) -> None:
        channel, consumer, message = self._message("FIN", params, 2)
        number = _parse_id(message)
        if number is None or channel.finish(consumer, number, number + 1):
            raise self._not_in_flight(FinFailed, message)

    def exec_req(self, params: list[bytes]) -> None:
        channel, consumer, message = self._message("REQ", params, 3)
        delay_ns = self._delay_ns(params[2])
        number = _parse_id(message)
        if number is None or channel.requeue(consumer, number, number + 1, delay_ns, time.time_ns()):
            raise self._not_in_flight(ReqFailed, message)

    def _delay_ns(self, timeout: bytes) -> int:
        """The timeout of a REQ, at most --max-req-timeout. Raises Invalid."""
        delay = _parse_signed(timeout)
        if delay is None:
            raise Invalid(b"REQ could not parse timeout " + timeout)
        limit = round(self._broker.options.max_req_timeout * 1000)
        if delay > limit:
            name = self._session.remote_address
            logger.info("PROTOCOL(V2): [%s] REQ timeout %d clamped to %d", name, delay, limit)
        return max(0, min(delay, limit)) * 1_000_000

    def exec_touch(self, params: list[bytes]) -> None:
        channel, consumer, message = self._message("TOUCH", params, 2)
        number = _parse_id(message)
        longest = round(self._broker.options.max_msg_timeout * 1e9)
        if number is None or not channel.touch(consumer, number, longest, monotonic_ns()):
            raise self._not_in_flight(TouchFailed, message)


HANDLERS: dict[bytes, Callable[[Commands, list[bytes]], None]] = {
    name.removeprefix("exec_").upper().encode(): getattr(Commands, name)
    for name in dir(Commands)
    if name.startswith("exec_")
}


def _parse_signed(digits: bytes) -> int | None:
    """A number as NSQ reads it: ASCII digits that wrap at 64 bits, the upper half negative; nothing is 0."""
    if not digits:
        return 0
    if not digits.isdigit():
        return None
    number = int(digits[-64:]) % _UINT64  # 10**64 is a multiple of 2**64: digits before these do not matter
    return number if number < _UINT64 // 2 else number - _UINT64


def _parse_id(message: bytes) -> int | None:
    return int(message, 16) if _HEX.issuperset(message) else None
