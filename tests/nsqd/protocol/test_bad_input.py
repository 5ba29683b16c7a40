"""What a client does wrong costs it its connection, with NSQ's words where it has some, and others nothing.

The tables follow the specification of the protocol: every error that a client can cause, with its exact text.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.daemon import (
    ERROR,
    PATIENCE,
    Client,
    Closed,
    Frame,
    Nsqd,
    dpub,
    identify,
    mpub,
    pub,
    sized,
    until,
)

MAX_MSG, MAX_BODY, MAX_RDY, MAX_DELAY_MS = 1024, 4096, 100, 60_000
FLAGS = (
    f"--max-msg-size={MAX_MSG}",
    f"--max-body-size={MAX_BODY}",
    f"--max-rdy-count={MAX_RDY}",
    f"--max-req-timeout={MAX_DELAY_MS}ms",
    "--max-heartbeat-interval=20s",
    "--max-output-buffer-size=32768",
    "--max-output-buffer-timeout=5s",
    "--max-msg-timeout=10s",
    "--max-channel-consumers=2",
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """One nsqd for all of them: it lives through everything."""
    with Nsqd(tmp_path_factory.mktemp("nsqd"), *FLAGS).start() as running:
        yield running
        assert running.stop() == 0
        assert not [line for line in running.lines if "Traceback" in line or "Exception" in line]


@pytest.fixture
async def broker(shared: Nsqd) -> AsyncIterator[Nsqd]:
    """The shared nsqd; after the test it still serves a client that came before and one that comes now."""
    async with await shared.connect() as witness:
        await witness.sub("witness", "ch", rdy=1)
        yield shared
        async with await shared.connect() as client:
            await client.pub("witness", b"still here?")
            message = await witness.message()
            assert message.body == b"still here?"
            witness.fin(message)
            await witness.caught_up()


def i32(number: int) -> bytes:
    return struct.pack(">i", number)


SUB = b"SUB errors ch\n"
CLS = SUB + b"RDY 1\nCLS\n"
ID = b"0123456789abcdef"

# What is sent, and the error that ends the connection.
FATAL = {
    # 1.4 the grammar
    "unknown command": (b"HELLO world\n", b"E_INVALID invalid command HELLO"),
    "lower case": (b"nop\n", b"E_INVALID invalid command nop"),
    "empty line": (b"\n", b"E_INVALID invalid command "),
    "empty line with a return": (b"\r\n", b"E_INVALID invalid command "),
    "two returns": (b"NOP\r\r\n", b"E_INVALID invalid command NOP\r"),
    "leading space": (b" NOP\n", b"E_INVALID invalid command "),
    "tab for a space": (b"PUB\ttopic\n", b"E_INVALID invalid command PUB\ttopic"),
    "bytes for a command": (b"\xff\x00\xfe\n", b"E_INVALID invalid command \xff\x00\xfe"),
    "long command": (b"X" * 16383 + b"\n", b"E_INVALID invalid command " + b"X" * 16383),
    # 1.7 IDENTIFY
    "IDENTIFY when subscribed": (SUB + identify(), b"E_INVALID cannot IDENTIFY in current state"),
    "IDENTIFY when closing": (CLS + identify(), b"E_INVALID cannot IDENTIFY in current state"),
    "IDENTIFY too big": (
        b"IDENTIFY\n" + i32(MAX_BODY + 1),
        b"E_BAD_BODY IDENTIFY body too big 4097 > 4096",
    ),
    "IDENTIFY far too big": (
        b"IDENTIFY\n" + i32(0x7FFFFFFF),
        b"E_BAD_BODY IDENTIFY body too big 2147483647 > 4096",
    ),
    "IDENTIFY of nothing": (b"IDENTIFY\n" + i32(0), b"E_BAD_BODY IDENTIFY invalid body size 0"),
    "IDENTIFY negative": (b"IDENTIFY\n" + i32(-1), b"E_BAD_BODY IDENTIFY invalid body size -1"),
    "IDENTIFY most negative": (
        b"IDENTIFY\n" + i32(-(1 << 31)),
        b"E_BAD_BODY IDENTIFY invalid body size -2147483648",
    ),
    # 1.7 AUTH
    "AUTH when subscribed": (SUB + b"AUTH\n" + sized(b"x"), b"E_INVALID cannot AUTH in current state"),
    "AUTH with a parameter": (b"AUTH x\n" + sized(b"x"), b"E_INVALID AUTH invalid number of parameters"),
    "AUTH with an empty parameter": (b"AUTH \n", b"E_INVALID AUTH invalid number of parameters"),
    "AUTH too big": (b"AUTH\n" + i32(4097), b"E_BAD_BODY AUTH body too big 4097 > 4096"),
    "AUTH of nothing": (b"AUTH\n" + i32(0), b"E_BAD_BODY AUTH invalid body size 0"),
    "AUTH negative": (b"AUTH\n" + i32(-7), b"E_BAD_BODY AUTH invalid body size -7"),
    "AUTH is off": (b"AUTH\n" + sized(b"secret"), b"E_AUTH_DISABLED AUTH disabled"),
    # 1.7 SUB
    "SUB twice": (SUB + SUB, b"E_INVALID cannot SUB in current state"),
    "SUB when closing": (CLS + SUB, b"E_INVALID cannot SUB in current state"),
    "SUB without heartbeats": (
        identify(heartbeat_interval=-1) + SUB,
        b"E_INVALID cannot SUB with heartbeats disabled",
    ),
    "SUB of nothing": (b"SUB\n", b"E_INVALID SUB insufficient number of parameters"),
    "SUB without a channel": (b"SUB topic\n", b"E_INVALID SUB insufficient number of parameters"),
    "SUB bad topic": (b"SUB a:b ch\n", b'E_BAD_TOPIC SUB topic name "a:b" is not valid'),
    "SUB empty topic": (b"SUB  ch\n", b'E_BAD_TOPIC SUB topic name "" is not valid'),
    "SUB bad channel": (b"SUB topic ch!\n", b'E_BAD_CHANNEL SUB channel name "ch!" is not valid'),
    "SUB empty channel": (b"SUB topic \n", b'E_BAD_CHANNEL SUB channel name "" is not valid'),
    "SUB both bad": (b"SUB ? !\n", b'E_BAD_TOPIC SUB topic name "?" is not valid'),
    "SUB name too long": (
        b"SUB " + b"t" * 65 + b" ch\n",
        b'E_BAD_TOPIC SUB topic name "' + b"t" * 65 + b'" is not valid',
    ),
    "SUB ephemeral name too long": (
        b"SUB " + b"t" * 55 + b"#ephemeral ch\n",
        b'E_BAD_TOPIC SUB topic name "' + b"t" * 55 + b'#ephemeral" is not valid',
    ),
    "SUB only ephemeral": (b"SUB #ephemeral ch\n", b'E_BAD_TOPIC SUB topic name "#ephemeral" is not valid'),
    "SUB nearly ephemeral": (b"SUB t#eph ch\n", b'E_BAD_TOPIC SUB topic name "t#eph" is not valid'),
    "SUB quoted": (b'SUB a"b\\c ch\n', b'E_BAD_TOPIC SUB topic name "a\\"b\\\\c" is not valid'),
    "SUB controls": (
        b"SUB a\tb\r\x01\x7f ch\n",
        b'E_BAD_TOPIC SUB topic name "a\\tb\\r\\x01\\x7f" is not valid',
    ),
    "SUB not UTF-8": (b"SUB t\xff\xc3 ch\n", b'E_BAD_TOPIC SUB topic name "t\\xff\\xc3" is not valid'),
    "SUB other letters": (
        "SUB tópico ch\n".encode(),
        'E_BAD_TOPIC SUB topic name "tópico" is not valid'.encode(),
    ),
    # 1.7 PUB
    "PUB of nothing": (b"PUB\n", b"E_INVALID PUB insufficient number of parameters"),
    "PUB bad topic": (b"PUB a/b\n", b'E_BAD_TOPIC PUB topic name "a/b" is not valid'),
    "PUB empty topic": (b"PUB \n" + sized(b"x"), b'E_BAD_TOPIC PUB topic name "" is not valid'),
    "PUB bad topic, bad body": (b"PUB ?\n" + i32(-1), b'E_BAD_TOPIC PUB topic name "?" is not valid'),
    "PUB empty": (b"PUB errors\n" + i32(0), b"E_BAD_MESSAGE PUB invalid message body size 0"),
    "PUB negative": (b"PUB errors\n" + i32(-1), b"E_BAD_MESSAGE PUB invalid message body size -1"),
    "PUB too big": (b"PUB errors\n" + i32(1025), b"E_BAD_MESSAGE PUB message too big 1025 > 1024"),
    "PUB too big, and there": (
        pub("errors", b"x" * 1025),
        b"E_BAD_MESSAGE PUB message too big 1025 > 1024",
    ),
    "PUB far too big": (
        b"PUB errors\n" + i32(0x7FFFFFFF) + b"x" * 100_000,
        b"E_BAD_MESSAGE PUB message too big 2147483647 > 1024",
    ),
    # 1.7 MPUB
    "MPUB of nothing": (b"MPUB\n", b"E_INVALID MPUB insufficient number of parameters"),
    "MPUB bad topic": (b"MPUB ?\n", b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "?" is not valid'),
    "MPUB empty": (b"MPUB errors\n" + i32(0), b"E_BAD_BODY MPUB invalid body size 0"),
    "MPUB negative": (b"MPUB errors\n" + i32(-9), b"E_BAD_BODY MPUB invalid body size -9"),
    "MPUB too big": (b"MPUB errors\n" + i32(4097), b"E_BAD_BODY MPUB body too big 4097 > 4096"),
    "MPUB no messages": (mpub("errors", []), b"E_BAD_BODY MPUB invalid message count 0"),
    "MPUB negative count": (
        b"MPUB errors\n" + sized(i32(-1)),
        b"E_BAD_BODY MPUB invalid message count -1",
    ),
    "MPUB too many": (
        b"MPUB errors\n" + sized(i32((MAX_BODY - 4) // 5 + 1)),
        b"E_BAD_BODY MPUB invalid message count 819",
    ),
    "MPUB empty message": (
        mpub("errors", [b"good", b""]),
        b"E_BAD_MESSAGE MPUB invalid message(1) body size 0",
    ),
    "MPUB negative message": (
        b"MPUB errors\n" + sized(i32(3) + sized(b"a") + sized(b"b") + i32(-5)),
        b"E_BAD_MESSAGE MPUB invalid message(2) body size -5",
    ),
    "MPUB message too big": (
        mpub("errors", [b"good", b"x" * 1025]),
        b"E_BAD_MESSAGE MPUB message too big 1025 > 1024",
    ),
    # 1.7 DPUB
    "DPUB of nothing": (b"DPUB\n", b"E_INVALID DPUB insufficient number of parameters"),
    "DPUB without a delay": (b"DPUB errors\n", b"E_INVALID DPUB insufficient number of parameters"),
    "DPUB bad topic": (b"DPUB ? x\n", b'E_BAD_TOPIC DPUB topic name "?" is not valid'),
    "DPUB bad number": (b"DPUB errors 1s\n", b"E_INVALID DPUB could not parse timeout 1s"),
    "DPUB negative delay": (b"DPUB errors -1\n", b"E_INVALID DPUB could not parse timeout -1"),
    "DPUB dot": (b"DPUB errors 1.0\n", b"E_INVALID DPUB could not parse timeout 1.0"),
    "DPUB other digits": (
        "DPUB errors ١\n".encode(),
        "E_INVALID DPUB could not parse timeout ١".encode(),
    ),
    "DPUB too late": (b"DPUB errors 60001\n", b"E_INVALID DPUB timeout 60001 out of range 0-60000"),
    "DPUB of the upper half": (
        b"DPUB errors 9999999999999999999\n",
        b"E_INVALID DPUB timeout 9999999999999999999 out of range 0-60000",
    ),
    "DPUB empty": (b"DPUB errors 1\n" + i32(0), b"E_BAD_MESSAGE DPUB invalid message body size 0"),
    "DPUB negative": (b"DPUB errors 1\n" + i32(-1), b"E_BAD_MESSAGE DPUB invalid message body size -1"),
    "DPUB too big": (b"DPUB errors 1\n" + i32(1025), b"E_BAD_MESSAGE DPUB message too big 1025 > 1024"),
    # 1.7 RDY
    "RDY too early": (b"RDY 1\n", b"E_INVALID cannot RDY in current state"),
    "RDY bad number": (SUB + b"RDY many\n", b"E_INVALID RDY could not parse count many"),
    "RDY negative": (SUB + b"RDY -1\n", b"E_INVALID RDY could not parse count -1"),
    "RDY plus": (SUB + b"RDY +1\n", b"E_INVALID RDY could not parse count +1"),
    "RDY too many": (SUB + b"RDY 101\n", b"E_INVALID RDY count 101 out of range 0-100"),
    "RDY wraps": (
        SUB + b"RDY 18446744073709551615\n",
        b"E_INVALID RDY count -1 out of range 0-100",
    ),
    # 1.7 FIN, REQ, TOUCH
    **{
        f"{command} too early": (
            b"%b %b 0\n" % (command.encode(), ID),
            b"E_INVALID cannot %b in current state" % command.encode(),
        )
        for command in ("FIN", "REQ", "TOUCH")
    },
    **{
        f"{command} of nothing": (
            SUB + b"%b\n" % command.encode(),
            b"E_INVALID %b insufficient number of params" % command.encode(),
        )
        for command in ("FIN", "REQ", "TOUCH")
    },
    **{
        f"{command} of an id of {len(message)}": (
            SUB + b"%b %b 0\n" % (command.encode(), message),
            b"E_INVALID invalid message ID",
        )
        for command in ("FIN", "REQ", "TOUCH")
        for message in (b"", ID[:-1], ID + b"0")
    },
    "REQ without a delay": (SUB + b"REQ %b\n" % ID, b"E_INVALID REQ insufficient number of params"),
    "REQ bad delay": (SUB + b"REQ %b soon\n" % ID, b"E_INVALID REQ could not parse timeout soon"),
    "REQ negative delay": (SUB + b"REQ %b -1\n" % ID, b"E_INVALID REQ could not parse timeout -1"),
    # 1.7 CLS
    "CLS too early": (b"CLS\n", b"E_INVALID cannot CLS in current state"),
    "CLS twice": (CLS + b"CLS\n", b"E_INVALID cannot CLS in current state"),
}


async def last_error(client: Client) -> bytes:
    """The error that ends the connection; only answers that are no errors come before it, nothing after."""
    frame: Frame | None = None
    while True:
        try:
            following = await client.answer()
        except Closed:
            break
        assert frame is None or frame.kind != ERROR, (frame, following)
        frame = following
    assert frame is not None, "closed without a word"
    assert frame.kind == ERROR, frame
    return frame.data


@pytest.mark.parametrize(("sent", "error"), FATAL.values(), ids=FATAL)
async def test_a_fatal_error_is_told_and_ends_the_connection(broker: Nsqd, sent: bytes, error: bytes) -> None:
    async with await broker.connect() as client:
        client.send(sent)
        assert await last_error(client) == error


@pytest.mark.parametrize(("sent", "error"), FATAL.values(), ids=FATAL)
async def test_nothing_behind_a_fatal_error_is_done(broker: Nsqd, sent: bytes, error: bytes) -> None:
    topic = f"behind{random.getrandbits(64)}"
    async with await broker.connect() as client:
        client.send(sent + b"\n" + pub(topic, b"body"))
        assert await last_error(client) == error
    status, answer = await broker.http("GET", f"/stats?format=json&topic={topic}")
    assert (status, json.loads(answer)["topics"]) == (200, None)


# What is sent before the sending side is closed, and the error.
CUT_SHORT = {
    "IDENTIFY size": (b"IDENTIFY\n\0\0\0", b"E_BAD_BODY IDENTIFY failed to read body size"),
    "IDENTIFY no size": (b"IDENTIFY\n", b"E_BAD_BODY IDENTIFY failed to read body size"),
    "IDENTIFY body": (b"IDENTIFY\n" + i32(3) + b"{}", b"E_BAD_BODY IDENTIFY failed to read body"),
    "IDENTIFY no body": (b"IDENTIFY\n" + i32(3), b"E_BAD_BODY IDENTIFY failed to read body"),
    "AUTH size": (b"AUTH\n\0", b"E_BAD_BODY AUTH failed to read body size"),
    "AUTH body": (b"AUTH\n" + i32(2) + b"x", b"E_BAD_BODY AUTH failed to read body"),
    "PUB size": (b"PUB t\n\0\0", b"E_BAD_MESSAGE PUB failed to read message body size"),
    "PUB body": (b"PUB t\n" + i32(3) + b"ab", b"E_BAD_MESSAGE PUB failed to read message body"),
    "DPUB size": (b"DPUB t 1\n", b"E_BAD_MESSAGE DPUB failed to read message body size"),
    "DPUB body": (b"DPUB t 1\n" + i32(3), b"E_BAD_MESSAGE DPUB failed to read message body"),
    "MPUB size": (b"MPUB t\n\0\0\0", b"E_BAD_BODY MPUB failed to read body size"),
    "MPUB count": (b"MPUB t\n" + i32(20) + b"\0\0", b"E_BAD_BODY MPUB failed to read message count"),
    "MPUB no count": (b"MPUB t\n" + i32(20), b"E_BAD_BODY MPUB failed to read message count"),
    "MPUB first size": (
        b"MPUB t\n" + i32(20) + i32(2) + b"\0",
        b"E_BAD_MESSAGE MPUB failed to read message(0) body size",
    ),
    "MPUB second size": (
        b"MPUB t\n" + i32(20) + i32(2) + sized(b"a"),
        b"E_BAD_MESSAGE MPUB failed to read message(1) body size",
    ),
    "MPUB body": (
        b"MPUB t\n" + i32(20) + i32(2) + sized(b"a") + i32(5) + b"1234",
        b"E_BAD_MESSAGE MPUB failed to read message body",
    ),
}


@pytest.mark.parametrize(("sent", "error"), CUT_SHORT.values(), ids=CUT_SHORT)
async def test_a_body_that_is_cut_short_is_an_error(broker: Nsqd, sent: bytes, error: bytes) -> None:
    async with await broker.connect() as client:
        client.send(sent)
        client.half_close()
        assert await last_error(client) == error


@pytest.mark.parametrize("sent", [b"", b"  ", b"  V2", b"  V2NO", b"  V2NOP", b"  V2NOP\nNO"])
async def test_the_end_between_commands_is_silent(broker: Nsqd, sent: bytes) -> None:
    async with await broker.connect(magic=sent) as client:
        client.half_close()
        await client.closed()


# ---- 1.1 the magic


@pytest.mark.parametrize("magic", [b"  V1", b"  V3", b"GET ", b"V2  ", b"\0\0\0\0", b"\n\n\n\n", b"\xff" * 4])
async def test_a_wrong_magic_is_told(broker: Nsqd, magic: bytes) -> None:
    async with await broker.connect(magic=magic + b"/ HTTP/1.1\r\n\r\n") as client:
        assert await last_error(client) == b"E_BAD_PROTOCOL"


# ---- 2.1 and 2.2 IDENTIFY's document

NO_DOCUMENTS = [
    b"[]",
    b'"text"',
    b"7",
    b"true",
    b" ",
    b"{",
    b"{}x",
    b"{} {}",
    b"{'a':1}",
    b"{a:1}",
    b'{"a":1,}',
    b'\xef\xbb\xbf{"a":1}',
    "{}".encode("utf-16"),
    b'{"a":NaN}',
    b'{"a":Infinity}',
    b'{"a":-Infinity}',
    b'{"a":"\x01"}',
    b'{"a":"line\nend"}',
    b'{"a":01}',
    b'{"a":1.}',
    b'{"heartbeat_interval":"1000"}',
    b'{"heartbeat_interval":true}',
    b'{"heartbeat_interval":1000.0}',
    b'{"heartbeat_interval":1e3}',
    b'{"heartbeat_interval":9223372036854775808}',
    b'{"heartbeat_interval":-9223372036854775809}',
    b'{"heartbeat_interval":[]}',
    b'{"output_buffer_size":"64"}',
    b'{"output_buffer_timeout":false}',
    b'{"msg_timeout":{}}',
    b'{"deflate_level":1.5}',
    b'{"sample_rate":2147483648}',
    b'{"feature_negotiation":1}',
    b'{"feature_negotiation":"true"}',
    b'{"tls_v1":0}',
    b'{"snappy":1}',
    b'{"deflate":"yes"}',
    b'{"client_id":7}',
    b'{"hostname":null,"hostname":[]}',
    b'{"user_agent":false}',
    b'{"MSG_TIMEOUT":"x"}',
    b"[" * 1000 + b"]" * 1000,
    b'{"a":' * 600 + b"1" + b"}" * 601,
]


@pytest.mark.parametrize("body", NO_DOCUMENTS, ids=lambda body: ascii(body[:40]))
async def test_identify_refuses_what_is_no_document(broker: Nsqd, body: bytes) -> None:
    async with await broker.connect() as client:
        client.send(b"IDENTIFY\n" + sized(body))
        assert await last_error(client) == b"E_BAD_BODY IDENTIFY failed to decode JSON body"


@pytest.mark.parametrize(
    "body",
    [
        b"null",
        b" \t\r\n{} \n",
        b'{"unknown":[1,2,{"x":null}]}',
        b'{"client_id":null,"heartbeat_interval":null,"feature_negotiation":null}',
        b'{"client_id":"\xff\xfe"}',
        b'{"client_id":"\\ud800"}',
        b'{"heartbeat_interval":7,"heartbeat_interval":1000}',
        b'{"Heartbeat_Interval":1000}',
        b'{"short_id":1,"long_id":2}',
        b'{"snappy":true,"deflate":true,"tls_v1":true}',
    ],
    ids=lambda body: ascii(body[:40]),
)
async def test_identify_takes_what_is_a_document(broker: Nsqd, body: bytes) -> None:
    async with await broker.connect() as client:
        await client.ask(b"IDENTIFY\n" + sized(body))
        await client.pub("errors", b"body")


RANGES = [
    ("heartbeat_interval", "heartbeat interval", 1000, 20_000, (-1, 0)),
    ("output_buffer_timeout", "output buffer timeout", 25, 5000, (-1, 0)),
    ("output_buffer_size", "output buffer size", 64, 32_768, (-1, 0)),
    ("sample_rate", "sample rate", 0, 99, ()),
    ("msg_timeout", "msg timeout", 1000, 10_000, (0,)),
]


@pytest.mark.parametrize(("field", "name", "low", "high", "also"), RANGES, ids=[each[0] for each in RANGES])
async def test_identify_checks_the_range_of(
    broker: Nsqd, field: str, name: str, low: int, high: int, also: tuple[int, ...]
) -> None:
    for value in (low - 1, high + 1, -2, -1, 0, 1 << 30, -(1 << 30)):
        if low <= value <= high or value in also:
            continue
        async with await broker.connect() as client:
            client.send(identify(**{field: value}, feature_negotiation=True))
            assert await last_error(client) == f"E_BAD_BODY IDENTIFY {name} ({value}) is invalid".encode()
    for value in (low, high, *also):
        async with await broker.connect() as client:
            await client.ask(identify(**{field: value}))


async def test_identify_checks_its_fields_in_nsqs_order(broker: Nsqd) -> None:
    bad = {field: -5 for field, *_ in RANGES}
    for field, name, *_ in RANGES:
        async with await broker.connect() as client:
            client.send(identify(**dict(reversed(bad.items()))))
            assert await last_error(client) == f"E_BAD_BODY IDENTIFY {name} (-5) is invalid".encode()
        del bad[field]


async def test_identify_refuses_two_compressions(broker: Nsqd) -> None:
    async with await broker.connect() as client:
        client.send(identify(snappy=True, deflate=True, feature_negotiation=True))
        error = b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
        assert await last_error(client) == error


# ---- errors that do not end the connection


@pytest.mark.parametrize("message", [ID, b"." * 16, b"\xff" * 16, b"ABCDEFABCDEFABCD", b"+123456789abcdef"])
@pytest.mark.parametrize("command", [b"FIN", b"REQ", b"TOUCH"])
async def test_an_unknown_id_is_told_and_the_connection_lives(
    broker: Nsqd, command: bytes, message: bytes
) -> None:
    async with await broker.connect() as client:
        await client.sub("unknown_ids", "ch")
        client.send(b"%b %b 0\n" % (command, message))
        assert await client.error() == b"E_%b_FAILED %b %b failed ID not in flight" % (
            command,
            command,
            message,
        )
        await client.pub("errors", b"body")


@pytest.mark.parametrize("command", [b"FIN", b"REQ", b"TOUCH"])
async def test_the_message_of_another_client_is_told_and_the_connection_lives(
    broker: Nsqd, command: bytes
) -> None:
    topic = f"others_{command.decode()}"
    async with await broker.connect() as owner, await broker.connect() as client:
        await owner.sub(topic, "ch", rdy=1)
        await client.sub(topic, "ch")
        await client.pub(topic, b"body")
        message = await owner.message()
        client.send(b"%b %b 0\n" % (command, message.id))
        assert await client.error() == b"E_%b_FAILED %b %b failed client does not own message" % (
            command,
            command,
            message.id,
        )
        owner.fin(message)
        owner.fin(message)
        assert await owner.error() == b"E_FIN_FAILED FIN %b failed ID not in flight" % message.id
        await client.caught_up()


@pytest.mark.parametrize("timeout", [b"0", b"60000"])
async def test_of_a_run_of_reqs_those_not_in_flight_are_told(broker: Nsqd, timeout: bytes) -> None:
    topic = f"run_of_reqs_{timeout.decode()}"
    async with await broker.connect() as client:
        await client.sub(topic, "ch", rdy=3)
        await client.mpub(topic, [b"1", b"2", b"3"])
        messages = [await client.message() for _ in range(3)]
        client.send(b"RDY 0\n")
        client.fin(messages[1])
        ids = [message.id for message in messages]
        behind = [b"%016x" % (int(ids[2], 16) + number) for number in range(1, 251)]
        client.send(b"".join(b"REQ %b %b\n" % (each, timeout) for each in ids + behind + ids[:1]))
        for each in [ids[1], *behind, ids[0]]:
            assert await client.error() == b"E_REQ_FAILED REQ %b failed ID not in flight" % each
        if timeout == b"0":
            client.send(b"RDY 3\n")
            again = [await client.message() for _ in range(2)]
            assert [(each.id, each.attempts) for each in again] == [(ids[0], 2), (ids[2], 2)]


async def test_many_errors_come_in_order_between_the_answers(broker: Nsqd) -> None:
    async with await broker.connect() as client:
        await client.sub("unknown_ids", "ch")
        ids = [b"%016x" % number for number in range(100)]
        client.send(b"".join(b"FIN %b\n" % each + pub("errors", b"body") for each in ids))
        for each in ids:
            assert await client.error() == b"E_FIN_FAILED FIN %b failed ID not in flight" % each
            await client.ok()


async def test_very_many_unknown_ids_are_told_in_order_and_others_are_heard_meanwhile(broker: Nsqd) -> None:
    async with await broker.connect() as client, await broker.connect() as other:
        await client.sub("unknown_ids", "ch")
        ids = [b"%016x" % (3 * number) for number in range(3000)]
        client.send(
            b"".join(b"FIN %b\n" % each for each in ids) + pub("errors", b"body") + b"FIN %b\n" % ids[0]
        )
        await other.pub("errors", b"body")
        for each in ids:
            assert await client.error() == b"E_FIN_FAILED FIN %b failed ID not in flight" % each
        await client.ok()
        assert await client.error() == b"E_FIN_FAILED FIN %b failed ID not in flight" % ids[0]
        await client.pub("errors", b"body")


async def test_too_many_consumers(broker: Nsqd) -> None:
    async with await broker.connect() as first, await broker.connect() as second:
        await first.sub("crowded", "ch")
        await second.sub("crowded", "ch")
        async with await broker.connect() as third:
            third.send(b"SUB crowded ch\n")
            error = b"E_SUB_FAILED SUB failed consumers for crowded:ch exceeds limit of 2"
            assert await last_error(third) == error
        second.close()
        await second.writer.wait_closed()
        async with await broker.connect() as third:
            await third.sub("crowded", "other")

        async def joins() -> bool:
            async with await broker.connect() as fourth:
                fourth.send(b"SUB crowded ch\n")
                return (await fourth.answer()).data == b"OK"

        await until(joins)


# ---- odd, and good all the same


async def test_oddities_that_are_none(broker: Nsqd) -> None:
    async with await broker.connect() as client:
        client.send(b"NOP\r\nNOP a b  c \n")
        await client.ask(b"IDENTIFY x y\n" + sized(b"{}"))
        await client.ask(b"PUB odd extra\r\n" + sized(b"1"))
        await client.ask(b"DPUB odd  x\n" + sized(b"2"))
        await client.ask(b"DPUB odd 000000000000000000000\n" + sized(b"3"))
        await client.ask(b"MPUB odd extra\n" + mpub("", [b"4"]).partition(b"\n")[2])
        await client.ask(b"SUB odd ch extra\n")
        client.send(b"RDY \nRDY 5 x\n")
        messages = [await client.message() for _ in range(4)]
        assert sorted(message.body for message in messages) == [b"1", b"2", b"3", b"4"]
        # out of range is not an error here
        client.send(b"REQ %b 99999999999\nREQ %b 18446744073709551615\n" % (messages[0].id, messages[1].id))
        again = await client.message()
        assert (again.id, again.attempts) == (messages[1].id, 2)
        client.send(b"CLS a b\n")
        assert (await client.answer()).data == b"CLOSE_WAIT"
        client.send(b"RDY 100\nRDY many\nRDY 999999\nRDY -1\n")
        for message in messages[1:]:
            client.fin(message)
        await client.pub("odd", b"5")
        await client.caught_up()
        assert not client.messages


async def test_the_longest_line(broker: Nsqd) -> None:
    async with await broker.connect() as client:
        longest = b"NOP " + b"x" * (16384 - 5) + b"\n"
        assert len(longest) == 16384
        client.send(longest * 3)
        await client.pub("errors", b"body")
        client.send(b"x" + longest)
        await client.closed()


@pytest.mark.parametrize("size", [16384, 16385, 100_000, 5_000_000])
async def test_a_line_without_end_is_cut_off_in_silence(broker: Nsqd, size: int) -> None:
    async with await broker.connect() as client:
        client.send(b"x" * size)
        await client.closed()


async def test_an_outer_size_of_mpub_that_is_too_small_does_not_matter(broker: Nsqd) -> None:
    async with await broker.connect() as client:
        inner = i32(2) + sized(b"a" * 1000) + sized(b"b" * 1000)
        await client.ask(b"MPUB outer\n" + i32(5) + inner)
        await client.sub("outer", "ch", rdy=10)
        assert [(await client.message()).body for _ in range(2)] == [b"a" * 1000, b"b" * 1000]


async def test_an_outer_size_of_mpub_that_is_too_large_does_not_matter(broker: Nsqd) -> None:
    async with await broker.connect() as client:
        inner = i32(2) + sized(b"a") + sized(b"b")
        client.send(b"MPUB outer\n" + i32(len(inner) + 100) + inner + pub("outer", b"c"))
        await client.ok()
        await client.ok()


async def test_messages_of_an_mpub_beyond_the_limit_of_a_body(broker: Nsqd) -> None:
    """Each is small enough, and so is the size that was told: only together they are too large."""
    async with await broker.connect() as client:
        inner = i32(800) + sized(b"x" * 1024) * 800
        client.send(b"MPUB beyond\n" + i32(100) + inner)
        assert (await last_error(client)).startswith(b"E_BAD_BODY MPUB body too big ")


# ---- connections that end in the middle


@pytest.mark.parametrize(
    "command", [pub("gone", b"x" * 1000), dpub("gone", 1, b"x" * 1000), mpub("gone", [b"x"] * 90)]
)
async def test_a_connection_that_is_gone_in_the_middle_of_a_body_publishes_nothing(
    broker: Nsqd, command: bytes
) -> None:
    async with await broker.connect() as consumer:
        await consumer.sub("gone", "ch", rdy=10)
        for cut in random.Random(7).sample(range(len(command)), 20):
            client = await broker.connect()
            client.send(command[:cut])
            await client.writer.drain()
            if cut % 2:
                client.abort()
            else:
                client.close()
        async with await broker.connect() as client:
            await client.pub("gone", b"whole")
        message = await consumer.message()
        assert message.body == b"whole"
        consumer.fin(message)
        await consumer.caught_up()
        assert not consumer.messages


async def test_publishes_before_the_end_of_a_half_closed_connection_are_answered(broker: Nsqd) -> None:
    async with await broker.connect() as client:
        client.send(pub("half", b"body") * 100)
        client.half_close()
        for _ in range(100):
            await client.ok()
        await client.closed()


async def test_the_messages_of_a_half_closed_consumer_go_to_another(broker: Nsqd) -> None:
    async with await broker.connect() as leaving, await broker.connect() as staying:
        await leaving.sub("half_consumer", "ch", rdy=5)
        await staying.mpub("half_consumer", [b"%d" % number for number in range(10)])
        assert (await leaving.message()).attempts == 1
        leaving.half_close()  # and does not close the rest
        await staying.sub("half_consumer", "ch", rdy=100)
        messages = [await staying.message() for _ in range(10)]
        assert sorted(message.body for message in messages) == [b"%d" % number for number in range(10)]
        for message in messages:
            staying.fin(message)
        await staying.pub("half_consumer", b"another")
        assert (await staying.message()).body == b"another"


async def test_the_messages_of_a_consumer_that_failed_go_to_another(broker: Nsqd) -> None:
    async with await broker.connect() as failing, await broker.connect() as staying:
        await failing.sub("failed_consumer", "ch", rdy=5)
        await staying.mpub("failed_consumer", [b"1", b"2", b"3"])
        await failing.message()
        failing.send(b"NONSENSE\n")
        assert await failing.error() == b"E_INVALID invalid command NONSENSE"
        await staying.sub("failed_consumer", "ch", rdy=10)
        assert sorted([(await staying.message()).body for _ in range(3)]) == [b"1", b"2", b"3"]


# ---- garbage


async def drained(client: Client) -> None:
    """Whatever comes, until the connection ends."""
    async with asyncio.timeout(PATIENCE):
        with contextlib.suppress(ConnectionError):
            while await client.reader.read(1 << 16):
                pass


@pytest.mark.parametrize("seed", range(4))
async def test_garbage_ends_a_connection_and_nothing_else(broker: Nsqd, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        async with await broker.connect(rng.choice((b"", b"  V2", b"  V2" + SUB))) as client:
            client.send(rng.randbytes(rng.choice((1, 10, 1000, 100_000))))
            client.half_close()
            await drained(client)


GOOD = [
    identify(client_id="me"),
    SUB,
    b"RDY 100\n",
    pub("garbage", b"some body"),
    dpub("garbage", 5, b"some body"),
    mpub("garbage", [b"some", b"more", b"bodies"]),
    b"FIN %b\n" % ID,
    b"REQ %b 10\n" % ID,
    b"TOUCH %b\n" % ID,
    b"NOP\n",
    b"CLS\n",
    b"AUTH\n" + sized(b"x"),
]


@pytest.mark.parametrize("seed", range(4))
async def test_commands_with_bits_turned_end_a_connection_and_nothing_else(broker: Nsqd, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        data = bytearray(b"".join(rng.choices(GOOD, k=rng.randrange(1, 30))))
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        async with await broker.connect() as client:
            client.send(bytes(data))
            client.half_close()
            await drained(client)


# ---- clients that do not read, and what they may cost


def slow_socket(nsqd: Nsqd) -> socket.socket:
    """A connection with small buffers, which soon are full."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    sock.settimeout(PATIENCE)
    sock.connect(("127.0.0.1", nsqd.tcp_port))
    sock.sendall(b"  V2")
    return sock


