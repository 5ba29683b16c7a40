"""Requests of staged publishing that say something wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.nsqd.api import running
from tests.nsqd.staged.test_staging import mpub_body

PUT = "/staged/put?app=a&batch=1&partition=2&attempt=b&seq=0&topic=t"


GOOD = mpub_body([b"x"])


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/staged/put", GOOD, 400, "MISSING_ARG_APP"),
        (PUT.replace("app=a", "app="), GOOD, 400, "INVALID_APP"),
        (PUT.replace("app=a", "app=a/../b"), GOOD, 400, "INVALID_APP"),
        (PUT.replace("app=a", "app=a%00"), GOOD, 400, "INVALID_APP"),
        (PUT.replace("app=a", "app=" + "a" * 129), GOOD, 400, "INVALID_APP"),
        (PUT.replace("&batch=1", ""), GOOD, 400, "MISSING_ARG_BATCH"),
        (PUT.replace("batch=1", "batch=-1"), GOOD, 400, "INVALID_BATCH"),
        (PUT.replace("batch=1", "batch=9223372036854775808"), GOOD, 400, "INVALID_BATCH"),
        (PUT.replace("batch=1", "batch=1.0"), GOOD, 400, "INVALID_BATCH"),
        (PUT.replace("partition=2", "partition=2147483648"), GOOD, 400, "INVALID_PARTITION"),
        (PUT.replace("attempt=b", "attempt=../b"), GOOD, 400, "INVALID_ATTEMPT"),
        (PUT.replace("attempt=b", "attempt=" + "b" * 65), GOOD, 400, "INVALID_ATTEMPT"),
        (PUT.replace("&seq=0", ""), GOOD, 400, "MISSING_ARG_SEQ"),
        (PUT.replace("seq=0", "seq=x"), GOOD, 400, "INVALID_SEQ"),
        (PUT.replace("&topic=t", ""), GOOD, 400, "MISSING_ARG_TOPIC"),
        (PUT.replace("topic=t", "topic=a%20b"), GOOD, 400, "INVALID_TOPIC"),
        (PUT.replace("topic=t", "topic=t%23ephemeral"), GOOD, 400, "EPHEMERAL_TOPIC"),
        (PUT + "&defer=-1", GOOD, 400, "INVALID_DEFER"),
        (PUT + "&defer=3600001", GOOD, 400, "INVALID_DEFER"),
        (PUT + "&defer=soon", GOOD, 400, "INVALID_DEFER"),
        (PUT, b"", 413, "BAD_BODY"),
        (PUT, b"\0\0\0\0", 413, "BAD_BODY"),
        (PUT, GOOD + b"more", 413, "BAD_BODY"),
        (PUT, GOOD[:-1], 413, "BAD_MESSAGE"),
        (PUT, mpub_body([b""]), 413, "BAD_MESSAGE"),
        (PUT, mpub_body([b"x" * 1001]), 413, "BAD_MESSAGE"),
        (PUT, mpub_body([b"x" * 900] * 3), 413, "BODY_TOO_BIG"),
        ("/staged/publish?app=a", b"{}", 400, "MISSING_ARG_BATCH"),
        ("/staged/publish?app=a&batch=1", b"", 400, "INVALID_BODY"),
        ("/staged/publish?app=a&batch=1", b"[]", 400, "INVALID_BODY"),
        ("/staged/publish?app=a&batch=1", b'{"partitions":3}', 400, "INVALID_BODY"),
        ("/staged/publish?app=a&batch=1", b'{"partitions":[{"partition":0}]}', 400, "INVALID_BODY"),
        (
            "/staged/publish?app=a&batch=1",
            b'{"partitions":[{"partition":0,"attempt":"../x","messages":1}]}',
            400,
            "INVALID_BODY",
        ),
        (
            "/staged/publish?app=a&batch=1",
            b'{"partitions":[{"partition":true,"attempt":"x","messages":1}]}',
            400,
            "INVALID_BODY",
        ),
        (
            "/staged/publish?app=a&batch=1",
            b'{"partitions":[' + b",".join([b'{"partition":0,"attempt":"x","messages":1}'] * 2) + b"]}",
            400,
            "INVALID_BODY",
        ),
        ("/staged/abort", b"", 400, "MISSING_ARG_APP"),
        ("/staged/abort?app=a&batch=1&partition=x", b"", 400, "INVALID_PARTITION"),
        ("/staged/abort?app=a&batch=1&attempt=.", b"", 400, "INVALID_ATTEMPT"),
    ],
)
async def test_bad_requests_are_told_what_is_wrong(
    tmp_path: Path, path: str, body: bytes, status: int, code: str
) -> None:
    async with running(tmp_path, max_msg_size=1000, max_body_size=2000) as api:
        answer = await api.post(path, body)
        assert (answer.status, json.loads(answer.body)) == (status, {"message": code})
        assert not (tmp_path / "staged").exists()
