"""TLS records behind a real handshake: what a client sends, damages, cuts short or inserts, in runs.

An input is a script of steps of three bytes, a letter and a number:

| letter | step |
|---|---|
| `w` | the client writes so many bytes |
| `f` | one bit of what the client has sent and the server has not got is flipped, the number says which |
| `x` | so many of those bytes are lost |
| `i` | so many bytes are inserted there |
| `p` | all of it arrives |
| `o` | that many bytes of it arrive |
| `r` | the server reads into a room of that size |
| `s` | the server writes so many bytes |
| `c` | the client says that it will send no more |

Plaintext that the server reads is a prefix of what the client has written, whatever happens between. The
compiled way to read and write must do what pyOpenSSL does.
"""

from __future__ import annotations

import contextlib
import ssl
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from nsquark import kernel
from nsquark.errors import ConnectionLost
from nsquark.wire.tls import TlsStream, server_context
from reliability.fuzz.target import Target, Wrong, require_same
from tests.security.certificates import Authority
from tests.wire.test_tls import Ends

MOST = 1 << 20  # bytes that each side writes
PATTERN = bytes(range(256)) * 300


@cache
def _contexts() -> tuple[Any, ssl.SSLContext]:
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        certificate, key = authority.sign("server")
        made = server_context(certificate.read_bytes(), key.read_bytes(), ssl.TLSVersion.TLSv1_2)
        return made, authority.client_context()


class _Conversation:
    def __init__(self, direct: bool) -> None:
        server, client = _contexts()
        stream = TlsStream(server)
        if not direct:
            stream._records = None
        elif kernel.COMPILED and stream._records is None:
            raise Wrong("the compiled way is not there")
        self.ends = Ends(stream, client)
        self.ends.shake()
        self.server = stream
        self.wire = bytearray()  # what the client has sent and the server has not got
        self.written, self.read = bytearray(), bytearray()  # by the client, by the server
        self.answered = bytearray()  # written by the server
        self.damaged = self.lost = False
        self.seen: list[object] = []

    def step(self, letter: str, number: int) -> None:
        if letter == "w" and len(self.written) + number <= MOST:
            self.ends.client.write(PATTERN[:number])
            self.written += PATTERN[:number]
            self.wire += self.ends.outgoing.read()
        elif letter == "c":
            with contextlib.suppress(ssl.SSLError):
                self.ends.client.unwrap()
            self.wire += self.ends.outgoing.read()
        elif letter in "fxi":
            self._damage(letter, number)
        elif letter in "po":
            self.server.received(self.wire if letter == "p" else self.wire[:number])
            del self.wire[: len(self.wire) if letter == "p" else number]
        elif letter == "s" and len(self.answered) + number <= MOST:
            self.server.write(PATTERN[:number])
            self.answered += PATTERN[:number]
        elif letter == "r" and number:
            self._read(number)

    def _damage(self, letter: str, number: int) -> None:
        if letter == "f" and self.wire:
            self.wire[(number >> 3) % len(self.wire)] ^= 1 << (number & 7)
            self.damaged = True
        elif letter == "x" and self.wire and number:
            del self.wire[:number]
            self.damaged = True
        elif letter == "i" and number:
            self.wire[:0] = PATTERN[: number % 500]
            self.damaged = True

    def _read(self, room: int) -> None:
        view = memoryview(bytearray(room))
        filled, dry = self.server.read_into(view)
        self.read += view[:filled]
        if not self.written.startswith(self.read):
            raise Wrong(f"{bytes(view[:filled])[:100]!r} was read, which the client has not written")
        if not self.damaged:
            self.seen.append((filled, dry, self.server.ended))

    def check_answers(self) -> None:
        """Everything that the server has written arrives."""
        self.ends.incoming.write(self.server.to_send())
        got = bytearray()
        try:
            while len(got) < len(self.answered):
                got += self.ends.client.read(1 << 16)
        except ssl.SSLError as error:
            if not self.damaged and not self.server.ended:
                raise Wrong(f"the client cannot read what the server has written: {error}") from None
        if not self.answered.startswith(got):
            raise Wrong("the client reads what the server has not written")


def _converse(data: bytes, direct: bool) -> object:
    conversation = _Conversation(direct)
    try:
        for at in range(0, min(len(data), 300) - 2, 3):
            letter, number = chr(data[at]), int.from_bytes(data[at + 1 : at + 3], "big")
            if letter in "wfxipors" or letter == "c":
                conversation.step(letter, number)
    except ConnectionLost as error:
        if not conversation.damaged:
            return conversation.seen, str(error)
    except ssl.SSLError as error:  # the client's own: it has said that it will send no more
        return conversation.seen, type(error).__name__
    if not conversation.damaged:
        conversation.check_answers()
        return conversation.seen, len(conversation.read)
    # What OpenSSL makes of damaged bytes depends on keys, which are new each time.
    return conversation.seen


def run(data: bytes) -> object:
    other = _converse(data, False)
    if kernel.COMPILED:
        require_same("the compiled way", other, _converse(data, True))
    return other


def _script(*steps: tuple[str, int]) -> bytes:
    return b"".join(letter.encode() + number.to_bytes(2, "big") for letter, number in steps)


def seeds() -> list[bytes]:
    return [
        _script(("w", 100), ("p", 0), ("r", 1000), ("s", 200), ("r", 10)),
        _script(("w", 40000), ("w", 3), ("p", 0), ("r", 30000), ("r", 30000), ("s", 60000)),
        _script(("w", 10), ("w", 10), ("o", 30), ("r", 100), ("p", 0), ("r", 100)),
        _script(("w", 100), ("w", 100), ("f", 1500), ("p", 0), ("r", 50), ("r", 500), ("r", 500), ("s", 1)),
        _script(("w", 100), ("x", 20), ("p", 0), ("r", 100), ("w", 5), ("p", 0), ("r", 100)),
        _script(("i", 50), ("p", 0), ("r", 100), ("s", 5)),
        _script(("w", 7), ("c", 0), ("p", 0), ("r", 5), ("r", 5), ("s", 10), ("r", 5)),
        _script(("f", 0), ("w", 1), ("f", 3), ("p", 0), ("r", 1), ("c", 0), ("p", 0), ("r", 9)),
    ]


TARGET = Target(
    name="tls_records",
    run=run,
    seeds=seeds,
    modules=("nsquark.wire.tls",),
    words=tuple(_script((letter, number)) for letter in "wfxiporsc" for number in (1, 300, 20000)),
    max_length=150,
)
