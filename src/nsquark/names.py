"""What a topic or channel may be called."""

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
