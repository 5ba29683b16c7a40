"""The client's side of the V2 handshake, without IO: from the magic to a connection that takes commands.

    IDENTIFYING ─▶ IDENTIFIED ─▶ STARTING_TLS ─▶ STARTING_COMPRESSION ─▶ AUTHENTICATING ─▶ READY

The answer to IDENTIFY decides which of the states between IDENTIFIED and READY are passed over. These states
wait for one answer of nsqd each:

| state | the client has sent | nsqd answers |
|---|---|---|
| IDENTIFYING | the magic and IDENTIFY | a JSON document, or `OK` if it does not negotiate |
| STARTING_TLS | its TLS hello | `OK` inside TLS |
| STARTING_COMPRESSION | nothing | `OK`, compressed |
| AUTHENTICATING | AUTH | a JSON document |

The transport feeds what it reads to the `FrameParser`, calls `next_event`, sends `data_to_send`, and does
what the event asks for: read more bytes, wrap the connection in TLS, or switch the compression on.
"""

from __future__ import annotations

import enum
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nsquark.errors import ConnectFailed, ConnectionLost, parse_error

from .commands import NOP, pack_command
from .compression import Deflate, Snappy, Stream
from .frame_parser import Error, FrameParser, Messages, Oks
from .frames import HEARTBEAT_DATA, OK_DATA
from .identify import IdentifyResponse, parse_identify_response
from .parser import MAGIC


class State(enum.Enum):
    IDENTIFYING = enum.auto()
    IDENTIFIED = enum.auto()
    STARTING_TLS = enum.auto()
    STARTING_COMPRESSION = enum.auto()
    AUTHENTICATING = enum.auto()
    READY = enum.auto()


@dataclass(slots=True)
class NeedData:
    """Read more bytes from the connection, feed them to the parser, and call `next_event` again."""


@dataclass(slots=True)
class Identified:
    """nsqd has answered IDENTIFY."""

    response: IdentifyResponse


@dataclass(slots=True)
class NotOffered:
    """The client asked for a feature (`TLS`, `snappy` or `deflate`) and goes on without it."""

    feature: str


@dataclass(slots=True)
class StartTls:
    """Wrap the connection in TLS before the next byte is sent or read."""


@dataclass(slots=True)
class StartCompression:
    """Send and read every further byte through `stream`. Bytes that were read already are in the parser."""

    stream: Stream


@dataclass(slots=True)
class Authenticated:
    """nsqd has accepted the secret of AUTH."""

    identity: object


@dataclass(slots=True)
class Ready:
    """The connection takes commands."""


Event = NeedData | Identified | NotOffered | StartTls | StartCompression | Authenticated | Ready


class TlsNotOffered(ConnectFailed):
    """The client requires TLS and nsqd does not offer it."""


class AuthSecretMissing(ConnectFailed):
    """nsqd requires AUTH and the client has no secret."""


