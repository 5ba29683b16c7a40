"""Addresses that a client accepts."""

from __future__ import annotations

import pytest

from nsquark.client.addresses import as_addresses, split_address
from nsquark.errors import UsageError


def test_one_or_several_each_once() -> None:
    assert as_addresses("a:1") == ("a:1",)
    assert as_addresses(["a:1", "b:2", "a:1"]) == ("a:1", "b:2")
    assert as_addresses(()) == ()


def test_brackets_are_no_part_of_the_host() -> None:
    assert split_address("[::1]:4150") == ("::1", 4150)
    assert split_address("a:4150") == ("a", 4150)


@pytest.mark.parametrize("address", ["", "a", "a:", ":1", "a:0", "a:b:1", "a:65536", "a:no-such-service"])
def test_a_wrong_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError):
        as_addresses([address])
