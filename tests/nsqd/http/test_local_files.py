"""`/log/read` for clients on nsqd's machine: names of files in place of bytes, and to no other client."""

from __future__ import annotations

import json
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nsquark.net.machine import boot_id
from nsquark.nsqd.http.local_files import CONTENT_TYPE
from tests.daemon import until
from tests.nsqd.api import Api, running

pytestmark = pytest.mark.skipif(not boot_id(), reason="the system does not tell its boots apart")


async def fill(api: Api, count: int = 3000, size: int = 1000) -> None:
    client = await api.client()
    for first in range(0, count, 500):
        await client.mpub("t", [b"%d " % number + b"x" * size for number in range(first, first + 500)])


async def named(api: Api, query: str = "") -> dict[str, Any]:
    answer = await api.get(f"/log/read?topic=t&index=0&local={boot_id()}{query}")
    assert (answer.status, answer.headers["Content-Type"]) == (200, CONTENT_TYPE)
    told: dict[str, Any] = json.loads(answer.body)
    return told


def bytes_of(told: dict[str, Any]) -> bytes:
    found = b""
    for file in told["files"]:
        path = Path(file["path"])
        status = path.stat()
        assert path.is_absolute()
        assert (status.st_dev, status.st_ino) == (file["device"], file["inode"])
        data = path.read_bytes()
        found += data[file["start"] : file["stop"]]
        assert data[file["last"] :][:48].hex() == file["header"]
        (length,) = struct.unpack_from(">I", data, file["last"] + 8)
        assert file["last"] + length == file["stop"]
    return found


async def test_the_named_bytes_are_those_that_would_be_sent(tmp_path: Path) -> None:
    async with running(tmp_path, max_bytes_per_file=1 << 20) as api:
        await fill(api)
        for query in ("", "&from=777", "&from=777&to=2100", "&from=100&to=1999"):
            told = await named(api, query)
            sent = await api.get(f"/log/read?topic=t&index=0&max_bytes=100000000{query}")
            assert bytes_of(told) == sent.body[32:]
            assert told["count"] == int.from_bytes(sent.body[4:8], "big")
            assert told["position"] == int.from_bytes(sent.body[8:16], "big")
            assert told["epoch"] == sent.body[16:24].hex()
        assert len((await named(api))["files"]) > 1


async def test_a_reader_elsewhere_gets_bytes(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        await fill(api)
        for local in ("", "00000000-0000-0000-0000-000000000000", boot_id()[:-1], "%ff%C3%A4"):
            answer = await api.get(f"/log/read?topic=t&index=0&local={local}")
            assert answer.body[:4] == b"NQR1"
            assert str(tmp_path).encode() not in answer.body


async def test_few_bytes_an_index_and_memory_are_sent(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        await fill(api)
        client = await api.client()
        await client.mpub("t", [b"one"])
        await client.mpub("e#ephemeral", [b"x" * 1000] * 200)
        for query in (
            "topic=t&index=0&from=3000",
            "topic=t&index=1",
            "topic=t&index=0&max_bytes=2000",
            "topic=e%23ephemeral&index=0",
        ):
            answer = await api.get(f"/log/read?{query}&local={boot_id()}")
            assert answer.status == 200
            assert answer.body[:4] == b"NQR1"


def held_files(folder: Path) -> int:
    """How many descriptors of this process lead into a folder."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself, or one of another thread
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sum(link.startswith(str(folder)) and link.endswith(".log") for link in links)


async def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    async with running(tmp_path, max_bytes_per_file=1 << 20) as api:
        await fill(api)
        for _ in range(20):
            assert len((await named(api))["files"]) > 1
        await until(lambda: held_files(tmp_path) < 20)
