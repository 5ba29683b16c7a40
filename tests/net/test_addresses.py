"""`host:port` as Go reads and writes it."""

from __future__ import annotations

import pytest

from nsquark.net.addresses import is_path, join_address, name_of, split_address, split_off_port


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
        ("[::1:4160", "address [::1:4160: too many colons in address"),
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
    assert name_of(b"\0abstract") == "@abstract"


def test_a_port_may_be_split_off_as_it_is_written() -> None:
    assert split_off_port("[::1]:http") == ("::1", "http")
    assert split_off_port("::1:8125") == ("::1", "8125")
    with pytest.raises(ValueError, match="missing port"):
        split_off_port("host")


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("/run/nsqd.sock", True),
        ("nsqd.sock", True),
        ("/run/a:b/nsqd.sock", True),
        (":4150", False),
        ("[::1]", False),
        ("host:4150", False),
    ],
)
def test_a_path_is_told_from_an_address(address: str, path: bool) -> None:
    assert is_path(address) == path
