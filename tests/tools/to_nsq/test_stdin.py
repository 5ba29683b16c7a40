"""Reading by a thread: at once, not too far ahead, and to be given up at any time."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from nsquark.tools.to_nsq.stdin import READ, Input
from tests.daemon import PATIENCE


async def everything(source: Input) -> bytes:
    data = b""
    async with asyncio.timeout(PATIENCE):
        while piece := await source.read():
            data += piece
    return data


async def test_what_is_there_comes_at_once() -> None:
    reader, writer = os.pipe()
    source = Input(reader)
    for number in range(3):
        os.write(writer, b"%d" % number)
        async with asyncio.timeout(PATIENCE):
            assert await source.read() == b"%d" % number
    assert not source.ended
    os.close(writer)
    assert await source.read() == b""
    assert source.ended
    assert await source.read() == b""  # as often as it is asked
    os.close(reader)


async def test_a_file_is_read_in_large_pieces(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(os.urandom(3 * READ + 5))
    with path.open("rb") as file:
        source = Input(file.fileno())
        assert len(await source.read()) == READ
        rest = await everything(source)
        assert rest == path.read_bytes()[READ:]


async def test_it_reads_no_further_ahead_than_two_pieces(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(bytes(20 * READ))
    with path.open("rb") as file:
        source = Input(file.fileno())
        await source.read()
        await asyncio.sleep(0.2)  # time enough to read all of it
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) <= 3 * READ
        assert len(await everything(source)) == 19 * READ


async def test_a_descriptor_that_does_not_block_is_waited_for() -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    source = Input(reader)
    reading = asyncio.create_task(source.read())
    await asyncio.sleep(0.05)
    assert not reading.done()
    os.write(writer, b"data")
    async with asyncio.timeout(PATIENCE):
        assert await reading == b"data"
    os.close(writer)
    assert await everything(source) == b""
    os.close(reader)


async def test_abandoning_ends_a_read_that_waits_and_drops_what_was_read_ahead() -> None:
    reader, writer = os.pipe()
    source = Input(reader)
    reading = asyncio.create_task(source.read())
    await asyncio.sleep(0)
    source.abandon()
    assert await reading == b""
    os.write(writer, b"data")
    assert await source.read() == b""
    assert source.abandoned
    assert not source.ended
    os.close(writer)


async def test_an_error_of_reading_is_raised(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(IsADirectoryError):
        await Input(folder).read()
    os.close(folder)
