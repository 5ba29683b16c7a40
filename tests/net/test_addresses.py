"""`host:port` as Go reads and writes it."""

from __future__ import annotations

import pytest

from nsquark.net.addresses import join_address, name_of, split_address


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:4160", "127.0.0.1", 4160),
        ("lookup1.example:0", "lookup1.example", 0),
        (":4160", "", 4160),
        ("host:", "host", 0),
        ("[::1]:4160", "::1", 4160),
        ("[fe80::1%eth0]:4160", "fe80::1%eth0", 4160),
        ("host:http", "host", 80),
        ("host:65535", "host", 65535),
    ],
)
def test_an_address(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("", "address : missing port in address"),
        ("host", "address host: missing port in address"),
        ("[::1]", "address [::1]: missing port in address"),
        ("::1:4160", "address ::1:4160: too many colons in address"),
        ("host:65536", "address 65536: invalid port"),
        ("host:99999999999999999999", "address 99999999999999999999: invalid port"),
        ("host:-1", "unknown port tcp/-1"),
        ("host:no-such-service", "unknown port tcp/no-such-service"),
        ("host:٤", "unknown port tcp/٤"),
        ("host:\0", "unknown port tcp/\0"),
    ],
)
def test_what_is_none(address: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        split_address(address)
    assert str(caught.value) == reason


def test_addresses_are_shown_as_go_shows_them() -> None:
    assert join_address("host", 1) == "host:1"
    assert join_address("::1", 1) == "[::1]:1"
    assert name_of(("127.0.0.1", 1)) == "127.0.0.1:1"
    assert name_of(("::1", 1, 0, 0)) == "[::1]:1"
    assert name_of("/tmp/x.sock") == "/tmp/x.sock"
    assert name_of("") == name_of(None) == "@"
