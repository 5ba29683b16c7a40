"""SIGKILL under load, again and again: nothing is lost, and no more is repeated than was held."""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from collections import Counter
from functools import partial
from pathlib import Path

import cramjam
import pytest

from tests.daemon import Nsqd, until
from tests.tools.nsq_to_file.archiver import Archiver, unfinished

MESSAGES = 40_000
KILLS = 8
IN_FLIGHT = 50  # a small one makes the archiver slow enough to be killed amid its work


def whole_members(path: Path) -> bytes:
    """What a file holds, but for a last member that a kill has torn."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        lines = b""
        while data:
            member = zlib.decompressobj(16 + zlib.MAX_WBITS)
            part = member.decompress(data)
            if not member.eof:
                break
            lines, data = lines + part, member.unused_data
        return lines
    if path.suffix == ".zst" and data:
        try:
            return bytes(cramjam.zstd.decompress(data))
        except cramjam.DecompressionError:
            return bytes(cramjam.zstd.decompress(data[: data.rfind(b"\x28\xb5\x2f\xfd")]))
    return data


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "flags",
    [
        ("--filename-format=t.log",),
        ("--format=jsonl", "--filename-format=t<REV>.log", "--rotate-size=200000"),
        ("--gzip",),
        ("--zstd", "--rotate-size=300000", "--work-dir={tmp_path}/work"),
        ("--rotate-size=100000", "--work-dir={tmp_path}/work"),
    ],
    ids=["plain", "jsonl", "gzip", "zstd-moved", "plain-moved"],
)
async def test_killed_again_and_again_it_loses_nothing(tmp_path: Path, flags: tuple[str, ...]) -> None:
    bodies = [b"message %06d " % n + b"x" * 100 for n in range(MESSAGES)]
    chance = random.Random(repr(flags))
    with Nsqd(tmp_path / "data", "--msg-timeout=1s").start() as nsqd:
        await nsqd.post("/topic/create?topic=t")
        await nsqd.post("/channel/create?topic=t&channel=nsq_to_file")
        archiver = Archiver(
            tmp_path / "out",
            "--topic=t",
            f"--nsqd-tcp-address={nsqd.tcp_address}",
            f"--max-in-flight={IN_FLIGHT}",
            "--sync-interval=200ms",
            *(flag.format(tmp_path=tmp_path) for flag in flags),
        )
        # Every archiver gets messages of its own, so that the number of kills does not depend on its speed.
        for first in range(0, MESSAGES, MESSAGES // KILLS):
            async with await nsqd.connect() as client:
                await client.mpub("t", bodies[first : first + MESSAGES // KILLS])
            left = await unfinished(nsqd, "t")
            archiver.start()
            # The kill comes soon after the first sync, or later.
            await until(partial(_left, nsqd, left - chance.randrange(1, left)))
            archiver.kill()
        with archiver.start():
            archiver.wait_for_line("connected to")  # perhaps everything is finished, and it has just begun
            await until(partial(_left, nsqd, 0))
            assert await asyncio.to_thread(archiver.stop) == 0
    work = tmp_path / "work"
    assert not work.exists() or not [path for path in work.rglob("*") if path.is_file()]
    archived = Counter(_lines(tmp_path / "out", "--format=jsonl" in flags))
    assert set(bodies) <= set(archived)
    torn = set(archived) - set(bodies)
    assert len(torn) <= KILLS
    assert all(any(body.startswith(part) for body in bodies) for part in torn)
    repeated = sum(archived[body] for body in bodies) - MESSAGES
    assert repeated <= KILLS * IN_FLIGHT


async def _left(nsqd: Nsqd, most: int) -> bool:
    return 0 <= await unfinished(nsqd, "t") <= most


def _lines(directory: Path, jsonl: bool) -> list[bytes]:
    lines = [line for path in directory.iterdir() for line in whole_members(path).splitlines()]
    return [json.loads(line)["body"].encode() for line in lines] if jsonl else lines
