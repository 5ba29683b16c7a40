"""What a primary tells about its files, and what is none of that."""

from __future__ import annotations

import json

import pytest

from nsquark.nsqd.replica.changes.frames import BadFrame
from nsquark.nsqd.replica.changes.manifest import Manifest, parse_manifest

GOOD = {"node": "n", "term": 3, "stream": "s", "sequence": 7, "files": {"nsqd.dat": 2, "topics/t/1.log": 0}}


def test_a_manifest_is_parsed() -> None:
    files = {"nsqd.dat": 2, "topics/t/1.log": 0}
    assert parse_manifest(json.dumps(GOOD).encode()) == Manifest("n", 3, "s", 7, files)


@pytest.mark.parametrize(
    "change",
    [
        {"term": float("inf")},
        {"sequence": float("nan")},
        {"sequence": -1},
        {"term": True},
        {"term": 1 << 63},
        {"node": 1},
        {"stream": None},
        {"files": [[1, 2]]},
        {"files": {"nsqd.dat": "2"}},
        {"files": {"nsqd.dat": 1.5}},
        {"files": {"../outside": 1}},
        {"files": {"topics/../../outside": 1}},
        {"files": {"other": 1}},
    ],
)
def test_what_no_primary_tells_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(BadFrame):
        parse_manifest(json.dumps(GOOD | change).encode())


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"7", b"\xff", b"[" * 100_000])
def test_what_is_no_manifest_is_refused(body: bytes) -> None:
    with pytest.raises(BadFrame):
        parse_manifest(body)
