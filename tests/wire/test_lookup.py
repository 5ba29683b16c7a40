"""The V1 protocol: whole, byte by byte, and with everything wrong that a peer can get wrong."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsquark.errors import BadBody, BadProtocol, ConnectionLost, Invalid, ProtocolError
from nsquark.wire import (
    AnswerParser,
    LookupParser,
    PeerInfo,
    pack_answer,
    pack_lookup_identify,
    pack_register,
    pack_unregister,
    parse_lookupd,
    parse_peer,
)

DOCUMENT = (
    b'{"broadcast_address":"nsqd1.example","hostname":"nsqd1","http_port":4151,"tcp_port":4150,'
    b'"version":"1.3.0"}'
)
IDENTIFY = b"IDENTIFY\n\0\0\0\x6b" + DOCUMENT


def pieces(data: bytes) -> Iterator[bytes]:
    return (data[at : at + 1] for at in range(len(data)))


def hear(parts: Iterable[bytes]) -> tuple[list[object], str]:
    """What is understood, bodies after an IDENTIFY included, and the error that ends it."""
    parser = LookupParser()
    heard: list[object] = []
    try:
        for part in parts:
            parser.feed(part)
            if not parser.greeted and not parser.greet():
                continue
            while True:
                got = parser.next_body() if parser.awaits_body else parser.next_line()
                if got is None:
                    break
                heard.append(got)
                if got == [b"IDENTIFY"]:
                    parser.expect_body()
    except ProtocolError as error:
        return heard, str(error)
    return heard, str(parser.cut_short() or "")


TRANSCRIPTS = {
    b"  V1": ([], ""),
    b"  V": ([], ""),
    b"  V1PING\nPING": ([[b"PING"]], ""),
    b"  V1 PING \r\n\n  \n": ([[b"PING"], [b""], [b""]], ""),
    b"  V1REGISTER a  b c\n": ([[b"REGISTER", b"a", b"", b"b", b"c"]], ""),
    b"  V1REGISTER\ta\n": ([[b"REGISTER\ta"]], ""),
    b"  V1" + IDENTIFY + b"REGISTER orders\n": ([[b"IDENTIFY"], DOCUMENT, [b"REGISTER", b"orders"]], ""),
    b"  V1IDENTIFY\n\0\0\0\0PING\n": ([[b"IDENTIFY"], b"", [b"PING"]], ""),
    b"  V1IDENTIFY\n": ([[b"IDENTIFY"]], "E_BAD_BODY IDENTIFY failed to read body size"),
    b"  V1IDENTIFY\n\0\0\0": ([[b"IDENTIFY"]], "E_BAD_BODY IDENTIFY failed to read body size"),
    b"  V1IDENTIFY\n\0\0\0\5ab": ([[b"IDENTIFY"]], "E_BAD_BODY IDENTIFY failed to read body"),
    b"  V1IDENTIFY\n\xff\xff\xff\xff": ([[b"IDENTIFY"]], "E_BAD_BODY IDENTIFY failed to read body"),
    b"  V1IDENTIFY\n\x7f\xff\xff\xff": ([[b"IDENTIFY"]], "E_BAD_BODY IDENTIFY failed to read body"),
    b"  V1IDENTIFY\n\0\x10\0\1": ([[b"IDENTIFY"]], "E_BAD_BODY IDENTIFY failed to read body"),
    b"  V2": ([], "E_BAD_PROTOCOL"),
    b"GET / HTTP/1.1\r\n": ([], "E_BAD_PROTOCOL"),
    b"  V1PING\n" + b"x" * 16385: ([[b"PING"]], "E_INVALID command line longer than 16384"),
    b"  V1" + b"x" * 16384 + b"\n": ([], "E_INVALID command line longer than 16384"),
    b"  V1" + b"x" * 16383 + b"\n": ([[b"x" * 16383]], ""),
}


@pytest.mark.parametrize("data", TRANSCRIPTS)
def test_a_transcript_means_the_same_whole_and_byte_by_byte(data: bytes) -> None:
    assert hear([data]) == TRANSCRIPTS[data]
    assert hear(pieces(data)) == TRANSCRIPTS[data]


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_mean_the_same_however_they_are_cut(data: bytes, cut: int) -> None:
    whole = hear([b"  V1" + data])
    assert hear([b"  V1" + data[:cut], data[cut:]]) == whole
    assert hear(pieces(b"  V1" + data)) == whole


def test_a_long_conversation_leaves_nothing_behind() -> None:
    parser = LookupParser()
    parser.feed(b"  V1")
    assert parser.greet()
    for _ in range(1000):
        parser.feed(b"REGISTER topic channel\nPI")
        parser.feed(b"NG\n")
        assert parser.next_line() == [b"REGISTER", b"topic", b"channel"]
        assert parser.next_line() == [b"PING"]
        assert parser.next_line() is None
    parser.feed(b"")
    assert len(parser._data) == 0


# ---- the document


def document(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "broadcast_address": "b",
        "hostname": "h",
        "tcp_port": 1,
        "http_port": 2,
        "version": "v",
    }
    return json.dumps({k: v for k, v in (fields | changes).items() if v is not ...}).encode()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (document(), PeerInfo("b", "h", 1, 2, "v")),
        (document(hostname=...), PeerInfo("b", "", 1, 2, "v")),
        (document(hostname=None), PeerInfo("b", "", 1, 2, "v")),
        (document(tcp_port=-1), PeerInfo("b", "h", -1, 2, "v")),
        (document(remote_address="forged", topics=[1]), PeerInfo("b", "h", 1, 2, "v")),
        (document().replace(b"tcp_port", b"TCP_Port"), PeerInfo("b", "h", 1, 2, "v")),
        (document().replace(b'"b"', b'"\xff"'), PeerInfo("\ufffd", "h", 1, 2, "v")),
    ],
)
def test_an_nsqd_says_who_it_is(body: bytes, expected: PeerInfo) -> None:
    assert parse_peer(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        *(document(**{name: ...}) for name in ("broadcast_address", "tcp_port", "http_port", "version")),
        *(document(**{name: None}) for name in ("broadcast_address", "tcp_port", "http_port", "version")),
        document(broadcast_address=""),
        document(tcp_port=0),
        b"null",
        b"{}",
    ],
)
def test_what_is_needed_must_be_there(body: bytes) -> None:
    with pytest.raises(BadBody, match=r"^E_BAD_BODY IDENTIFY missing fields$"):
        parse_peer(body)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"5", b'"x"', document() + b"x", b"\xff", b"[" * 100_000),
        document(tcp_port="1"),
        document(tcp_port=1.5),
        document(tcp_port=True),
        document(http_port=1 << 63),
        document(version=1),
        document(hostname=[]),
        document().replace(b": 1", b": NaN"),
    ],
)
def test_what_is_no_such_document_is_refused(body: bytes) -> None:
    with pytest.raises(BadBody, match=r"^E_BAD_BODY IDENTIFY failed to decode JSON body$"):
        parse_peer(body)


def test_nobody_has_a_name_of_a_kilobyte() -> None:
    with pytest.raises(BadBody, match="IDENTIFY field too long"):
        parse_peer(document(hostname="x" * 1025))


def test_a_lookupd_may_tell_less_of_itself() -> None:
    assert parse_lookupd(DOCUMENT) == PeerInfo("nsqd1.example", "nsqd1", 4150, 4151, "1.3.0")
    assert parse_lookupd(b"{}") == PeerInfo()
    for answer in (b"E_INVALID", b"OK", b"", b'{"http_port":"4161"}'):
        with pytest.raises(BadBody):
            parse_lookupd(answer)


# ---- what is sent


def test_the_exchange_of_the_specification_on_the_wire() -> None:
    assert pack_lookup_identify(DOCUMENT) == IDENTIFY
    assert pack_register("orders") == b"REGISTER orders\n"
    assert pack_register("orders", "archive") == b"REGISTER orders archive\n"
    assert pack_unregister("orders", "archive") == b"UNREGISTER orders archive\n"
    assert pack_unregister("orders") == b"UNREGISTER orders\n"
    assert pack_answer(b"OK") == b"\0\0\0\2OK"
    assert BadProtocol().pack() == b"E_BAD_PROTOCOL"
    assert Invalid(b"invalid command ").pack() == b"E_INVALID invalid command "


@given(st.lists(st.binary(max_size=50)), st.integers(1, 20))
def test_answers_come_out_as_they_went_in(answers: list[bytes], step: int) -> None:
    data = b"".join(map(pack_answer, answers))
    parser = AnswerParser(50)
    heard = [answer for at in range(0, len(data), step) for answer in parser.feed(data[at : at + step])]
    assert heard == answers


@pytest.mark.parametrize("size", [-1, -(1 << 31), 101, (1 << 31) - 1])
def test_an_answer_of_an_impossible_size_is_not_waited_for(size: int) -> None:
    parser = AnswerParser(100)
    assert list(parser.feed(pack_answer(b"OK") + b"\0\0")) == [b"OK"]
    assert list(parser.feed(b"\0\2OK")) == [b"OK"]
    with pytest.raises(ConnectionLost, match=f"answer of {size} bytes, limit is 100"):
        list(parser.feed(struct.pack(">i", size)))
