"""Writing by a thread: in order, whole, and without holding up the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from nsquark.tools.command.stdout import StdoutWriter


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


async def read_exactly(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await asyncio.to_thread(os.read, fd, size - len(data))
    return data


async def test_a_reader_who_waits_holds_up_the_writer_alone(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    stdout = StdoutWriter(writer)
    first = asyncio.create_task(stdout.write(b"a" * 1_000_000))
    second = asyncio.create_task(stdout.write(b"b"))
    await asyncio.sleep(0.05)  # the event loop goes on
    assert not first.done()
    assert await read_exactly(reader, 1_000_001) == b"a" * 1_000_000 + b"b"
    await asyncio.gather(first, second)


async def test_a_descriptor_that_does_not_block_is_waited_for(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.set_blocking(writer, False)
    writing = asyncio.create_task(StdoutWriter(writer).write(b"a" * 1_000_000))
    assert await read_exactly(reader, 1_000_000) == b"a" * 1_000_000
    await writing


async def test_an_error_is_that_of_its_write(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    stdout = StdoutWriter(writer)
    await stdout.write(b"one")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), reader)  # closes the pipe, and keeps the number for the fixture
    with pytest.raises(BrokenPipeError):
        await stdout.write(b"two")
    with pytest.raises(BrokenPipeError):
        await stdout.write(b"three")


async def test_a_caller_who_gives_up_does_not_disturb_the_next(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    stdout = StdoutWriter(writer)
    first = asyncio.create_task(stdout.write(b"a" * 200_000))
    await asyncio.sleep(0)
    first.cancel()
    second = asyncio.create_task(stdout.write(b"b"))
    assert await read_exactly(reader, 200_001) == b"a" * 200_000 + b"b"
    await second
    assert first.cancelled()
