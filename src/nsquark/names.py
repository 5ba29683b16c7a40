"""What a topic or channel may be called, and what its files are called then."""

from __future__ import annotations

import re

EPHEMERAL = "#ephemeral"
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
