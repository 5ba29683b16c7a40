"""One nsqd: its commands, and what it has registered for as long as it is connected."""

from __future__ import annotations

import asyncio
import logging
import socket
from time import monotonic_ns
from typing import TYPE_CHECKING, cast

from nsquark.errors import BadChannel, BadTopic, Invalid, ProtocolError
from nsquark.gotext import format_duration
from nsquark.names import parse_name
from nsquark.net.addresses import name_of
from nsquark.wire import LOOKUP_OK, LookupParser, pack_answer, parse_peer

from .registrations import DirectoryFull, Peer, Registration

if TYPE_CHECKING:
    from .directory import Directory

logger = logging.getLogger(__name__)

HIGH_WATER = 64 << 10  # of answers that the peer does not read, before nothing more is read from it
IDENTIFY_WITHIN = 60.0  # from the connect; later there is no limit: an nsqd may have nothing to say
LINGER = 1.0  # how long a failed connection stays half open, so that its error is not lost in a reset
PATIENCE = 10.0  # how long a closed connection may take to read what it was sent
KEEPALIVE = 15  # seconds between probes: a machine that went away without a word is noticed


class Connection(asyncio.Protocol):
    __slots__ = ("_answers", "_directory", "_ended", "_parser", "_peer", "_timer", "_transport", "address")

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._parser = LookupParser()
        self._transport: asyncio.Transport
        self._peer: Peer | None = None
        self._answers: list[bytes] = []  # to what was read last
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        self.address = ""

    # ---- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(HIGH_WATER)
        _keep_alive(transport.get_extra_info("socket"))
        self.address = name_of(transport.get_extra_info("peername"))
        self._directory.connections.add(self)
        if self._directory.stopping:
            self.abort()
            return
        logger.info("TCP: new client(%s)", self.address)
        self._timer = asyncio.get_running_loop().call_later(IDENTIFY_WITHIN, self._too_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._directory.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None  # it refers to us
        self._forget()
        if self._parser.greeted:
            logger.info("PROTOCOL(V1): [%s] exiting ioloop", self.address)
        logger.info("client(%s) - %s", self.address, exc or "EOF")

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return  # what still comes is of no interest
        self._parser.feed(data)
        try:
            self._execute()
        except ProtocolError as error:
            self._fail(error)
        self._send_answers()

    def _execute(self) -> None:
        """Do every command that is all there. Raises ProtocolError."""
        parser = self._parser
        if not parser.greeted:
            if not parser.greet():
                return
            logger.info("CLIENT(%s): desired protocol magic '  V1'", self.address)
        while True:
            if parser.awaits_body:
                body = parser.next_body()
                if body is None:
                    return
                self._identify(body)
            else:
                params = parser.next_line()
                if params is None:
                    return
                handler = HANDLERS.get(params[0])
                if handler is None:
                    raise Invalid(b"invalid command " + params[0])
                handler(self, params)

    def eof_received(self) -> bool:
        error = self._parser.cut_short()
        if error is not None and not self._ended:
            self._fail(error)
            self._send_answers()
        self._end_within(PATIENCE)
        return False  # and so the transport closes, after what is written is out

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    # ---- answers and the end

    def _send_answers(self) -> None:
        if self._answers:
            self._transport.write(b"".join(self._answers))
            self._answers.clear()
        if self._ended and not self._transport.is_closing():
            # Closing with something of the peer unread would reset the connection and could take the answer
            # with it: close our half, and wait a little for the other.
            self._transport.write_eof()

    def _fail(self, error: ProtocolError) -> None:
        """Tell the peer. Every error of this protocol ends the connection."""
        logger.error("[%s] - %s", self.address, error)
        self._answers.append(pack_answer(error.pack()))
        self._forget()  # now, and not when the peer has read it
        self._end_within(LINGER)

    def _end_within(self, seconds: float) -> None:
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort)

    def _too_late(self) -> None:
        logger.info("client(%s) - closing: it did not IDENTIFY", self.address)
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._ended = True
        self._transport.abort()

    # ---- commands

    def exec_ping(self, _params: list[bytes]) -> None:
        if self._peer is not None:
            now = monotonic_ns()
            since = format_duration(now - self._peer.last_update)
            logger.info("CLIENT(%s): pinged (last ping %s)", self.address, since)
            self._peer.last_update = now
        self._answers.append(LOOKUP_OK)

    def exec_identify(self, _params: list[bytes]) -> None:
        if self._peer is not None:
            raise Invalid("cannot IDENTIFY again")
        self._parser.expect_body()

    def _identify(self, body: bytes) -> None:
        info = parse_peer(body)
        self._peer = Peer(self.address, info, monotonic_ns())
        if self._timer is not None:
            self._timer.cancel()
        logger.info(
            "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
            self.address,
            info.broadcast_address,
            info.tcp_port,
            info.http_port,
            info.version,
        )
        self._directory.registrations.add_peer(self._peer)
        self._log_client("REGISTER")
        self._answers.append(self._directory.identity)

    def exec_register(self, params: list[bytes]) -> None:
        peer = self._identified()
        topic, channel = _names(params)
        try:
            added = self._directory.registrations.register(topic, channel, peer)
        except DirectoryFull as error:
            raise Invalid(f"REGISTER refused: {error}") from None
        for registration in added:
            self._log_change("REGISTER", registration)
        self._answers.append(LOOKUP_OK)

    def exec_unregister(self, params: list[bytes]) -> None:
        peer = self._identified()
        topic, channel = _names(params)
        registrations = self._directory.registrations
        if channel:
            found = registrations.channels.get(topic, {}).get(channel)
        else:
            for each in registrations.channels_of(topic):
                if registrations.remove_producer(each, peer):
                    logger.warning(
                        "client(%s) unexpected UNREGISTER category:channel key:%s subkey:%s",
                        self.address,
                        topic,
                        each.channel,
                    )
            found = registrations.topics.get(topic)
        if found is not None and registrations.unregister(found, peer):
            self._log_change("UNREGISTER", found)
        self._answers.append(LOOKUP_OK)

    def _identified(self) -> Peer:
        if self._peer is None:
            raise Invalid("client must IDENTIFY")
        return self._peer

    def _forget(self) -> None:
        """The peer is no producer any more."""
        peer, self._peer = self._peer, None
        if peer is None:
            return
        for registration in self._directory.registrations.remove_peer(peer):
            self._log_change("UNREGISTER", registration)
        self._log_client("UNREGISTER")

    def _log_change(self, verb: str, registration: Registration) -> None:
        logger.info(
            "DB: client(%s) %s category:%s key:%s subkey:%s",
            self.address,
            verb,
            "channel" if registration.channel else "topic",
            registration.topic,
            registration.channel,
        )

    def _log_client(self, verb: str) -> None:
        logger.info("DB: client(%s) %s category:client key: subkey:", self.address, verb)


def _names(params: list[bytes]) -> tuple[str, str]:
    """The topic and the channel, if there is one, of a REGISTER or UNREGISTER."""
    command = params[0]
    if len(params) < 2:
        raise Invalid(command + b" insufficient number of params")
    topic = parse_name(params[1])
    if topic is None:
        raise BadTopic(command + b" topic name '" + params[1] + b"' is not valid")
    if len(params) < 3 or not params[2]:
        return topic, ""
    channel = parse_name(params[2])
    if channel is None:
        raise BadChannel(command + b" channel name '" + params[2] + b"' is not valid")
    return topic, channel


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE)


HANDLERS = {
    b"PING": Connection.exec_ping,
    b"IDENTIFY": Connection.exec_identify,
    b"REGISTER": Connection.exec_register,
    b"UNREGISTER": Connection.exec_unregister,
}
