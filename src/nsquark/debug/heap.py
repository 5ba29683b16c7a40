"""What memory is used for, by allocation site: tracemalloc's answer as a profile.

A snapshot of a large heap takes the interpreter for seconds, so a forked child takes it: it has the same
heap, writes the profile into a pipe, and ends. The daemon only copies its page tables.
"""

from __future__ import annotations

import asyncio
import os
import signal
import warnings
from typing import NoReturn

from .profile import Place, Profile, gzipped

TIMEOUT = 60.0


def is_traced() -> bool:
    import tracemalloc

    return tracemalloc.is_tracing()


def trace(frames: int) -> None:
    """Remember from now on where memory is allocated, with so many frames; 0 forgets everything."""
    import tracemalloc

    tracemalloc.stop()
    if frames:
        tracemalloc.start(frames)


def traced() -> dict[str, int]:
    import tracemalloc

    if not tracemalloc.is_tracing():
        return {"frames": 0}
    current, peak = tracemalloc.get_traced_memory()
    return {
        "frames": tracemalloc.get_traceback_limit(),
        "traced_bytes": current,
        "peak_traced_bytes": peak,
        "own_bytes": tracemalloc.get_tracemalloc_memory(),
    }


def heap_profile() -> bytes:
    """Everything that is allocated now, as a gzipped pprof. Takes its time: see `from_child`."""
    import tracemalloc

    profile = Profile([("inuse_objects", "count"), ("inuse_space", "bytes")], 1)
    for statistic in tracemalloc.take_snapshot().statistics("traceback"):
        # tracemalloc knows files and lines; a line is what can be told apart
        stack = tuple(
            Place(f"{os.path.basename(frame.filename)}:{frame.lineno}", frame.filename, 0, frame.lineno)
            for frame in reversed(statistic.traceback)
        )
        profile.add("", stack, statistic.count, statistic.size)
    return gzipped(b"".join(profile.pprof()))


async def from_child() -> bytes:
    """`heap_profile` of this process, made in a child of it. Raises TimeoutError, OSError."""
    loop = asyncio.get_running_loop()
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Other threads may hold locks when we fork. The child needs none that Python does not renew, and if
        # it should ever wait for one all the same, it is killed in time.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            child = os.fork()
        except OSError:
            os.close(reader)
            os.close(writer)
            raise
    if not child:
        _answer(writer)
    os.close(writer)
    stream = asyncio.StreamReader()
    pipe, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reader, "rb")
    )
    try:
        async with asyncio.timeout(TIMEOUT):
            data = await stream.read()
    finally:
        pipe.close()
        os.kill(child, signal.SIGKILL)  # it has ended, or should have
        await loop.run_in_executor(None, os.waitpid, child, 0)
    if not data:
        raise OSError("the child that took the snapshot ended without an answer")
    return data


def _answer(writer: int) -> NoReturn:
    """In the child: no way out of here leads back into the daemon."""
    try:
        # Nothing of the daemon's is ours: sockets and locks must not outlive it with us.
        os.closerange(0, writer)
        os.closerange(writer + 1, os.sysconf("SC_OPEN_MAX"))
        data = heap_profile()
        with os.fdopen(writer, "wb", closefd=False) as out:
            out.write(data)
    finally:
        os._exit(0)