async def statistics(nsqd: Nsqd, topic: str) -> dict[str, int]:
    _, answer = await nsqd.http("GET", f"/stats?format=json&topic={topic}")
    (found,) = json.loads(answer)["topics"]
    (channel,) = found["channels"]
    return dict(channel)


async def test_a_consumer_that_never_reads_costs_little_memory(nsqd: Nsqd) -> None:
    size, number = 100_000, 2000
    async with await nsqd.connect() as client:
        body = mpub("backlog", [b"x" * size] * 40)
        await client.ask(body)
        before = nsqd.memory()
        for _ in range(number // 40 - 1):
            await client.ask(body)
        with slow_socket(nsqd) as consumer:
            consumer.sendall(b"SUB backlog ch\nRDY 2500\n")
            in_flight = -1
            while (
                in_flight != (in_flight := (await statistics(nsqd, "backlog"))["in_flight_count"])
                or not in_flight
            ):
                await client.pub("other", b"body")  # a turn, and then another
            assert in_flight * size < 20 << 20
            assert nsqd.memory() - before < 50 << 20
            for _ in range(20):
                await client.pub("backlog", b"x" * size)
            assert nsqd.memory() - before < 50 << 20
            # and when it does, it gets what it is owed
            received = bytearray()
            while len(received) < 10 * (size + 34):
                received += consumer.recv(1 << 20)
        assert received.count(b"x" * size) >= 9
        await until(lambda: all_back(nsqd, number + 20))


async def all_back(nsqd: Nsqd, number: int) -> bool:
    channel = await statistics(nsqd, "backlog")
    return channel["depth"] == number and channel["in_flight_count"] == 0


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (pub("answers", b"x"), b"\0\0\0\x06\0\0\0\0OK"),
        (
            b"TOUCH %b\n" % ID,
            b"\0\0\0\x41\0\0\0\1E_TOUCH_FAILED TOUCH %b failed ID not in flight" % ID,
        ),
    ],
    ids=["answers", "errors"],
)
async def test_a_client_that_never_reads_its_answers_costs_little_memory(
    nsqd: Nsqd, command: bytes, answer: bytes
) -> None:
    before = nsqd.memory()
    sent = 0
    with slow_socket(nsqd) as client:
        client.sendall(b"SUB answers ch\n")
        client.setblocking(False)
        # Send until nothing goes any more: it does not read, so it is not read from.
        commands = command * 5000
        full_since = None
        loop = asyncio.get_running_loop()
        while full_since is None or loop.time() - full_since < 0.5:
            try:
                sent += client.send(commands[sent % len(command) :][: 1 << 16])
                full_since = None
            except BlockingIOError:
                full_since = full_since or loop.time()
                await asyncio.sleep(0.01)
            assert sent < 200 << 20
        assert nsqd.memory() - before < 50 << 20
        async with await nsqd.connect() as other:
            await other.pub("other", b"body")
        # It reads after all, and every command gets its answer.
        whole = sent // len(command)
        expected = 10 + whole * len(answer)
        received = b""
        got = 0
        async with asyncio.timeout(2 * PATIENCE):
            while got < expected:
                received = await loop.sock_recv(client, 1 << 20)
                assert received
                got += len(received)
        assert got == expected
        assert received.endswith(answer)


async def test_bodies_that_are_only_announced_cost_nothing(nsqd: Nsqd) -> None:
    async with await nsqd.connect() as client:
        await client.pub("topic", b"body")
    before = nsqd.memory()
    clients = []
    for number in range(200):
        client = await nsqd.connect()
        command = (b"PUB topic\n", b"MPUB topic\n", b"DPUB topic 0\n", b"IDENTIFY\n")[number % 4]
        client.send(command + i32(1 << 20) + b"x")
        clients.append(client)
    async with await nsqd.connect() as client:
        await client.pub("topic", b"body")
    assert nsqd.memory() - before < 20 << 20
    for client in clients:
        client.close()
