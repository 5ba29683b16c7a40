"""The statements of a SQL file."""

from __future__ import annotations

import re

# What a semicolon does not end: comments, quoted text and names.
_PIECE = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|;|[^-/'\"`;]+|.", re.DOTALL
)


def split(text: str) -> list[str]:
    """Without comments and without those that say nothing."""
    statements = [""]
    for piece in _PIECE.findall(text):
        if piece == ";":
            statements.append("")
        elif piece.startswith("--") or (piece.startswith("/*") and not piece.startswith("/*+")):
            statements[-1] += " "
        else:
            statements[-1] += piece
    return [each.strip() for each in statements if each.strip()]
