"""Fields of documents that other programs wrote."""

from __future__ import annotations

from typing import Any

import pytest

from nsquark.nsqadmin.cluster.document import Fields, boolean, integer, text

FIELDS = Fields(name=str, depth=int, paused=bool)


@pytest.mark.parametrize(
    "document",
    [
        {"name": "orders", "depth": 7, "paused": True},
        {"paused": True, "more": [1], "depth": 7, "name": "orders"},
        {},
        {"name": None, "depth": None, "paused": None},
        {"name": 7, "depth": "7", "paused": 1},
        {"name": "orders", "depth": 7.9, "paused": True},
        {"name": "orders", "depth": float("inf"), "paused": True},
        {"name": "orders", "depth": True, "paused": "true"},
    ],
)
def test_fields_that_are_read_at_once_are_as_those_read_one_by_one(document: dict[str, Any]) -> None:
    one_by_one = (text(document, "name"), integer(document, "depth"), boolean(document, "paused"))
    assert FIELDS.read(document) == one_by_one
    assert list(map(type, FIELDS.read(document))) == [str, int, bool]
