"""What a topic or channel may be called, and what its files are called then."""

from __future__ import annotations

import re
from hashlib import sha256

EPHEMERAL = "#ephemeral"
DEAD_LETTER_CHANNEL = "redeliver"
MAX_NAME = 64
_DEAD = ".dead"
_HASH_LENGTH = 10
_NAME = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?")
_NAME_BYTES = re.compile(rb"[.a-zA-Z0-9_-]+(#ephemeral)?")


def is_valid_name(name: str) -> bool:
    """Whether NSQ takes this as the name of a topic or channel (the suffix counts towards the 64)."""
    return 1 <= len(name) <= 64 and _NAME.fullmatch(name) is not None


def parse_name(name: bytes) -> str | None:
    """The name as text, or None when NSQ would refuse it."""
    if 1 <= len(name) <= 64 and _NAME_BYTES.fullmatch(name):
        return name.decode("ascii")
    return None


def is_ephemeral(name: str) -> bool:
    return name.endswith(EPHEMERAL)


def to_file_name(name: str) -> str:
    """What goes into a path: `.` and `..` are possible names, so a leading dot is written %2E."""
    return "%2E" + name[1:] if name.startswith(".") else name


def from_file_name(file_name: str) -> str:
    return "." + file_name[3:] if file_name.startswith("%2E") else file_name


def dead_topic(topic: str, channel: str) -> str:
    """Where the dead letters of a channel go.

    What comes of something ephemeral is ephemeral. A name that would be too long is cut, and told apart from
    others by a hash of the whole.
    """
    suffix = _DEAD + (EPHEMERAL if is_ephemeral(topic) or is_ephemeral(channel) else "")
    whole = f"{topic.removesuffix(EPHEMERAL)}.{channel.removesuffix(EPHEMERAL)}"
    if len(whole) + len(suffix) <= MAX_NAME:
        return whole + suffix
    digest = sha256(f"{topic}\n{channel}".encode()).hexdigest()[:_HASH_LENGTH]
    return f"{whole[: MAX_NAME - len(suffix) - _HASH_LENGTH - 1]}.{digest}{suffix}"


def is_dead_topic(topic: str) -> bool:
    """Whether this is where dead letters go. What dies there stays there."""
    return topic.removesuffix(EPHEMERAL).endswith(_DEAD)
