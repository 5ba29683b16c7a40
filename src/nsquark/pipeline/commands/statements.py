"""The statements of a SQL file."""

from __future__ import annotations

import re

# A semicolon within a comment, a quoted text or a quoted name does not end a statement.
_PIECE = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|;|[^-/'\"`;]+|.", re.DOTALL
)


def split(text: str) -> list[str]:
    """The statements of a text, without comments and without empty statements."""
    statements = [""]
    for piece in _PIECE.findall(text):
        if piece == ";":
            statements.append("")
        elif piece.startswith("--") or (piece.startswith("/*") and not piece.startswith("/*+")):
            statements[-1] += " "
        else:
            statements[-1] += piece
    return [each.strip() for each in statements if each.strip()]
