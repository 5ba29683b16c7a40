"""Commands out of bytes: the same ones, whatever pieces the bytes come in."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark.errors import BadProtocol, ConnectionLost, ProtocolError
from nsquark.wire import (
    AUTH_BODY,
    DPUB_BODY,
    IDENTIFY_BODY,
    PUB_BODY,
    Body,
    CommandParser,
    Fins,
    Line,
    Mpub,
    Pubs,
    Reqs,
)
from nsquark.wire.parser import MAX_LINE
from tests.wire.transcripts import (
    MAGIC,
    MAX_BODY_SIZE,
    MAX_MSG_SIZE,
    RULES,
    Peer,
    bytewise,
    cut,
    fin,
    hear,
    mpub_body,
    sized,
)

# name: (what the client sends, what is understood, the error that ends it, the one if nothing more comes)
Commands = list[tuple[object, ...]]
TRANSCRIPTS: dict[str, tuple[bytes, Commands, str, str]] = {
    "nothing": (b"", [], "", ""),
    "half a magic": (b"  V", [], "", ""),
    "the magic alone": (MAGIC, [], "", ""),
    "a producer": (
        MAGIC + b"PUB t\n" + sized(b"one") + b"PUB t\n" + sized(b"two") + b"PUB u\n" + sized(b"\n\n"),
        [(b"PUB", b"t", b"one"), (b"PUB", b"t", b"two"), (b"PUB", b"u", b"\n\n")],
        "",
        "",
    ),
    "a consumer": (
        MAGIC
        + b"IDENTIFY\n"
        + sized(b"{}")
        + b"SUB t ch\nRDY 5\n"
        + fin(1)
        + fin(2)
        + fin(4)
        + b"REQ 0000000000000003 0\nTOUCH 0000000000000005\n"
        + fin(2**64 - 1)
        + fin(0)
        + b"NOP\nCLS\n",
        [
            (b"IDENTIFY", b"{}"),
            (b"SUB", b"t", b"ch"),
            (b"RDY", b"5"),
            (b"FIN", 1),
            (b"FIN", 2),
            (b"FIN", 4),
            (b"REQ", b"0000000000000003", b"0"),
            (b"TOUCH", b"0000000000000005"),
            (b"FIN", 2**64 - 1),
            (b"FIN", 0),
            (b"NOP",),
            (b"CLS",),
        ],
        "",
        "",
    ),
    "batches": (
        MAGIC
        + b"MPUB t\n"
        + sized(mpub_body(b"one", b"two", b"MPUB t\n"))
        + b"NOP\nMPUB t x\n"
        + sized(mpub_body(b"x")),
        [(b"MPUB", b"t", [b"one", b"two", b"MPUB t\n"]), (b"NOP",), (b"MPUB", b"t", b"x", [b"x"])],
        "",
        "",
    ),
    "the other bodies": (
        MAGIC + b"DPUB t 100\n" + sized(b"later") + b"AUTH\n" + sized(b"secret") + b"NOP\n",
        [(b"DPUB", b"t", b"100", b"later"), (b"AUTH", b"secret"), (b"NOP",)],
        "",
        "",
    ),
    "carriage returns": (
        MAGIC + b"NOP\r\nNOP\r\r\nPUB t\r\n" + sized(b"x\r\n") + b"FIN 0000000000000001\r\n\r\n\n",
        [(b"NOP",), (b"NOP\r",), (b"PUB", b"t", b"x\r\n"), (b"FIN", b"0000000000000001"), (b"",), (b"",)],
        "",
        "",
    ),
    "spaces": (
        MAGIC + b"SUB  t c \n NOP\nPUB  \n" + sized(b"x") + b"nop\n",
        [(b"SUB", b"", b"t", b"c", b""), (b"", b"NOP"), (b"PUB", b"", b"", b"x"), (b"nop",)],
        "",
        "",
    ),
    "FINs that are none": (
        MAGIC
        + fin(7)
        + b"FIN 000000000000000G\n"
        + fin(8)
        + b"FIN 8\nFIN 0000000000000009 x\nFIN\n"
        + fin(9),
        [
            (b"FIN", 7),
            (b"FIN", b"000000000000000G"),
            (b"FIN", 8),
            (b"FIN", b"8"),
            (b"FIN", b"0000000000000009", b"x"),
            (b"FIN",),
            (b"FIN", 9),
        ],
        "",
        "",
    ),
    "bytes that are no text": (MAGIC + b"\xff\x00 \x80\n", [(b"\xff\x00", b"\x80")], "", ""),
    "long lines": (
        MAGIC + b"PUB " + b"t" * 90 + b"\n" + sized(b"x") + b"N" * (MAX_LINE - 1) + b"\nNOP\n",
        [(b"PUB", b"t" * 90, b"x"), (b"N" * (MAX_LINE - 1),), (b"NOP",)],
        "",
        "",
    ),
    "too long a line": (
        MAGIC + b"NOP\n" + b"N" * MAX_LINE,
        [(b"NOP",)],
        "ConnectionLost: a line without end",
        "",
    ),
    "too long a line with its end": (
        MAGIC + b"N" * MAX_LINE + b"\n",
        [],
        "ConnectionLost: a line without end",
        "",
    ),
    "half a line": (MAGIC + b"NOP\nNO", [(b"NOP",)], "", ""),
    "the wrong magic": (b"  V1NOP\n", [], "BadProtocol: E_BAD_PROTOCOL", ""),
    "HTTP": (b"GET / HTTP/1.0\r\n\r\n", [], "BadProtocol: E_BAD_PROTOCOL", ""),
    "an MPUB in an MPUB's clothes": (  # the outer size lies: the inner ones count
        MAGIC + b"MPUB t\n" + struct.pack(">i", 1) + mpub_body(b"one", b"two") + b"NOP\n",
        [(b"MPUB", b"t", [b"one", b"two"]), (b"NOP",)],
        "",
        "",
    ),
    "an outer size that promises more": (
        MAGIC + b"MPUB t\n" + struct.pack(">i", MAX_BODY_SIZE) + mpub_body(b"one") + b"NOP\n",
        [(b"MPUB", b"t", [b"one"]), (b"NOP",)],
        "",
        "",
    ),
    "a full body": (
        MAGIC + b"PUB t\n" + sized(b"x" * MAX_MSG_SIZE) + b"IDENTIFY\n" + sized(b" " * MAX_BODY_SIZE),
        [(b"PUB", b"t", b"x" * MAX_MSG_SIZE), (b"IDENTIFY", b" " * MAX_BODY_SIZE)],
        "",
        "",
    ),
    "half a PUB": (
        MAGIC + b"PUB t\n" + sized(b"three")[:6],
        [],
        "",
        "E_BAD_MESSAGE PUB failed to read message body",
    ),
}


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_transcript_is_understood_whole_bytewise_and_in_pieces(name: str) -> None:
    data, commands, error, cut_short = TRANSCRIPTS[name]
    heard = hear([data])
    assert heard.commands == commands
    assert heard.error == error
    assert heard.cut_short == cut_short
    assert hear(bytewise(data)) == heard
    draw = random.Random(name)
    for _ in range(10):
        room = draw.choice([1, 2, 3, 10, 100, 5000])
        at = [draw.randrange(len(data) + 1) for _ in range(draw.randint(0, 10))]
        assert hear(cut(data, at), room) == heard


# ---- any conversation in any pieces

LENGTHS = [1, 2, 5, 20, 60, MAX_MSG_SIZE]


class Draw(random.Random):
    def body(self) -> bytes:
        return self.randbytes(self.choice(LENGTHS))

    def lie(self, size: int) -> bytes:
        """A size, true most of the time."""
        if self.random() < 0.97:
            return struct.pack(">i", size)
        return struct.pack(">i", self.choice([0, -1, size + 1, size - 1, 101, 301, 2**31 - 1, -(2**31)]))

    def command(self) -> bytes:
        match self.randrange(10):
            case 0 | 1:
                first = self.choice([0, 5, 2**64 - 3])
                return b"".join(fin(first + each) for each in range(self.randint(1, 3)))
            case 2 | 3:
                line = self.choice(
                    [b"PUB t\n", b"PUB t\n", b"PUB t\r\n", b"PUB t x\n", b"PUB " + b"t" * 80 + b"\n"]
                )
                bodies = [self.body() for _ in range(self.choice([1, 1, 2, 4]))]
                return b"".join(line + self.lie(len(body)) + body for body in bodies)
            case 4 | 5:
                bodies = [self.body() for _ in range(self.choice([1, 2, 3, 10]))]
                inner = self.lie(len(bodies)) + b"".join(self.lie(len(body)) + body for body in bodies)
                return b"MPUB t\n" + self.lie(len(inner)) + inner
            case 6:
                name = self.choice([b"IDENTIFY", b"AUTH", b"DPUB t 5"])
                body = self.body()
                return name + b"\n" + self.lie(len(body)) + body
            case 7:
                return self.randbytes(self.randint(1, 20)) + b"\n"
            case _:
                return self.choice(
                    [b"NOP\n", b"RDY 5\r\n", b"CLS\n", b"SUB t c\n", b"\n", b"FIN x\n", b"P\n", b"F\n"]
                )

    def transcript(self) -> bytes:
        magic = MAGIC if self.random() < 0.98 else self.randbytes(4)
        data = magic + b"".join(self.command() for _ in range(self.randint(0, 8)))
        return data[: self.randrange(len(data) + 1)] if self.random() < 0.3 else data

    def pieces(self, data: bytes) -> list[bytes]:
        return cut(data, [self.randrange(len(data) + 1) for _ in range(self.choice([0, 1, 3, 10, 40]))])


DRAWS = st.integers(0, 2**64).map(Draw)


@settings(max_examples=1500)
@given(DRAWS)
def test_the_pieces_do_not_matter(draw: Draw) -> None:
    data = draw.transcript()
    heard = hear([data])
    assert hear(bytewise(data), draw.choice([1, 4096])) == heard
    assert hear(draw.pieces(data), draw.choice([1, 3, 50, 4096])) == heard


@settings(max_examples=800)
@given(DRAWS)
def test_parsers_that_share_a_buffer_do_not_see_each_others_bytes(draw: Draw) -> None:
    shared = bytearray(draw.choice([1, 7, 64, 4096]))
    transcripts = [draw.transcript() for _ in range(3)]
    peers = [Peer(shared) for _ in transcripts]
    left = [draw.pieces(data)[::-1] for data in transcripts]
    while any(left):
        which = draw.choice([each for each, pieces in enumerate(left) if pieces])
        peers[which].hear(left[which].pop())
        # the connection that reads next may write anything into the shared buffer
        shared[:] = b"\xaa" * len(shared)
    for peer, data in zip(peers, transcripts, strict=True):
        assert peer.end() == hear([data])


# ---- events


def parser(data: bytes, max_body_size: int = MAX_BODY_SIZE) -> CommandParser:
    """A parser that has been greeted and given this."""
    fresh = CommandParser(bytearray(1 << 16), MAX_MSG_SIZE, max_body_size)
    fresh.feed(MAGIC + data)
    return fresh


def test_reqs_with_one_timeout_come_as_one_event() -> None:
    reqs = [b"REQ %016x %d\n" % (number, timeout) for number, timeout in ((1, 0), (2, 0), (9, 0), (3, 10))]
    events = parser(b"".join(reqs) + b"REQ x 0\nRDY 1\n" + reqs[0][:-1])
    assert events.next_event() == Reqs([(1, 3), (9, 10)], b"0")
    assert events.next_event() == Reqs([(3, 4)], b"10")
    assert events.next_event() == Line([b"REQ", b"x", b"0"])
    assert events.next_event() == Line([b"RDY", b"1"])
    assert events.next_event() is None


def test_runs_come_as_one_event() -> None:
    pubs = b"PUB t\n" + sized(b"a") + b"PUB t\n" + sized(b"b")
    events = parser(fin(1) + fin(2) + fin(9) + b"NOP\n" + pubs + b"PUB u\n" + sized(b"c"))
    assert events.next_event() == Fins([(1, 3), (9, 10)])
    assert events.next_event() == Line([b"NOP"])
    run = events.next_event()
    assert isinstance(run, Pubs)
    assert (run.line, run.count, run.length) == (b"PUB t\n", 2, 6)
    assert run.data[run.start : run.start + len(pubs)] == pubs
    other = events.next_event()
    assert isinstance(other, Pubs)
    assert (other.line, other.count) == (b"PUB u\n", 1)
    assert events.next_event() is None


def test_a_client_is_greeted_by_its_magic() -> None:
    fresh = CommandParser(bytearray(100), 10, 10)
    fresh.feed(b"  V")
    assert fresh.next_event() is None
    assert not fresh.greeted
    fresh.feed(b"2")
    assert fresh.next_event() is None
    assert fresh.greeted


def test_the_wrong_magic_is_no_greeting() -> None:
    fresh = CommandParser(bytearray(100), 10, 10)
    fresh.feed(b"GET ")
    with pytest.raises(BadProtocol) as caught:
        fresh.next_event()
    assert caught.value.pack() == b"E_BAD_PROTOCOL"
    assert not fresh.greeted


def test_bytes_may_be_read_into_the_buffer() -> None:
    shared = bytearray(64)
    fresh = CommandParser(shared, 10, 10)
    assert fresh.get_buffer().obj is shared
    fresh.get_buffer()[:7] = b"  V2NOP"
    fresh.received(7)
    assert fresh.next_event() is None
    shared[:] = bytes(64)  # what is incomplete is kept aside
    assert len(fresh.get_buffer()) == 61  # and read on behind
    shared[:] = bytes(64)  # nothing came, and it was another's turn
    fresh.get_buffer()[:5] = b"\nNOP\n"
    fresh.received(5)
    assert [fresh.next_event(), fresh.next_event(), fresh.next_event()] == [
        Line([b"NOP"]),
        Line([b"NOP"]),
        None,
    ]
    assert fresh.get_buffer().obj is shared


def test_a_piece_of_a_command_leaves_room_for_many() -> None:
    shared = bytearray(1 << 16)
    events = CommandParser(shared, MAX_MSG_SIZE, MAX_BODY_SIZE)
    events.feed(MAGIC + b"PUB t\n" + sized(b"one")[:-1])
    assert events.next_event() == Line([b"PUB", b"t"])
    events.expect_body(PUB_BODY, 5)
    assert events.next_event() is None
    assert len(events.get_buffer()) == (1 << 16) - 6
    large = MAX_BODY_SIZE.to_bytes(4, "big") + b"x" * 5000
    events.feed(b"e" + b"MPUB t\n" + large)
    body = events.next_event()
    assert isinstance(body, Body)
    assert body.data == b"one"


def test_another_may_understand_what_comes_next() -> None:
    events = parser(b"NOP\nPUB t\nPU")
    assert events.next_event() == Line([b"NOP"])
    assert events.begins_with(b"PUB t\n")
    assert not events.begins_with(b"PUB u\n")
    data, start, end = events.hand_over()
    assert data[start:end] == b"PUB t\nPU"
    assert events.next_event() is None
    assert events.begins_with(b"anything")
    events.put_back(b"FI")
    events.received(0)
    assert events.next_event() is None
    assert events.begins_with(b"FIN")
    events.feed(fin(1)[2:] + b"NOP\n")
    assert [events.next_event(), events.next_event()] == [Fins([(1, 2)]), Line([b"NOP"])]


def test_a_parser_is_idle_where_a_command_begins() -> None:
    fresh = CommandParser(bytearray(64), 10, 10)
    assert not fresh.idle  # a magic comes first
    fresh.feed(MAGIC + b"NOP\nNO")
    fresh.next_event()
    fresh.next_event()
    assert not fresh.idle
    fresh.feed(b"P\nDPUB t 1\n")
    fresh.next_event()
    fresh.next_event()
    assert fresh.idle
    fresh.expect_body(DPUB_BODY, 10)
    assert not fresh.idle
    fresh.feed(sized(b"x"))
    assert isinstance(fresh.next_event(), Body)
    assert fresh.idle


def test_a_body_is_there_until_the_next_event() -> None:
    events = parser(b"DPUB t 5\n" + sized(b"later") + b"NOP\n")
    assert events.next_event() == Line([b"DPUB", b"t", b"5"])
    events.expect_body(DPUB_BODY, 5)
    body = events.next_event()
    assert isinstance(body, Body)
    assert body.data == b"later"
    assert events.next_event() == Line([b"NOP"])


def test_a_size_that_is_only_claimed_costs_no_memory() -> None:
    events = parser(b"MPUB t\n" + struct.pack(">iii", 50 << 20, 1, 50), max_body_size=100 << 20)
    events.next_event()
    events.expect_mpub()
    assert events.next_event() is None
    assert len(events.hand_over()[0]) < 16384
    events = parser(b"IDENTIFY\n" + struct.pack(">i", 5 << 20) + b"{")
    events.next_event()
    events.expect_body(IDENTIFY_BODY, 5 << 20)
    assert events.next_event() is None
    assert len(events.hand_over()[0]) < 16384


def test_a_big_body_arrives_in_many_reads() -> None:
    body = bytes(range(256)) * 1200
    data = MAGIC + b"IDENTIFY\n" + sized(body) + b"NOP\n"
    pieces = [data[at : at + 5000] for at in range(0, len(data), 5000)]
    for room in (8192, 333):
        assert hear(pieces, room, 1 << 20).commands == [(b"IDENTIFY", body), (b"NOP",)]


@pytest.mark.parametrize(
    "command",
    [
        b"x" * 16000 + b"\n",
        b"IDENTIFY\n" + sized(b"x" * 100_000),
        b"MPUB t\n" + sized(mpub_body(*[b"x" * MAX_MSG_SIZE] * 1000)),
    ],
    ids=["line", "IDENTIFY", "MPUB"],
)
def test_what_comes_in_small_pieces_is_not_moved_for_each(command: bytes) -> None:
    peer = Peer(bytearray(1 << 16), 1 << 20)
    buffers: list[object] = []
    for piece in cut(MAGIC + command, range(0, len(command), 40)):
        peer.hear(piece)
        buffer = peer.parser.get_buffer().obj
        if not buffers or buffer is not buffers[-1]:
            buffers.append(buffer)
    assert len(peer.heard.commands) == 1
    assert len(buffers) < 12


def test_a_big_mpub_arrives_in_many_reads() -> None:
    bodies = [bytes([number % 251]) * (number % MAX_MSG_SIZE + 1) for number in range(2000)]
    data = MAGIC + b"MPUB t\n" + sized(mpub_body(*bodies)) + b"NOP\n"
    pieces = [data[at : at + 5000] for at in range(0, len(data), 5000)]
    assert hear(pieces, 8192, 1 << 20).commands == [(b"MPUB", b"t", bodies), (b"NOP",)]


@pytest.mark.parametrize("more", [b"", b"\n"])
def test_a_line_has_at_most_16384_bytes(more: bytes) -> None:
    assert parser(b"x" * 16383 + b"\n").next_event() == Line([b"x" * 16383])
    assert parser(b"x" * 16383).next_event() is None
    with pytest.raises(ConnectionLost):
        parser(b"x" * 16384 + more).next_event()


# ---- errors


def refused(data: bytes) -> str:
    """The error frame that this leads to, be it given whole or byte by byte."""
    heard = hear([MAGIC + data])
    assert hear(bytewise(MAGIC + data)) == heard
    _, _, text = heard.error.partition(": ")
    return text


@pytest.mark.parametrize(
    ("line", "code", "invalid", "too_big", "limit"),
    [
        (b"IDENTIFY\n", "E_BAD_BODY IDENTIFY", "invalid body size", "body too big", MAX_BODY_SIZE),
        (b"AUTH\n", "E_BAD_BODY AUTH", "invalid body size", "body too big", MAX_BODY_SIZE),
        (b"PUB t\n", "E_BAD_MESSAGE PUB", "invalid message body size", "message too big", MAX_MSG_SIZE),
        (b"DPUB t 1\n", "E_BAD_MESSAGE DPUB", "invalid message body size", "message too big", MAX_MSG_SIZE),
        (b"MPUB t\n", "E_BAD_BODY MPUB", "invalid body size", "body too big", MAX_BODY_SIZE),
    ],
)
def test_sizes_are_refused_in_nsqs_words(
    line: bytes, code: str, invalid: str, too_big: str, limit: int
) -> None:
    for size in (0, -1, -(2**31)):
        assert refused(line + struct.pack(">i", size)) == f"{code} {invalid} {size}"
    for size in (limit + 1, 2**31 - 1):
        assert refused(line + struct.pack(">i", size)) == f"{code} {too_big} {size} > {limit}"
    assert refused(line + struct.pack(">i", limit)) == ""


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        (IDENTIFY_BODY, "E_BAD_BODY IDENTIFY body too big 0 > -1"),
        (AUTH_BODY, "E_BAD_BODY AUTH body too big 0 > -1"),
        (PUB_BODY, "E_BAD_MESSAGE PUB invalid message body size 0"),
        (DPUB_BODY, "E_BAD_MESSAGE DPUB invalid message body size 0"),
    ],
)
def test_identify_and_auth_look_at_the_limit_first(rule: object, error: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        rule.check(0, -1)  # type: ignore[attr-defined]
    assert str(caught.value) == error


@pytest.mark.parametrize(
    ("inner", "error"),
    [
        (struct.pack(">i", 0), "E_BAD_BODY MPUB invalid message count 0"),
        (struct.pack(">i", -7), "E_BAD_BODY MPUB invalid message count -7"),
        (struct.pack(">i", 60), "E_BAD_BODY MPUB invalid message count 60"),
        (struct.pack(">ii", 59, 0), "E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
        (
            struct.pack(">i", 2) + sized(b"x") + b"\xff" * 4,
            "E_BAD_MESSAGE MPUB invalid message(1) body size -1",
        ),
        (struct.pack(">ii", 1, 101), "E_BAD_MESSAGE MPUB message too big 101 > 100"),
        (
            struct.pack(">i", 4) + 2 * sized(b"x" * 100) + struct.pack(">i", 85),
            "E_BAD_BODY MPUB body too big 301 > 300",
        ),
    ],
)
def test_an_mpub_is_refused_before_it_is_complete(inner: bytes, error: str) -> None:
    # the outer size promises more than what is there: nothing is waited for
    data = b"NOP\nMPUB t\n" + struct.pack(">i", 300) + inner
    assert refused(data) == error
    assert refused(data[:-1]) == ""


def test_a_run_of_pubs_ends_before_the_bad_one() -> None:
    heard = hear(
        [MAGIC + b"PUB t\n" + sized(b"a") + b"PUB t\n" + sized(b"b") + b"PUB t\n" + struct.pack(">i", 101)]
    )
    assert heard.commands == [(b"PUB", b"t", b"a"), (b"PUB", b"t", b"b")]
    assert heard.error == "BadMessage: E_BAD_MESSAGE PUB message too big 101 > 100"


@pytest.mark.parametrize("command", [b"IDENTIFY", b"AUTH", b"PUB", b"DPUB"])
def test_a_body_cut_short_is_said_in_nsqs_words(command: bytes) -> None:
    rule = RULES[command]
    code = f"{rule.error.code} {command.decode()} failed to read {rule.body}"
    data = command + b" t 5\n" + sized(b"three")
    start = len(command) + 5
    for end in range(1, len(data) + 1):
        heard = hear([MAGIC + data[:end]])
        assert heard == hear(bytewise(MAGIC + data[:end]))
        if end < start or end == len(data):
            assert heard.cut_short == ""  # between commands, or in a line: NSQ just closes
        elif end < start + 4:
            assert heard.cut_short == f"{code} size"
        else:
            assert heard.cut_short == code


def test_an_mpub_cut_short_is_said_in_nsqs_words() -> None:
    data = b"MPUB t\n" + sized(mpub_body(b"one", b"three"))
    expected = (
        [""] * 7
        + ["E_BAD_BODY MPUB failed to read body size"] * 4
        + ["E_BAD_BODY MPUB failed to read message count"] * 4
        + ["E_BAD_MESSAGE MPUB failed to read message(0) body size"] * 4
        + ["E_BAD_MESSAGE MPUB failed to read message body"] * 3
        + ["E_BAD_MESSAGE MPUB failed to read message(1) body size"] * 4
        + ["E_BAD_MESSAGE MPUB failed to read message body"] * 5
        + [""]
    )
    assert [hear([MAGIC + data[:end]]).cut_short for end in range(len(data) + 1)] == expected
    assert [hear(bytewise(MAGIC + data[:end])).cut_short for end in range(len(data) + 1)] == expected


def test_an_mpub_event_shows_where_the_body_lies() -> None:
    inner = mpub_body(b"one", b"two")
    events = parser(b"MPUB t\n" + sized(inner))
    event = events.next_event()
    assert isinstance(event, Mpub)
    assert event.line == b"MPUB t\n"
    assert event.count == 2
    assert event.data[event.start : event.start + len(inner)] == inner


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (b"PUB t\n" + sized(b"one") + b"PUB t\n" + sized(b"two"), Pubs),
        (b"MPUB t\n" + sized(mpub_body(b"one", b"two")), Mpub),
        (b"SUB t ch\n", Line),
    ],
)
@pytest.mark.parametrize("behind", [b"", b"RDY 5\n", b"RDY 5\nPUB t\n" + sized(b"rest")[:-1]])
def test_what_is_put_off_survives_others_reading(command: bytes, kind: type, behind: bytes) -> None:
    """All connections share the buffer: an event that waits, and what came behind it, must not lie in it."""
    shared = bytearray(4096)
    events = CommandParser(shared, MAX_MSG_SIZE, MAX_BODY_SIZE)
    events.feed(MAGIC + command + behind)
    found = events.next_event()
    assert type(found) is kind
    kept = events.keep(found)
    shared[:] = b"\xff" * len(shared)
    if isinstance(kept, Pubs):
        assert (kept.count, kept.line) == (2, b"PUB t\n")
        assert bytes(kept.data[kept.start :]) == command
    elif isinstance(kept, Mpub):
        assert (kept.count, kept.line) == (2, b"MPUB t\n")
        assert bytes(kept.data[kept.start :]) == mpub_body(b"one", b"two")
    events.received(0)
    if behind:
        assert events.next_event() == Line([b"RDY", b"5"])
    if len(behind) > 6:
        assert events.next_event() == Line([b"PUB", b"t"])


def test_a_body_that_is_put_off_survives_others_reading() -> None:
    shared = bytearray(4096)
    events = CommandParser(shared, MAX_MSG_SIZE, MAX_BODY_SIZE)
    events.feed(MAGIC + b"AUTH\n" + sized(b"secret") + b"NOP\n")
    assert events.next_event() == Line([b"AUTH"])
    events.expect_body(AUTH_BODY, MAX_BODY_SIZE)
    found = events.next_event()
    assert isinstance(found, Body)
    kept = events.keep(found)
    shared[:] = b"\xff" * len(shared)
    assert isinstance(kept, Body)
    assert bytes(kept.data) == b"secret"
    events.received(0)
    assert events.next_event() == Line([b"NOP"])
