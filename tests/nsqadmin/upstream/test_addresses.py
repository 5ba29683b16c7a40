"""Addresses of daemons as flags have them."""

from __future__ import annotations

import pytest

from nsquark.nsqadmin.upstream.addresses import endpoint, is_secure


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:4161", ("http", "127.0.0.1", 4161)),
        ("[fd00::5]:4161", ("http", "fd00::5", 4161)),
        ("http://lookup.example:4161", ("http", "lookup.example", 4161)),
        ("https://lookup.example:4162/", ("https", "lookup.example", 4162)),
        ("HTTPS://lookup.example", ("https", "lookup.example", 443)),
        ("https://[fd00::5]", ("https", "fd00::5", 443)),
        ("https://[fd00::5]:4162", ("https", "fd00::5", 4162)),
    ],
)
def test_an_address_has_a_scheme_a_host_and_a_port(address: str, expected: tuple[str, str, int]) -> None:
    assert endpoint(address) == expected
    assert is_secure(address) is (expected[0] == "https")


@pytest.mark.parametrize(
    "address",
    ["lookup.example", "ftp://lookup.example:21", "https://", "https://:1", "https://h:1/path", "https://u:p@h:1",
     "https://h:70000", "https://fd00::5", "https://h?x=1"],
)  # fmt: skip
def test_what_is_no_address_says_why(address: str) -> None:
    with pytest.raises(ValueError, match=r"address|port"):
        endpoint(address)
