"""The names of a log's append-only files: a number, and the term of the primary that has written the file.

    00000000000000451200.log           a segment of term 0, as a node without replicas writes it
    00000000000000451200.t000003.log   a segment of term 3
    journal.000008.t000003             a journal of term 3

Each term has one primary, and a primary appends only to files of its own term. So two files of the same name
differ only in their lengths.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_STEM = re.compile(r"([0-9]{1,20})(?:\.t([0-9]{6,10}))?")


def with_term(stem: str, term: int) -> str:
    """The stem of a file's name in this term."""
    return f"{stem}.t{term:06d}" if term else stem


def parse_stem(stem: str) -> tuple[int, int] | None:
    """(number, term) of a stem; None if no log has written a file of that name."""
    match = _STEM.fullmatch(stem)
    return None if match is None else (int(match[1]), int(match[2] or 0))


def names_in(directory: Path) -> list[str]:
    """The names of all files of a directory; none if it is not there. Raises OSError."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
