"""A TCP client of nsqd: `Connection` over a real broker, with bursts that come whole or byte by byte.

The input is bursts with `||` between them. The event loop takes its turns after each, so that a burst can
answer the messages that an earlier one has caused to be delivered.
"""

from __future__ import annotations

import asyncio
import struct
import time
from unittest import mock

from nsquark.nsqd.broker import Broker
from nsquark.nsqd.protocol import reading
from nsquark.nsqd.protocol.connection import Connection
from nsquark.nsqd.protocol.read_states import CLOSED
from reliability.fuzz.brokers import FIRST_ID, broker, settle
from reliability.fuzz.memory import LoggedErrors, MemoryTransport, run_loop
from reliability.fuzz.target import Target, Wrong, bytewise, pieces_of, require_same

SEPARATOR = b"||"
MOST_BURSTS = 12
MOST_SHARED = 4096
_SETTINGS = {"max_msg_size": 100, "max_body_size": 300, "deflate": False, "snappy": False}


def _feed(connection: Connection, transport: MemoryTransport, data: bytes) -> None:
    """As the transport does: as much at a time as there is room for, nothing while reading is paused."""
    while data and not transport.paused and not transport.closed:
        room = memoryview(connection.get_buffer(-1))
        count = min(len(room), len(data))
        if not count:
            raise Wrong("no room to read to")
        room[:count] = data[:count]
        connection.buffer_updated(count)
        data = data[count:]


def _frames(data: bytearray) -> list[tuple[object, ...]]:
    """Everything that the client was sent; of a message not the time."""
    found: list[tuple[object, ...]] = []
    at = 0
    while at < len(data):
        size, kind = struct.unpack_from(">II", data, at)
        frame = bytes(data[at + 8 : at + 4 + size])
        if len(frame) != size - 4:
            raise Wrong(f"{bytes(data[at:])!r} is no frame")
        found.append((kind, frame if kind != 2 else frame[8:]))
        at += 4 + size
    return found


def _told(known: Broker) -> list[object]:
    """What the topics hold."""
    told: list[object] = []
    for name, topic in sorted(known.topics.items()):
        channels = [
            (each.name, each.depth, each.in_flight_count, each.deferred_count)
            for _, each in sorted(topic.channels.items())
        ]
        told.append((name, topic.log.end, channels))
    return told


async def _answered(connection: Connection) -> None:
    """Wait until every command that came is answered, though a publish wait for the disk."""
    await settle()
    for _ in range(1000):
        if not connection._answers.queue:
            return
        await asyncio.sleep(0.005)
        await settle()
    raise Wrong("a command is not answered")


async def _converse(bursts: list[list[bytes]]) -> tuple[object, ...]:
    # No burst is too much for one turn, and the clocks stand still, so that nothing falls due. The time that
    # it takes must not change what is answered.
    with (
        mock.patch.object(reading, "PARSE_NS", 1 << 60),
        mock.patch.object(time, "time_ns", return_value=time.time_ns()),
        mock.patch.object(time, "monotonic_ns", return_value=time.monotonic_ns()),
    ):
        return await _talk(bursts)


async def _talk(bursts: list[list[bytes]]) -> tuple[object, ...]:
    async with broker(**_SETTINGS) as known:
        transport = MemoryTransport()
        connection = Connection(known, known.timers, bytearray(MOST_SHARED))
        connection.connection_made(transport)
        heard: list[object] = []
        for pieces in bursts:
            for piece in pieces:
                _feed(connection, transport, piece)
            await _answered(connection)
            heard.append(_frames(transport.written))
            transport.written.clear()
        if not transport.closed and not transport.paused:
            connection.eof_received()
            await _answered(connection)
            heard.append(_frames(transport.written))
        told = _told(known)
        if connection.read_state is not CLOSED:
            connection.connection_lost(None)
        if connection in known.connections:
            raise Wrong("the broker has the connection still")
        return heard, told, transport.closed or transport.eof


def run(data: bytes) -> object:
    bursts = data.split(SEPARATOR, MOST_BURSTS)
    with LoggedErrors() as logged:
        whole = run_loop(_converse([[each] for each in bursts]))
        require_same("byte by byte", whole, run_loop(_converse([bytewise(each) for each in bursts])))
        require_same("in pieces", whole, run_loop(_converse([pieces_of(each) for each in bursts])))
        logged.check()
    return whole


def _pub(topic: bytes, body: bytes) -> bytes:
    return b"PUB %b\n" % topic + struct.pack(">I", len(body)) + body


def _mpub(topic: bytes, *bodies: bytes) -> bytes:
    packed = struct.pack(">I", len(bodies)) + b"".join(struct.pack(">I", len(each)) + each for each in bodies)
    return b"MPUB %b\n" % topic + struct.pack(">I", len(packed)) + packed


def seeds() -> list[bytes]:
    sub = b"  V2SUB t ch\nRDY 9\n"
    ids = [b"%016x" % (FIRST_ID + number) for number in range(4)]
    fins = [b"FIN " + each + b"\n" for each in ids]
    bursts = [
        [
            b"  V2",
            _pub(b"t", b"one") + _pub(b"t", b"two"),
            _pub(b"t", b"three") + b"NOP\n" + _pub(b"u", b"x"),
        ],
        [
            sub,
            _mpub(b"t", b"a", b"b", b"c"),
            fins[0] + fins[1],
            b"REQ " + ids[2] + b" 0\n",
            fins[2] + b"CLS\n",
        ],
        [sub + _pub(b"t", b"m"), b"TOUCH " + ids[0] + b"\n" + fins[0] + fins[0], b"RDY 0\n" + fins[3]],
        [
            b'  V2IDENTIFY\n\0\0\0\x23{"heartbeat_interval":1000,"x":null}',
            b"SUB t#ephemeral c#ephemeral\nRDY 1\n",
        ],
        [
            b"  V2" + _mpub(b"t", b"a") * 3,
            _mpub(b"t", b"b", b"c") * 2 + b"DPUB t 5000\n\0\0\0\1z",
            b"DPUB t -1\n",
        ],
        [b"  V2AUTH\n\0\0\0\1s", b"SUB t c\n"],
        [sub, b"SUB t c\n"],
        [b"  V2" + _pub(b"t", b"w") * 3, _pub(b"t", b"v")[:-1], b"v" + b"PUB t\n\0\0\0"],
    ]
    return [SEPARATOR.join(each) for each in bursts]


TARGET = Target(
    name="protocol",
    run=run,
    seeds=seeds,
    modules=(
        "nsquark.wire.parser",
        "nsquark.nsqd.protocol.reading",
        "nsquark.nsqd.protocol.commands",
        "nsquark.nsqd.protocol.publishing",
        "nsquark.nsqd.protocol.connection",
        "nsquark.nsqd.core.publish",
        "nsquark.nsqd.core.answers",
        "nsquark.nsqd.core.channel",
    ),
    words=(
        SEPARATOR,
        _pub(b"t", b"w"),
        _mpub(b"t", b"w", b"v"),
        b"SUB t ch\n",
        b"RDY 1\n",
        b"FIN %016x\n" % FIRST_ID,
        b"REQ %016x 0\n" % FIRST_ID,
        b"TOUCH %016x\n" % FIRST_ID,
        b"CLS\n",
        b"NOP\n",
        b"DPUB t 1\n",
        b"#ephemeral",
        b"IDENTIFY\n\0\0\0\2{}",
        b"\xff\xff\xff\xff",
    ),
    max_length=700,
)
