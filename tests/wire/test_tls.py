"""The server's end of TLS, against Python's own client, without a socket."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from nsquark import kernel
from nsquark.errors import ConnectionLost
from nsquark.wire import tls
from nsquark.wire.tls import TlsStream, server_context, standard_name
from tests.security.certificates import Authority


class Ends:
    """Both ends of a connection, and the bytes between them."""

    def __init__(self, server: TlsStream, context: ssl.SSLContext) -> None:
        self.server = server
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def pass_on(self) -> bool:
        """Whether there was anything to pass on."""
        up, down = self.outgoing.read(), self.server.to_send()
        if up:
            self.server.received(up)
        if down:
            self.incoming.write(down)
        return bool(up or down)

    def shake(self) -> None:
        client_done = server_done = False
        while not (client_done and server_done):
            if not client_done:
                try:
                    self.client.do_handshake()
                    client_done = True
                except ssl.SSLWantReadError:
                    pass
            self.pass_on()
            server_done = server_done or self.server.handshake()
        self.pass_on()


@pytest.fixture(autouse=True, params=["direct calls", "pyOpenSSL"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How records are read and written; the results must be equal."""
    if request.param == "pyOpenSSL":
        monkeypatch.setattr(tls, "_direct_calls", lambda _: None)
    elif not kernel.COMPILED:
        pytest.skip("the compiled kernel is not in use")
    return str(request.param)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def ends(authority: Authority, *, policy: str = "", show: bool = False) -> Ends:
    cert, key = authority.sign("server")
    context = server_context(
        cert.read_bytes(), key.read_bytes(), ssl.TLSVersion.TLSv1_2, policy, authority.file.read_bytes()
    )
    shown = authority.sign("client", "the client") if show else None
    return Ends(TlsStream(context), authority.client_context(shown))


def test_what_is_said_comes_through_both_ways(authority: Authority) -> None:
    pair = ends(authority)
    pair.shake()
    assert pair.server.version == "TLS1.3"
    assert pair.server.cipher_suite == "TLS_AES_128_GCM_SHA256"
    assert pair.server.common_name == ""
    assert pair.server.read() == b""
    large = bytes(range(256)) * 2000
    pair.client.write(large)
    pair.pass_on()
    got = b""
    while piece := pair.server.read():
        assert len(piece) <= 16384
        got += piece
    assert got == large
    pair.server.write(memoryview(large))
    pair.pass_on()
    got = b""
    while len(got) < len(large):
        got += pair.client.read(1 << 20)
    assert got == large


def test_the_end_is_told_from_a_cut(authority: Authority) -> None:
    pair = ends(authority)
    pair.shake()
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.unwrap()
    pair.pass_on()
    assert pair.server.read() == b""
    assert pair.server.ended
    pair.server.close()
    pair.pass_on()
    assert pair.client.read(1) == b"" if pair.client.version() is None else True


def test_a_damaged_record_is_an_end(authority: Authority) -> None:
    pair = ends(authority)
    pair.shake()
    pair.client.write(b"hello")
    record = bytearray(pair.outgoing.read())
    record[-1] ^= 1
    pair.server.received(record)
    with pytest.raises(ConnectionLost, match="tls: "):
        pair.server.read()


@pytest.mark.parametrize("size", [1, 1000, 16384, 100_000])
def test_a_room_is_filled_with_as_many_records_as_there_are(authority: Authority, size: int) -> None:
    pair = ends(authority)
    pair.shake()
    said = bytes(range(256)) * 200
    for start in range(0, len(said), 300):
        pair.client.write(said[start : start + 300])
    pair.pass_on()
    room, got, all_of_it = memoryview(bytearray(size)), b"", False
    while not all_of_it:
        filled, all_of_it = pair.server.read_into(room)
        assert filled == size or all_of_it
        got += room[:filled]
    assert got == said
    assert pair.server.read_into(room) == (0, True)


def test_what_lies_before_a_damaged_record_is_read_first(authority: Authority) -> None:
    pair = ends(authority)
    pair.shake()
    pair.client.write(b"hello")
    good = pair.outgoing.read()
    pair.client.write(b"world")
    bad = bytearray(pair.outgoing.read())
    bad[-1] ^= 1
    pair.server.received(good + bad)
    room = memoryview(bytearray(100))
    assert pair.server.read_into(room) == (5, False)
    assert room[:5] == b"hello"
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="tls: "):
            pair.server.read_into(room)


def test_what_is_said_before_the_end_is_read(authority: Authority) -> None:
    pair = ends(authority)
    pair.shake()
    pair.client.write(b"hello")
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.unwrap()
    pair.pass_on()
    room = memoryview(bytearray(100))
    assert pair.server.read_into(room) == (5, True)
    assert pair.server.ended


def test_writing_after_a_broken_connection_is_an_error(authority: Authority) -> None:
    pair = ends(authority)
    pair.shake()
    pair.server.close()
    with pytest.raises(ConnectionLost, match="tls: "):
        pair.server.write(b"more")


def test_direct_calls_are_in_use_where_they_are_compiled(authority: Authority, way: str) -> None:
    """Otherwise a pyOpenSSL or cryptography with other private names would make TLS slower, unnoticed."""
    assert (ends(authority).server._records is not None) is (way == "direct calls")


def test_the_name_in_a_certificate(authority: Authority) -> None:
    pair = ends(authority, policy="require-verify", show=True)
    pair.shake()
    assert pair.server.common_name == "the client"


def test_a_certificate_that_is_not_shown(authority: Authority) -> None:
    pair = ends(authority, policy="require-verify")
    with pytest.raises(ConnectionLost, match="tls: peer did not return a certificate"):
        pair.shake()
    assert pair.server.to_send()  # the alert


@pytest.mark.parametrize(
    ("openssl", "standard"),
    [
        ("", ""),
        ("TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
        ("ECDHE-ECDSA-AES256-SHA", "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA"),
        ("ECDHE-RSA-AES256-SHA384", "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384"),
        ("ECDHE-ECDSA-CHACHA20-POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
        ("DHE-RSA-AES128-SHA256", "TLS_DHE_RSA_WITH_AES_128_CBC_SHA256"),
        ("AES128-GCM-SHA256", "TLS_RSA_WITH_AES_128_GCM_SHA256"),
        ("AES128-SHA", "TLS_RSA_WITH_AES_128_CBC_SHA"),
    ],
)
def test_names_of_cipher_suites(openssl: str, standard: str) -> None:
    assert standard_name(openssl) == standard
