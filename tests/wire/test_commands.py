"""Commands with bodies, and what is refused before it is sent."""

from __future__ import annotations

import struct

import pytest

from nsquark.errors import UsageError
from nsquark.wire.commands import body_bytes, line, pack_many, split_bodies


def test_lines() -> None:
    assert line("PUB", "orders#ephemeral") == b"PUB orders#ephemeral\n"
    assert line("DPUB", "t", 250) == b"DPUB t 250\n"


@pytest.mark.parametrize("topic", ["", "a b", "a\n", "x" * 65, "é", "#ephemeral"])
def test_a_topic_that_nsq_would_misread_is_refused(topic: str) -> None:
    with pytest.raises(UsageError, match="topic"):
        line("PUB", topic)


@pytest.mark.parametrize("body", [b"", b"12345", "text", None, 5])
def test_a_body_that_nsq_would_refuse_is_refused(body: bytes) -> None:
    with pytest.raises(UsageError, match="body"):
        body_bytes(body, 4)


def test_a_body_is_copied_if_it_could_change() -> None:
    body = bytearray(b"abc")
    taken = body_bytes(body, 4)
    body[0] = 0
    assert taken == b"abc"
    assert body_bytes(memoryview(b"abcd"), 4) == b"abcd"


def test_mpub_is_laid_out_as_nsq_reads_it() -> None:
    packed = pack_many(b"MPUB t\n", [b"a", bytearray(b"bb"), memoryview(b"ccc")], 10, 100)
    sizes = [struct.pack(">I", size) for size in (22, 3, 1, 2, 3)]
    assert (
        packed == b"MPUB t\n" + sizes[0] + sizes[1] + sizes[2] + b"a" + sizes[3] + b"bb" + sizes[4] + b"ccc"
    )


@pytest.mark.parametrize(
    ("bodies", "reason"),
    [
        ([], "no messages"),
        ([b"a", b""], "body 1 has 0 bytes"),
        ([b"a", b"b" * 11], "body 1 has 11 bytes"),
        ([b"a" * 10] * 10, "at once"),
        ([b"a", "text"], "bytes"),
    ],
)
def test_a_bad_mpub_is_refused(bodies: list[bytes], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        pack_many(b"MPUB t\n", bodies, 10, 100)


def test_bodies_are_split_where_they_must() -> None:
    bodies = [b"x" * size for size in (10, 10, 10, 50, 1)]
    assert [len(run) for run in split_bodies(bodies, 46)] == [3, 1, 1]
    assert split_bodies(bodies, 1000) == [bodies]
    for run in split_bodies(bodies[:3], 46):
        pack_many(b"", run, 100, 46)
