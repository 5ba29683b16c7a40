"""The commands by name, and numbers as NSQ reads them. What each command answers is in test_bad_input.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsquark.nsqd.protocol.commands import HANDLERS, _parse_id, _parse_signed


def test_every_command_of_nsq_has_its_handler() -> None:
    commands = "IDENTIFY AUTH SUB RDY CLS NOP PUB DPUB MPUB FIN REQ TOUCH"
    assert set(HANDLERS) == set(commands.encode().split())


@given(st.integers(min_value=0, max_value=10**90))
def test_a_number_wraps_at_64_bits(number: int) -> None:
    wrapped = number % (1 << 64)
    assert _parse_signed(b"%d" % number) == (wrapped if wrapped < 1 << 63 else wrapped - (1 << 64))


@pytest.mark.parametrize("text", [b"-1", b"+1", b"1_0", b" 1", b"1.0", b"0x1", "١".encode()])
def test_what_is_no_number(text: bytes) -> None:
    assert _parse_signed(text) is None


def test_nothing_counts_as_zero() -> None:
    assert _parse_signed(b"") == 0


@pytest.mark.parametrize("text", [b"0123456789abcdeF", b"0x23456789abcdef", b"0123_56789abcdef"])
def test_an_id_is_lower_case_hexadecimal(text: bytes) -> None:
    assert _parse_id(text) is None
    assert _parse_id(b"0123456789abcdef") == 0x0123456789ABCDEF
