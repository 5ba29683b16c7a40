"""The bodies and delays that a request publishes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nsquark.http import HttpError
from nsquark.nsqd.http.publishes import parse_mpub, split_lines
from nsquark.nsqd.options import Options
from tests.daemon import sized

OPTIONS = Options(max_msg_size=10, max_body_size=40)


def packed(*bodies: bytes) -> bytes:
    return len(bodies).to_bytes(4, "big") + b"".join(map(sized, bodies))


def refused(parse: Callable[[], object]) -> str:
    with pytest.raises(HttpError) as caught:
        parse()
    return str(caught.value)


def test_a_text_body_is_split_at_its_line_feeds() -> None:
    assert split_lines(b"one\n\ntwo", OPTIONS) == [b"one", b"two"]
    assert split_lines(b"\n\n", OPTIONS) == []
    assert refused(lambda: split_lines(b"one\n" + bytes(11), OPTIONS)) == "413 MSG_TOO_BIG"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "BAD_BODY"),
        (b"\0\0\0\0", "BAD_BODY"),
        (b"\0\0\0\x01", "BAD_MESSAGE"),
        (packed(b""), "BAD_MESSAGE"),
        (packed(bytes(11)), "BAD_MESSAGE"),
        (packed(b"one")[:-1], "BAD_MESSAGE"),
    ],
)
@pytest.mark.parametrize("exact", [False, True])
def test_what_is_no_binary_body(body: bytes, code: str, exact: bool) -> None:
    assert refused(lambda: parse_mpub(body, OPTIONS, exact=exact)) == f"413 {code}"


def test_only_an_exact_body_may_have_nothing_behind_it() -> None:
    whole = packed(b"one", b"two")
    assert parse_mpub(whole, OPTIONS, exact=True).count == 2
    assert parse_mpub(whole + b"more", OPTIONS).count == 2
    assert refused(lambda: parse_mpub(whole + b"more", OPTIONS, exact=True)) == "413 BAD_BODY"
