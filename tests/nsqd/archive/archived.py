"""An nsqd process with an archive, small segments, and what it tells of its log."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from tests.daemon import Client, Nsqd, until
from tests.http.served import Answer
from tests.nsqd.http.test_log import Read, parse_read

SEGMENT = 64 << 10
ROLLED = 2 << 20  # bytes from which on a consumed file is rolled, and some


def bodies(count: int, first: int = 0, size: int = 1000) -> list[bytes]:
    return [b"%06d " % number + b"x" * size for number in range(first, first + count)]


class ArchivingNsqd(Nsqd):
    def __init__(self, path: Path, *flags: str, store: Path | None = None) -> None:
        self.store = store or path / "store"
        super().__init__(
            path / "data", f"--archive-url=file://{self.store}", f"--max-bytes-per-file={SEGMENT}", *flags
        )

    async def publish(self, count: int, first: int = 0, topic: str = "t") -> None:
        for start in range(first, first + count, 50):
            await self.mpub(topic, bodies(min(50, first + count - start), start))

    async def mpub(self, topic: str, messages: list[bytes]) -> None:
        sized = b"".join(struct.pack(">I", len(each)) + each for each in messages)
        body = struct.pack(">I", len(messages)) + sized
        await self.post(f"/mpub?topic={topic}&binary=true", body)

    async def range(self, topic: str = "t") -> dict[str, Any]:
        status, answer = await self.http("GET", f"/log/range?topic={topic}")
        assert status == 200, answer
        told: dict[str, Any] = json.loads(answer)
        return told

    async def archive(self) -> dict[str, Any]:
        _, answer = await self.http("GET", "/stats?format=json")
        told: dict[str, Any] = json.loads(answer)["archive"]
        return told

    async def emptied(self, topic: str = "t") -> None:
        """Return when all that is rolled is only in the archive."""

        async def gone() -> bool:
            return len(self.segments(topic)) == 1

        await until(gone)

    def segments(self, topic: str = "t") -> list[Path]:
        return sorted((self.data_path / "topics" / topic).glob("*.log"))

    def records(self, topic: str = "t") -> list[Path]:
        return sorted((self.data_path / "topics" / topic).glob("*.archived"))

    def objects(self) -> list[Path]:
        return sorted(self.store.rglob("*.log"))

    async def read(self, start: int, end: int, topic: str = "t", more: str = "") -> Read:
        path = f"/log/read?topic={topic}&from={start}&to={end}{more}"
        status, body = await self.http("GET", path)
        return parse_read(Answer(status, {}, body))

    async def read_all(self, start: int, end: int, topic: str = "t") -> list[bytes]:
        found: list[bytes] = []
        while start + len(found) < end:
            found += (await self.read(start + len(found), end, topic)).bodies
        return found


async def consumed(client: Client, count: int) -> list[bytes]:
    """The bodies of this many messages, finished."""
    found = []
    for _ in range(count):
        message = await client.message()
        client.fin(message)
        found.append(message.body)
    return found
