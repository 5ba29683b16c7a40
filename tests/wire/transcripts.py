"""Conversations for the parser, and a peer that reads them as a connection would."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from nsquark.errors import NsquarkError
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

MAX_MSG_SIZE = 100
MAX_BODY_SIZE = 300
MAGIC = b"  V2"
RULES = {b"IDENTIFY": IDENTIFY_BODY, b"AUTH": AUTH_BODY, b"PUB": PUB_BODY, b"DPUB": DPUB_BODY}


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def mpub_body(*bodies: bytes) -> bytes:
    return struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies))


def fin(number: int) -> bytes:
    return b"FIN %016x\n" % number


def bodies_at(data: bytearray, start: int, count: int, skip: int) -> list[bytes]:
    """`count` bodies, before each of which are `skip` bytes and a size."""
    bodies = []
    for _ in range(count):
        (size,) = struct.unpack_from(">i", data, start + skip)
        start += skip + 4
        bodies.append(bytes(data[start : start + size]))
        start += size
    return bodies


@dataclass
class Heard:
    """What was understood of a transcript: one entry a command, however the parser grouped them."""

    commands: list[tuple[object, ...]] = field(default_factory=list)
    error: str = ""
    cut_short: str = ""


class Peer:
    """Asks the parser for bodies as nsqd's connection does, and takes runs apart."""

    def __init__(self, shared: bytearray, max_body_size: int = MAX_BODY_SIZE) -> None:
        self.parser = CommandParser(shared, MAX_MSG_SIZE, max_body_size)
        self.heard = Heard()
        self._max_body_size = max_body_size
        self._params: list[bytes] = []

    def hear(self, data: bytes) -> None:
        """Give the parser bytes, as many at a time as it has room for. After an error nothing is heard."""
        while data and not self.heard.error:
            room = len(self.parser.get_buffer())
            assert room > 0
            self.parser.feed(data[:room])
            data = data[room:]
            self._drain()

    def end(self) -> Heard:
        if not self.heard.error and (error := self.parser.cut_short()) is not None:
            self.heard.cut_short = str(error)
        return self.heard

    def _drain(self) -> None:
        try:
            while (event := self.parser.next_event()) is not None:
                self._take(event)
        except NsquarkError as error:
            self.heard.error = f"{type(error).__name__}: {error}"

    def _take(self, event: Line | Body | Fins | Reqs | Pubs | Mpub) -> None:
        say = self.heard.commands.append
        match event:
            case Fins(ranges):
                for first, end in ranges:
                    for number in range(first, end):
                        say((b"FIN", number))
            case Reqs(ranges, timeout):
                for first, end in ranges:
                    for number in range(first, end):
                        say((b"REQ", b"%016x" % number, timeout))
            case Pubs():
                params = event.line[:-1].removesuffix(b"\r").split(b" ")
                for body in bodies_at(event.data, event.start, event.count, event.length):
                    say((*params, body))
            case Mpub():
                if event.line:  # the whole command at once
                    self._params = event.line[:-1].removesuffix(b"\r").split(b" ")
                say((*self._params, bodies_at(event.data, event.start + 4, event.count, 0)))
            case Body(body):
                say((*self._params, bytes(body)))
            case Line(params):
                self._params = params
                if params[0] in RULES:
                    limit = MAX_MSG_SIZE if params[0].endswith(b"PUB") else self._max_body_size
                    self.parser.expect_body(RULES[params[0]], limit)
                elif params[0] == b"MPUB":
                    self.parser.expect_mpub()
                else:
                    say(tuple(params))


def hear(pieces: Iterable[bytes], room: int = 65536, max_body_size: int = MAX_BODY_SIZE) -> Heard:
    """What a parser with a shared buffer of `room` bytes makes of these pieces."""
    peer = Peer(bytearray(room), max_body_size)
    for piece in pieces:
        peer.hear(piece)
    return peer.end()


def cut(data: bytes, at: Iterable[int]) -> list[bytes]:
    """The data in pieces that end at these offsets."""
    offsets = sorted({0, len(data), *(each for each in at if each < len(data))})
    return [data[begin:end] for begin, end in pairwise(offsets)]


def bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]
