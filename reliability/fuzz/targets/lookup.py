"""The V1 protocol between nsqd and nsqlookupd: commands with the real registrations behind, and answers."""

from __future__ import annotations

from nsquark.errors import ConnectionLost, ProtocolError
from nsquark.wire import (
    LOOKUP_MAGIC,
    AnswerParser,
    pack_answer,
    pack_lookup_identify,
    pack_register,
    pack_unregister,
    parse_lookupd,
)
from reliability.fuzz.memory import MemoryTransport, run_loop
from reliability.fuzz.target import Target, bytewise, pieces_of, require_same

PEER = b'{"broadcast_address":"a","hostname":"h","tcp_port":1,"http_port":2,"version":"1.3.0"}'


def _converse(pieces: list[bytes]) -> tuple[object, ...]:
    """What nsqlookupd answers, and what it has registered before the connection ends."""
    from nsquark.nsqlookupd.connection import Connection
    from nsquark.nsqlookupd.directory import Directory
    from nsquark.nsqlookupd.options import Options

    async def talk() -> tuple[object, ...]:
        directory = Directory(Options(broadcast_address="here"), 1, 2)
        connection, transport = Connection(directory), MemoryTransport()
        connection.connection_made(transport)
        for piece in pieces:
            connection.data_received(piece)
        known = directory.registrations
        seen = sorted(known.topics), sorted((topic, *sorted(each)) for topic, each in known.channels.items())
        connection.eof_received()
        ended = transport.eof or transport.closed
        connection.connection_lost(None)
        return bytes(transport.written), seen, ended, directory.connections == set()

    return run_loop(talk())


def _answers(pieces: list[bytes]) -> tuple[object, ...]:
    parser = AnswerParser(300)
    heard: list[bytes] = []
    try:
        for piece in pieces:
            heard += parser.feed(piece)
    except ConnectionLost as error:
        return heard, str(error)
    return heard, ""


def _document(body: bytes) -> object:
    try:
        return parse_lookupd(body)
    except ProtocolError as error:
        return str(error)


def run(data: bytes) -> object:
    whole = _converse([data])
    require_same("byte by byte", whole, _converse(bytewise(data)))
    require_same("in pieces", whole, _converse(pieces_of(data)))
    answers = _answers([data])
    require_same("answers byte by byte", answers, _answers(bytewise(data)))
    return whole, answers, _document(data)


def seeds() -> list[bytes]:
    identify = LOOKUP_MAGIC + pack_lookup_identify(PEER)
    return [
        identify + b"PING\n",
        identify + pack_register("t") + pack_register("t", "ch") + pack_unregister("t", "ch") + b"PING\n",
        identify + pack_register("t", "ch#ephemeral") + pack_unregister("t"),
        LOOKUP_MAGIC + b"PING\n\nREGISTER\n",
        LOOKUP_MAGIC + b"IDENTIFY\n\0\0\0\2{}",
        pack_answer(b"OK") * 3 + pack_answer(PEER),
        PEER,
    ]


TARGET = Target(
    name="lookup",
    run=run,
    seeds=seeds,
    modules=("nsquark.wire.lookup", "nsquark.nsqlookupd.connection", "nsquark.nsqlookupd.registrations"),
    words=(
        LOOKUP_MAGIC,
        b"PING\n",
        b"REGISTER t\n",
        b"REGISTER t c\n",
        b"UNREGISTER t c\n",
        b"IDENTIFY\n",
        PEER,
        b"\0\0\0\2",
        b"#ephemeral",
        b"\xff\xff\xff\xff",
        b'"tcp_port":',
        b"NaN",
        b"\\ud800",
    ),
    max_length=2000,
)