class Handshake:
    """One handshake, on the connection whose bytes `parser` is fed with.

    `identify` is the document of IDENTIFY; what it asks for (`tls_v1`, `snappy`, `deflate`) decides which
    answers are accepted. `address` names the nsqd in errors.
    """

    def __init__(
        self,
        address: str,
        parser: FrameParser[Any],
        identify: Mapping[str, object],
        *,
        tls_required: bool = True,
        auth_secret: str | None = None,
    ) -> None:
        self.state = State.IDENTIFYING
        self.response = IdentifyResponse()
        self._address = address
        self._parser = parser
        self._identify = identify
        self._tls_required = tls_required
        self._auth_secret = auth_secret
        self._events: deque[Event] = deque()
        document = json.dumps(identify, separators=(",", ":")).encode()
        self._to_send = [MAGIC, pack_command(b"IDENTIFY\n", document)]

    def data_to_send(self) -> bytes:
        """The bytes to send before anything else is done. Each is handed out once."""
        data = b"".join(self._to_send)
        self._to_send.clear()
        return data

    def next_event(self) -> Event:
        """What the transport does next.

        Raises the ProtocolError by which nsqd refuses the client, TlsNotOffered, AuthSecretMissing, and
        ConnectionLost for an answer that no nsqd gives.
        """
        while not self._events and self.state is not State.READY:
            if self.state is State.IDENTIFIED:
                self._start_tls()
                continue
            response = self._next_response()
            if response is None:
                return NeedData()
            self._answered(response)
        return self._events.popleft() if self._events else Ready()

    def _next_response(self) -> bytes | None:
        """The next answer of nsqd; None when the parser needs more bytes."""
        while (event := self._parser.next_event(0.0)) is not None:
            match event:
                case Error(data):
                    raise parse_error(data)
                case Messages(run):
                    for message in run:
                        message.answered = True  # nsqd will deliver it again
                    raise ConnectionLost("a message before the end of the handshake")
                case Oks(count):
                    if count > 1:
                        raise ConnectionLost("an OK to no question")
                    return OK_DATA
            if event.data != HEARTBEAT_DATA:
                return event.data
            self._to_send.append(NOP)
        return None

    # ---- the states

    def _answered(self, response: bytes) -> None:
        if self.state is State.IDENTIFYING:
            self._identified(response)
        elif self.state is State.STARTING_TLS:
            self._expect_ok(response, "TLS")
            self._start_compression()
        elif self.state is State.STARTING_COMPRESSION:
            self._expect_ok(response, "snappy" if self.response.snappy else "deflate")
            self._authenticate()
        else:
            self._authenticated(response)

    def _identified(self, response: bytes) -> None:
        try:
            self.response = parse_identify_response(response)
        except ValueError as error:
            raise ConnectFailed(f"{self._address}: {error}") from None
        self.state = State.IDENTIFIED
        self._events.append(Identified(self.response))

    def _start_tls(self) -> None:
        if not self._identify.get("tls_v1"):
            self._start_compression()
        elif self.response.tls_v1:
            # nsqd sends nothing between its answer and the client's TLS hello.
            if self._parser.pending:
                raise ConnectionLost("bytes before the TLS handshake")
            self.state = State.STARTING_TLS
            self._events.append(StartTls())
        elif self._tls_required:
            raise TlsNotOffered(f"{self._address} does not offer TLS, which is required", permanent=True)
        else:
            self._events.append(NotOffered("TLS"))
            self._start_compression()

    def _start_compression(self) -> None:
        granted = self.response
        if granted.snappy or granted.deflate:
            stream: Stream = Snappy() if granted.snappy else Deflate(max(1, granted.deflate_level))
            # nsqd's first compressed bytes may have come in the same read as its answer.
            for piece in stream.decompress(self._parser.take_rest()):
                self._parser.feed(piece)
            self.state = State.STARTING_COMPRESSION
            self._events.append(StartCompression(stream))
            return
        for feature in ("snappy", "deflate"):
            if self._identify.get(feature):
                self._events.append(NotOffered(feature))
        self._authenticate()

    def _authenticate(self) -> None:
        if not self.response.auth_required:
            self.state = State.READY
            return
        if self._auth_secret is None:
            raise AuthSecretMissing(f"{self._address} wants an auth_secret", permanent=True)
        self._to_send.append(pack_command(b"AUTH\n", self._auth_secret.encode()))
        self.state = State.AUTHENTICATING

    def _authenticated(self, response: bytes) -> None:
        try:
            identity = json.loads(response).get("identity")
        except (ValueError, AttributeError, RecursionError):
            raise ConnectionLost("the answer to AUTH is no JSON object") from None
        self._events.append(Authenticated(identity))
        self.state = State.READY

    def _expect_ok(self, response: bytes, layer: str) -> None:
        if response != OK_DATA:
            raise ConnectionLost(f"{response[:100]!r} instead of OK inside {layer}")
