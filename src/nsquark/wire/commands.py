"""The commands that a client sends with a body, and the checks before a byte leaves."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from nsquark.errors import UsageError
from nsquark.kernel import Buffer, pack_mpub
from nsquark.names import is_valid_name

_SIZE = struct.Struct(">I")
pack_size = _SIZE.pack
MAX_DELAY_MS = 3_600_000
NOP = b"NOP\n"


def pack_command(line: bytes, body: bytes) -> bytes:
    """A command with its body: IDENTIFY, AUTH or PUB."""
    return line + pack_size(len(body)) + body


def line(command: str, topic: str, *parameters: int) -> bytes:
    """The line of a command. Raises UsageError for a topic that NSQ would misread."""
    if not is_valid_name(topic):
        raise UsageError(f"topic {topic!r} is no valid name")
    return " ".join([command, topic, *map(str, parameters)]).encode() + b"\n"


def body_bytes(body: Buffer, max_msg_size: int) -> bytes:
    """The body as bytes, which cannot change any more. Raises UsageError if NSQ would refuse it."""
    if type(body) is not bytes:
        if not isinstance(body, bytes | bytearray | memoryview):
            raise UsageError(f"a body is bytes, not {type(body).__name__}")
        body = bytes(body)
    if not 0 < len(body) <= max_msg_size:
        raise UsageError(f"a body of {len(body)} bytes; it takes 1 to {max_msg_size}")
    return body


def pack_many(head: bytes, bodies: Sequence[Buffer], max_msg_size: int, max_body_size: int) -> bytes:
    """A whole MPUB command. Raises UsageError if NSQ would refuse it."""
    if not bodies:
        raise UsageError("no messages to publish")
    try:
        index, command = pack_mpub(head, bodies, max_msg_size)
    except TypeError:
        raise UsageError("a body is bytes") from None
    if index >= 0:
        size = len(bodies[index])
        raise UsageError(f"body {index} has {size} bytes; it takes 1 to {max_msg_size}")
    if len(command) - len(head) - 4 > max_body_size:
        raise UsageError(f"{len(command)} bytes at once; an MPUB takes {max_body_size}")
    return command


def split_bodies(bodies: Sequence[Buffer], max_body_size: int) -> list[Sequence[Buffer]]:
    """The bodies in runs, each of which is an MPUB of at most `max_body_size` bytes if its bodies are."""
    runs = []
    start, size = 0, 4
    for index, body in enumerate(bodies):
        size += 4 + len(body)
        if size > max_body_size and index > start:
            runs.append(bodies[start:index])
            start, size = index, 8 + len(body)
    return [*runs, bodies[start:]]
