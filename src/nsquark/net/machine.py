"""What identifies the machine that this process runs on."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def boot_id() -> str:
    """The id of this boot of this machine: all processes under one running kernel have the same one.

    Empty where the system does not tell.
    """
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
