import gzip
import json
from base64 import b64decode

import cramjam
import pytest

from nsquark.client import Message
from nsquark.tools.nsq_to_file.encoding import Encoder, Gzip, Plain, Zstd, jsonl_lines, plain_lines


class Source:
    address = "10.0.0.1:4150"


def message(body: bytes) -> Message:
    made = Message.__new__(Message)
    made.id, made.body, made.attempts, made.timestamp_ns = (
        b"0123456789abcdef",
        body,
        3,
        1_700_000_000_123_456_789,
    )
    made.source = Source()  # type: ignore[assignment]
    return made


def test_a_plain_line_is_the_body() -> None:
    assert plain_lines([message(b"a\0\r"), message(b"")]) == [b"a\0\r", b""]


def test_a_jsonl_line_has_the_body_as_text() -> None:
    (line,) = jsonl_lines([message("two\nlines, \u2028 and \N{SNOWMAN}".encode())])
    assert b"\n" not in line
    assert json.loads(line) == {
        "id": "0123456789abcdef",
        "timestamp_ns": 1_700_000_000_123_456_789,
        "attempts": 3,
        "node": "10.0.0.1:4150",
        "body": "two\nlines, \u2028 and \N{SNOWMAN}",
    }


@pytest.mark.parametrize("body", [b"\xff\n", "\N{SNOWMAN}".encode()[:-1], b"\xed\xa0\x80"])
def test_a_body_that_is_no_utf_8_is_under_another_key(body: bytes) -> None:
    document = json.loads(jsonl_lines([message(body)])[0])
    assert "body" not in document
    assert b64decode(document["body_base64"]) == body


@pytest.mark.parametrize(
    ("encoder", "decode"),
    [
        (Plain(), bytes),
        (Gzip(6), gzip.decompress),
        (Zstd(3), lambda data: bytes(cramjam.zstd.decompress(data))),
    ],
)
def test_each_member_can_be_read_alone_and_all_together(encoder: Encoder, decode: object) -> None:
    assert callable(decode)
    first = encoder.add(b"one\n") + encoder.add(b"two\n") + encoder.end_member()
    second = encoder.add(b"three\n") + encoder.end_member()
    assert decode(first) == b"one\ntwo\n"
    assert decode(second) == b"three\n"
    assert decode(first + second) == b"one\ntwo\nthree\n"
    assert decode(first + encoder.end_member()) == b"one\ntwo\n"
