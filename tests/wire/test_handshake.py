"""The client's side of the handshake, fed whole and byte by byte, without a socket."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import pytest

from nsquark.errors import AuthFailed, BadBody, ConnectFailed, ConnectionLost, ProtocolError
from nsquark.wire.compression import Deflate, Snappy, Stream
from nsquark.wire.frame_parser import FrameParser
from nsquark.wire.frames import pack_error, pack_frame, pack_response
from nsquark.wire.handshake import (
    Authenticated,
    AuthSecretMissing,
    Event,
    Handshake,
    Identified,
    NeedData,
    NotOffered,
    Ready,
    StartCompression,
    StartTls,
    State,
    TlsNotOffered,
)
from nsquark.wire.message import Delivery

OK, HEARTBEAT = pack_response(b"OK"), pack_response(b"_heartbeat_")


def identified(**granted: object) -> bytes:
    return pack_response(json.dumps({"max_rdy_count": 100, "version": "1.3.0", **granted}).encode())


class Client:
    """A transport without a socket: reads what the test gives, notes the events and what was sent."""

    def __init__(self, asked: dict[str, object] | None = None, **options: object) -> None:
        self.parser: FrameParser[Delivery] = FrameParser(Delivery, None)
        self.asked = asked or {}
        self.handshake = Handshake("a:4150", self.parser, self.asked, **options)  # type: ignore[arg-type]
        self.sent = b""
        self.events: list[Event] = []
        self.stream: Stream | None = None
        self.run()

    def run(self) -> None:
        """As far as the bytes go."""
        while True:
            event = self.handshake.next_event()
            self.sent += self.handshake.data_to_send()
            if isinstance(event, NeedData):
                return
            self.events.append(event)
            if isinstance(event, StartCompression):
                self.stream = event.stream
            if isinstance(event, Ready):
                return

    def read(self, data: bytes) -> None:
        for piece in [data] if self.stream is None else self.stream.decompress(data):
            self.parser.feed(piece)
        self.run()

    @property
    def kinds(self) -> list[type[Event]]:
        return [type(event) for event in self.events]


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def test_the_magic_and_identify_come_first() -> None:
    client = Client({"client_id": "x"})
    body = b'{"client_id":"x"}'
    assert client.sent == b"  V2IDENTIFY\n" + struct.pack(">I", len(body)) + body
    assert client.handshake.state is State.IDENTIFYING
    assert not client.events


@pytest.mark.parametrize("size", [1, 10_000])
def test_a_plain_handshake(size: int) -> None:
    client = Client()
    for piece in pieces(identified(), size):
        client.read(piece)
    assert client.kinds == [Identified, Ready]
    assert client.handshake.response.max_rdy_count == 100
    assert client.handshake.response.version == "1.3.0"


def test_an_nsqd_that_does_not_negotiate_is_taken_as_it_is() -> None:
    client = Client({"tls_v1": False})
    client.read(OK)
    assert client.kinds == [Identified, Ready]
    assert client.handshake.response.max_rdy_count == 2500


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize("compression", ["snappy", "deflate"])
def test_all_layers_and_auth(compression: str, size: int) -> None:
    client = Client({"tls_v1": True, compression: True}, auth_secret="secret")
    for piece in pieces(identified(tls_v1=True, auth_required=True, **{compression: True}), size):
        client.read(piece)
    assert client.kinds == [Identified, StartTls]
    assert client.handshake.state is State.STARTING_TLS
    stream = Snappy() if compression == "snappy" else Deflate()
    client.sent = b""
    # The first compressed bytes come with the last ones that are not.
    client.read(OK + stream.compress(OK)[:7])
    assert client.kinds[2:] == [StartCompression]
    assert client.handshake.state is State.STARTING_COMPRESSION
    assert client.sent == b""
    stream = Snappy() if compression == "snappy" else Deflate()
    for piece in pieces(stream.compress(OK)[7:], size):
        client.read(piece)
    assert client.handshake.state is State.AUTHENTICATING
    assert client.sent == b"AUTH\n\0\0\0\6secret"
    client.read(stream.compress(pack_response(b'{"identity":"me","permission_count":1}')))
    assert client.events[3:] == [Authenticated("me"), Ready()]
    assert client.handshake.state is State.READY


def test_what_follows_the_handshake_stays_in_the_parser() -> None:
    client = Client()
    client.read(identified() + HEARTBEAT)
    assert client.kinds == [Identified, Ready]
    assert client.parser.pending == len(HEARTBEAT)


def test_a_heartbeat_is_answered_and_is_no_answer() -> None:
    client = Client()
    client.sent = b""
    client.read(HEARTBEAT)
    assert client.sent == b"NOP\n"
    client.read(HEARTBEAT + identified())
    assert client.sent == b"NOP\nNOP\n"
    assert client.kinds == [Identified, Ready]


# ---- refusals


def test_tls_that_is_not_offered_is_an_error() -> None:
    client = Client({"tls_v1": True}, auth_secret="secret")
    client.sent = b""
    with pytest.raises(TlsNotOffered, match="a:4150 does not offer TLS") as caught:
        client.read(identified(auth_required=True))
    assert caught.value.permanent
    assert client.sent == b""


def test_tls_that_is_not_required_and_compression_are_done_without() -> None:
    client = Client({"tls_v1": True, "snappy": True}, tls_required=False)
    client.read(identified())
    assert client.events[1:] == [NotOffered("TLS"), NotOffered("snappy"), Ready()]


def test_bytes_between_the_answer_and_tls_are_refused() -> None:
    client = Client({"tls_v1": True})
    with pytest.raises(ConnectionLost, match="bytes before the TLS handshake"):
        client.read(identified(tls_v1=True) + OK)


def test_auth_needs_a_secret() -> None:
    with pytest.raises(AuthSecretMissing, match="a:4150 wants an auth_secret"):
        Client().read(identified(auth_required=True))


def test_the_answer_to_identify_is_told_even_if_the_handshake_cannot_go_on() -> None:
    client = Client()
    client.parser.feed(identified(auth_required=True, http_port=4151))
    event = client.handshake.next_event()
    assert isinstance(event, Identified)
    assert event.response.http_port == 4151
    with pytest.raises(AuthSecretMissing):
        client.handshake.next_event()


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (pack_error(b"E_BAD_BODY IDENTIFY heartbeat interval (1) is invalid"), BadBody),
        (pack_error(b"E_AUTH_FAILED AUTH failed"), AuthFailed),
        (pack_error(b"E_OF_TOMORROW what is that"), ProtocolError),
    ],
)
def test_an_error_of_nsqd_is_raised(frame: bytes, kind: type[ProtocolError]) -> None:
    with pytest.raises(kind):
        Client().read(frame)


@pytest.mark.parametrize("answer", [b"{oops", b'{"max_rdy_count":"many"}', b'{"tls_v1":1}'])
def test_a_strange_answer_to_identify_is_refused(answer: bytes) -> None:
    with pytest.raises(ConnectFailed, match="answer to IDENTIFY"):
        Client().read(pack_response(answer))


@pytest.mark.parametrize(
    "data",
    [
        OK + OK,
        pack_frame(2, struct.pack(">qH16s", 1, 1, b"0123456789abcdef") + b"body"),
        pack_frame(7, b"?"),
    ],
)
def test_what_no_nsqd_says_in_a_handshake_is_refused(data: bytes) -> None:
    with pytest.raises(ConnectionLost):
        Client().read(data)


def test_the_wrong_word_inside_a_layer_is_refused() -> None:
    client = Client({"deflate": True})
    with pytest.raises(ConnectionLost, match="instead of OK inside deflate"):
        client.read(identified(deflate=True) + Deflate().compress(pack_response(b"NO")))


@pytest.mark.parametrize("answer", [b"OK", b"[]", b"{", b"[" * 100_000])
def test_a_strange_answer_to_auth_is_refused(answer: bytes) -> None:
    client = Client(auth_secret="s")
    client.read(identified(auth_required=True))
    with pytest.raises(ConnectionLost, match="answer to AUTH"):
        client.read(pack_response(answer))
