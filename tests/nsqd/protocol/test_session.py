"""Who a client is, and what it may do in which state."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from nsquark.errors import BadBody, Invalid
from nsquark.nsqd.options import Options, TlsRequired
from nsquark.nsqd.protocol.negotiation import Upgrades
from nsquark.nsqd.protocol.session import INIT, Session
from nsquark.wire import parse_identify


class Peer:
    """What a session wants to know of a transport."""

    def __init__(self, name: object) -> None:
        self._name = name

    def get_extra_info(self, what: str) -> object:
        assert what == "peername"
        return self._name


def session(name: object = ("10.0.0.1", 1234), **options: Any) -> Session:
    return Session(Options(**options), cast(asyncio.Transport, Peer(name)), None)


@pytest.mark.parametrize(
    ("name", "address", "host", "port"),
    [
        (("10.0.0.1", 1234), "10.0.0.1:1234", "10.0.0.1", "1234"),
        (("::1", 1234, 0, 0), "[::1]:1234", "::1", "1234"),
        ("", "@", "", ""),
        (None, "@", "", ""),
    ],
)
def test_before_identify_a_client_is_called_after_its_address(
    name: object, address: str, host: str, port: str
) -> None:
    made = session(name)
    assert (made.remote_address, made.client_id, made.hostname, made.peer_port) == (address, host, host, port)
    assert made.state == INIT


def test_identify_gives_it_names_and_settings() -> None:
    made = session()
    made.identify(parse_identify(b'{"client_id":"c","hostname":"h","user_agent":"u/1"}'), Options())
    assert (made.client_id, made.hostname, made.user_agent) == ("c", "h", "u/1")
    with pytest.raises(BadBody):
        made.identify(parse_identify(b'{"sample_rate":100}'), Options())


def test_tls_is_needed_until_it_is_there() -> None:
    made = session(tls_required=TlsRequired.TCP)
    made.upgraded(Upgrades(snappy=True))
    assert made.needs_tls
    assert made.snappy
    made.upgraded(Upgrades(tls=True))
    assert not made.needs_tls
    assert made.tls


@pytest.mark.parametrize(
    ("required", "error"),
    [
        (TlsRequired.NOBODY, "cannot FIN in current state"),
        (TlsRequired.TCP, "cannot FIN in current state (TLS required)"),
    ],
)
def test_a_client_without_a_subscription_answers_no_messages(required: TlsRequired, error: str) -> None:
    with pytest.raises(Invalid) as caught:
        session(tls_required=required).subscription("FIN")
    assert caught.value.pack() == b"E_INVALID " + error.encode()


def test_the_auth_servers_are_told_the_address_of_the_peer_whatever_identify_says() -> None:
    made = session()
    made.identify(parse_identify(b'{"client_id":"c","hostname":"h"}'), Options())
    who = made.credentials(b"secret")
    assert (who.secret, who.remote_ip, who.tls, who.common_name) == (b"secret", "10.0.0.1", False, "")
    assert "secret" not in repr(who)
