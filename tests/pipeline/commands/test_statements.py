from __future__ import annotations

import pytest

from nsquark.pipeline.commands.statements import split


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("", []),
        (" ;; \n-- nothing\n;", []),
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1; SELECT 2;", ["SELECT 1", "SELECT 2"]),
        ("SELECT ';' AS a, \"x;y\", `b;c`; SELECT 2", ["SELECT ';' AS a, \"x;y\", `b;c`", "SELECT 2"]),
        ("SELECT 1 -- no; end\n, 2", ["SELECT 1  \n, 2"]),
        ("SELECT /* a; b */ 1", ["SELECT   1"]),
        ("SELECT 'it''s; -- no comment'", ["SELECT 'it''s; -- no comment'"]),
        ("SELECT 4 - 2 / 1", ["SELECT 4 - 2 / 1"]),
        (r"SELECT 'a\'; b'; SELECT 2", [r"SELECT 'a\'; b'", "SELECT 2"]),
        ("SELECT /*+ BROADCAST(t) */ 1", ["SELECT /*+ BROADCAST(t) */ 1"]),
    ],
)
def test_semicolons_end_statements_where_they_are_not_quoted(text: str, statements: list[str]) -> None:
    assert split(text) == statements
