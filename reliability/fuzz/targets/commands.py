"""The V2 commands of a client: `wire.CommandParser`, fed whole, byte by byte and in pieces.

The events may be grouped in another way when the bytes come in other pieces; the commands are the same.
"""

from __future__ import annotations

from nsquark.errors import NsquarkError
from reliability.fuzz.target import Target, bytewise, pieces_of, require_same
from tests.wire.transcripts import MAGIC, Heard, Peer, fin, mpub_body, sized

SMALL = 4096  # a shared buffer that a long line, or an incomplete command, does not fit into


class PausingPeer(Peer):
    """Puts off, after every event, what follows it, as a connection does that waits for an auth server."""

    def _drain(self) -> None:
        try:
            while (event := self.parser.next_event()) is not None:
                self._take(self.parser.keep(event))
                self.parser.received(0)
        except NsquarkError as error:
            self.heard.error = f"{type(error).__name__}: {error}"


def _hear(peer: Peer, pieces: list[bytes]) -> Heard:
    for piece in pieces:
        peer.hear(piece)
    return peer.end()


def run(data: bytes) -> object:
    whole = _hear(Peer(bytearray(65536)), [data])
    require_same("byte by byte", whole, _hear(Peer(bytearray(65536)), bytewise(data)))
    require_same("in pieces, a small buffer", whole, _hear(Peer(bytearray(SMALL)), pieces_of(data)))
    require_same("pausing after each event", whole, _hear(PausingPeer(bytearray(SMALL)), pieces_of(data)))
    return whole


def seeds() -> list[bytes]:
    pubs = b"PUB t\n" + sized(b"one") + b"PUB t\n" + sized(b"two") + b"PUB u\n" + sized(b"\n\n")
    mpubs = b"MPUB t\n" + sized(mpub_body(b"a", b"bc")) + b"MPUB t\r\n" + sized(mpub_body(b"x" * 90))
    answers = fin(1) + fin(2) + fin(4) + b"REQ 0000000000000003 0\nTOUCH 0000000000000005\n" + fin(2**64 - 1)
    return [
        MAGIC + pubs,
        MAGIC + mpubs,
        MAGIC + b"IDENTIFY\n" + sized(b"{}") + b"SUB t ch\nRDY 5\n" + answers + b"NOP\nCLS\n",
        MAGIC + b"DPUB t 100\n" + sized(b"later") + b"AUTH\n" + sized(b"secret"),
        MAGIC + b"MPUB t\n" + sized(mpub_body(*[b"y"] * 20)) + pubs,
        MAGIC + b"PUB t\n" + sized(b"z" * 101),
        MAGIC + b"MPUB t\n\0\0\1\0\0\0\0\2\0\0\0\1a\0\0\0",
        MAGIC + b"X" * 17000,
    ]


TARGET = Target(
    name="commands",
    run=run,
    seeds=seeds,
    modules=("nsquark.wire.parser",),
    words=(
        MAGIC,
        b"PUB t\n",
        b"MPUB t\n",
        b"DPUB t 1\n",
        b"IDENTIFY\n",
        b"AUTH\n",
        b"FIN 0000000000000001\n",
        b"SUB t c\n",
        b"\r\n",
        b"\0\0\0\1",
        b"\0\0\0\2",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\0\0\0\x64",
        b"\0\0\0\x65",
    ),
    max_length=800,
)
