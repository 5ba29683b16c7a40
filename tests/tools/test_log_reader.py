"""Reading a log over HTTP, from a real nsqd, and from peers that answer wrongly on purpose."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nsquark.errors import ConnectFailed, ConnectionLost
from nsquark.tools.log_place import EARLIEST, LATEST, Place
from nsquark.tools.log_reader import (
    RUN_MESSAGES,
    LogChanged,
    LogError,
    LogMessage,
    LogReader,
    NoLog,
    PositionGone,
    TopicNotFound,
)
from tests.daemon import PATIENCE, Nsqd, until


async def everything(reader: LogReader, start: int | None = None, end: int | None = None) -> list[LogMessage]:
    return [message async for run in reader.runs(start, end) for message in run]


async def test_messages_come_with_all_that_the_log_knows(nsqd: Nsqd) -> None:
    before = time.time_ns()
    async with await nsqd.connect() as client:
        await client.pub("t", b"one")
        await client.mpub("t", [b"two\n", b"\xff\x00"])
        await client.dpub("t", 60_000, b"later")
    found = await everything(LogReader(nsqd.http_address, "t"))
    assert [message.body for message in found] == [b"one", b"two\n", b"\xff\x00", b"later"]
    assert [message.position for message in found] == [0, 1, 2, 3]
    assert {message.attempts for message in found} == {1}
    assert all(before <= message.timestamp_ns <= time.time_ns() for message in found)
    assert len({message.id for message in found}) == 4
    assert [message.due_ns > 0 for message in found] == [False, False, False, True]
    assert abs(found[3].due_ns - found[3].timestamp_ns - 60_000_000_000) < 1_000_000_000


@pytest.mark.parametrize("max_bytes", [0, 200, 4 << 20])
async def test_any_range_is_read_whole_whatever_the_size_of_an_answer(nsqd: Nsqd, max_bytes: int) -> None:
    bodies = [b"%d" % n * (n % 5 + 1) for n in range(60)]
    async with await nsqd.connect() as client:
        for n in range(0, 60, 10):  # batches of ten
            await client.mpub("t", bodies[n : n + 10])
    reader = LogReader(nsqd.http_address, "t", max_bytes=max_bytes)
    for start, end in [(0, 60), (0, 1), (59, 60), (9, 11), (13, 17), (10, 20), (5, 45), (30, 30)]:
        assert [m.body for m in await everything(reader, start, end)] == bodies[start:end], (start, end)
    assert [m.body for m in await everything(reader, 55, 1000)] == bodies[55:]


async def test_a_large_batch_comes_in_bounded_runs(nsqd: Nsqd) -> None:
    async with await nsqd.connect() as client:
        await client.mpub("t", [b"%d" % n for n in range(2500)])
    reader = LogReader(nsqd.http_address, "t")
    runs = [run async for run in reader.runs()]
    assert max(map(len, runs)) <= RUN_MESSAGES
    assert [m.body for run in runs for m in run] == [b"%d" % n for n in range(2500)]
    assert [m.position for m in await everything(reader, 999, 1001)] == [999, 1000]


async def test_no_channel_is_disturbed(nsqd: Nsqd) -> None:
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=ch")
    await nsqd.post("/pub?topic=t", b"one")
    before = await nsqd.http("GET", "/log/range?topic=t&channel=ch")
    assert len(await everything(LogReader(nsqd.http_address, "t"))) == 1
    assert await nsqd.http("GET", "/log/range?topic=t&channel=ch") == before


async def test_places_are_found(nsqd: Nsqd) -> None:
    async with await nsqd.connect() as client:
        await client.pub("t", b"one")
        await asyncio.sleep(0.005)  # times are asked for in milliseconds
        between = time.time_ns()
        await asyncio.sleep(0.005)
        await client.pub("t", b"two")
    reader = LogReader(nsqd.http_address, "t")
    assert await reader.find(EARLIEST) == 0
    assert await reader.find(LATEST) == 2
    assert await reader.find(Place(position=77)) == 77
    assert await reader.find(Place(time_ns=0)) == 0
    assert await reader.find(Place(time_ns=between)) == 1
    assert await reader.find(Place(time_ns=time.time_ns() + 10**12)) == 2


async def test_following_hears_of_news(nsqd: Nsqd) -> None:
    await nsqd.post("/pub?topic=t", b"0")
    runs = LogReader(nsqd.http_address, "t").runs(0, follow=True)
    for number in range(1, 4):
        async with asyncio.timeout(PATIENCE):
            assert [m.body for m in await anext(runs)] == [b"%d" % (number - 1)]
        await nsqd.post("/pub?topic=t", b"%d" % number)
    await runs.aclose()  # type: ignore[attr-defined]


async def test_what_is_gone_is_told_or_passed_over(tmp_path: Path) -> None:
    flags = ("--max-bytes-per-file=200", "--retention-bytes=1")
    with Nsqd(tmp_path / "data", *flags).start() as nsqd:
        async with await nsqd.connect() as client:
            for number in range(20):
                await client.pub("t", b"%d" % number)
        reader = LogReader(nsqd.http_address, "t")
        await nsqd.post("/channel/create?topic=t&channel=ch")
        await nsqd.post("/topic/empty?topic=t")
        await nsqd.post("/channel/empty?topic=t&channel=ch")

        async def forgotten() -> int:
            return (await reader.range()).first

        await until(forgotten)
        first = await forgotten()
        with pytest.raises(PositionGone) as caught:
            await everything(reader, 0)
        assert (caught.value.start, caught.value.end) == (0, first)
        lost: list[tuple[int, int]] = []
        runs = reader.runs(0, lost=lambda start, end: lost.append((start, end)))
        assert [m.position async for run in runs for m in run] == list(range(first, 20))
        assert lost == [(0, first)]


async def test_an_ephemeral_topic_may_have_forgotten_what_is_in_the_middle(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", "--mem-queue-size=10").start() as nsqd:
        await nsqd.post("/topic/create?topic=e%23ephemeral")
        await nsqd.post("/channel/create?topic=e%23ephemeral&channel=ch")
        async with await nsqd.connect() as client:
            for first in range(0, 100_000, 1000):
                await client.mpub("e#ephemeral", [b"%d" % n for n in range(first, first + 1000)])
        reader = LogReader(nsqd.http_address, "e#ephemeral")
        lost: list[tuple[int, int]] = []
        runs = reader.runs(0, lost=lambda start, end: lost.append((start, end)))
        found = [m.position async for run in runs for m in run]
        assert lost
        assert sorted([*found, *(n for span in lost for n in range(*span))]) == list(range(100_000))


async def test_mistakes_are_named(nsqd: Nsqd) -> None:
    with pytest.raises(TopicNotFound, match=r"no topic 'nope'"):
        await everything(LogReader(nsqd.http_address, "nope"))
    await nsqd.post("/pub?topic=t", b"one")
    reader = LogReader(nsqd.http_address, "t")
    with pytest.raises(LogError, match="not reached position 5: the next message will be at 1"):
        await everything(reader, 5)
    await nsqd.post("/topic/delete?topic=t")
    await nsqd.post("/pub?topic=t", b"other")
    with pytest.raises(LogChanged, match="created again"):
        await everything(reader, 0)
    address = nsqd.http_address
    nsqd.kill()
    with pytest.raises(ConnectFailed, match=address):
        await everything(LogReader(address, "t"))


# ---- peers that are no nsqd of ours


@asynccontextmanager
async def peer(answer: Callable[[str], tuple[int, bytes]]) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        status, body = answer(target)
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"{host}:{port}"


async def test_gos_nsqd_has_no_log() -> None:
    async with peer(lambda target: (404, b'{"message":"NOT_FOUND"}')) as address:
        with pytest.raises(NoLog, match=rf"{address} has no log .* Go's nsqd"):
            await everything(LogReader(address, "t"))


RANGE = (
    b'{"node":"n","topic":"t","epoch":"00000000000000aa","first":0,"next":2,"synced":2,"bytes":1,"new":"key"}'
)


async def good_answer(nsqd: Nsqd) -> bytes:
    async with await nsqd.connect() as client:
        await client.mpub("t", [b"one", b"two"])
    return (await nsqd.http("GET", "/log/read?topic=t"))[1]


async def test_damage_on_the_way_never_passes_for_messages(nsqd: Nsqd) -> None:
    good = await good_answer(nsqd)
    for at in range(len(good)):
        if 16 <= at < 24:  # the epoch, which the range has told before
            continue
        broken = good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :]
        async with peer(lambda t, b=broken: (200, RANGE if "range" in t else b)) as address:  # type: ignore[misc]
            with pytest.raises(ConnectionLost, match=address):
                await everything(LogReader(address, "t"))


@pytest.mark.parametrize(
    "answer", [b"", b"{}", b"NQR1" + bytes(28), struct.pack(">4sIQQQ", b"NQR1", 1, 0, 0, 0)]
)
async def test_what_is_no_answer_is_refused(answer: bytes) -> None:
    async with peer(lambda target: (200, RANGE if "range" in target else answer)) as address:
        with pytest.raises(ConnectionLost, match="not an answer of nsqd"):
            await everything(LogReader(address, "t"))
    async with peer(lambda target: (200, answer)) as address:
        with pytest.raises(ConnectionLost, match=address):
            await everything(LogReader(address, "t"))
