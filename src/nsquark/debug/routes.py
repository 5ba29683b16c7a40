"""The routes under `/debug`: Go's names where there is such a thing in Python.

Everything is bounded: one profile at a time, for five minutes at most, and nothing holds up the event loop
but `freememory`, which collects garbage as it does in Go.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import sys
import threading
from collections.abc import Iterator

from nsquark.gotext import parse_int
from nsquark.http import HttpError, Request, Response, Router, plain_text, slices, v1_empty, v1_json

from . import heap, stacks
from .profile import Profile, gzipped
from .sampler import BlockWatcher, CpuSampler

MAX_SECONDS = 300.0
DEFAULT_SECONDS = 30.0
MAX_FRAMES = 64
LEAST_BLOCK_PERIOD = 0.001

INDEX = """<!doctype html>
<title>/debug/pprof/</title>
<h1>/debug/pprof/</h1>
<table>
<tr><td><a href="profile">profile</a><td>processor time of all threads over <code>?seconds=</code> (30)
<tr><td><a href="heap">heap</a><td>memory by allocation site, once
<code>PUT /debug/tracemalloc?frames=8</code>
<tr><td><a href="goroutine">goroutine</a><td>the stacks of all tasks and threads, as text
<tr><td><a href="threadcreate">threadcreate</a><td>the threads, as text
<tr><td><a href="block">block</a><td>what holds up the event loop, once
<code>PUT /debug/setblockrate?rate=1000000</code>
<tr><td><a href="cmdline">cmdline</a><td>the command line, its words divided by NUL
</table>
<p>profile, heap and block are for <code>go tool pprof</code> or speedscope;
profile and block with <code>?format=collapsed</code> are text for a flame graph.
"""


def add_debug_routes(router: Router) -> None:
    """Mount everything under `/debug`."""
    api = DebugApi()
    for method, path, handler in (
        ("GET", "/debug/pprof/", api.index),
        ("GET", "/debug/pprof/cmdline", api.cmdline),
        ("GET", "/debug/pprof/symbol", api.symbol),
        ("POST", "/debug/pprof/symbol", api.symbol),
        ("GET", "/debug/pprof/goroutine", api.goroutine),
        ("GET", "/debug/pprof/threadcreate", api.threadcreate),
    ):
        router.add(method, path, handler, logged=False)
    router.add("GET", "/debug/pprof/profile", api.profile, logged=False)
    router.add("GET", "/debug/pprof/heap", api.heap, logged=False)
    router.add("GET", "/debug/pprof/block", api.block, logged=False)
    router.add("GET", "/debug/tracemalloc", api.tracemalloc)
    router.add("PUT", "/debug/tracemalloc", api.set_tracemalloc)
    router.add("PUT", "/debug/setblockrate", api.set_block_rate)
    router.add("POST", "/debug/freememory", api.free_memory)


class DebugApi:
    """A method per route."""

    def __init__(self) -> None:
        self._busy = False  # a profile is being taken
        self._watcher: BlockWatcher | None = None

    def index(self, _request: Request) -> Response:
        return Response(200, INDEX.encode(), (("Content-Type", "text/html; charset=utf-8"),))

    def cmdline(self, _request: Request) -> Response:
        return plain_text(200, "\0".join(sys.orig_argv))

    def symbol(self, _request: Request) -> Response:
        """pprof asks this of servers that tell addresses; our profiles have the names in them."""
        return plain_text(200, "num_symbols: 0\n")

    def goroutine(self, _request: Request) -> Response:
        return plain_text(200, "".join([*stacks.task_lines(), *stacks.thread_lines()]))

    def threadcreate(self, _request: Request) -> Response:
        return plain_text(200, "".join(stacks.thread_lines()).lstrip("\n"))

    # ---- profiles

    async def profile(self, request: Request) -> Response:
        seconds = _seconds(request)
        collapsed = _is_collapsed(request)
        with self._one_at_a_time():
            sampler = CpuSampler(seconds)
            await _in_thread(sampler)
        return await _packed(sampler.profile, collapsed, "profile")

    async def heap(self, _request: Request) -> Response:
        if not heap.is_traced():
            raise HttpError(409, "NOT_TRACED")
        with self._one_at_a_time():
            return _download(await heap.from_child(), "heap")

    async def block(self, request: Request) -> Response:
        collapsed = _is_collapsed(request)
        kinds = [("contentions", "count"), ("delay", "nanoseconds")]
        profile = self._watcher.profile if self._watcher is not None else Profile(kinds)
        return await _packed(profile, collapsed, "block")

    def _one_at_a_time(self) -> _Turn:
        if self._busy:
            raise HttpError(409, "PROFILE_IN_PROGRESS")
        return _Turn(self)

    # ---- switches

    def tracemalloc(self, _request: Request) -> Response:
        return v1_json(heap.traced())

    def set_tracemalloc(self, request: Request) -> Response:
        try:
            frames = parse_int(request.query.get("frames", "1"), 10)
        except ValueError:
            frames = -1
        if not 0 <= frames <= MAX_FRAMES:
            raise HttpError(400, "INVALID_FRAMES")
        heap.trace(frames)
        return v1_json(heap.traced())

    def set_block_rate(self, request: Request) -> Response:
        """`rate` in ns: how long the loop is held up between two looks at it; 0 or less is never."""
        text = request.query.get("rate", "")
        try:
            rate = parse_int(text, 10)
        except ValueError as error:
            return plain_text(400, f"invalid block rate : {str(error).replace('ParseInt', 'Atoi')}")
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher = None
        if rate > 0:
            period = max(rate / 1e9, LEAST_BLOCK_PERIOD)
            self._watcher = BlockWatcher(asyncio.get_running_loop(), period)
        return v1_empty()

    async def free_memory(self, _request: Request) -> Response:
        """Collect garbage, and give back to the system what the C library can spare."""
        gc.collect()
        await asyncio.get_running_loop().run_in_executor(None, _trim)
        return v1_empty()


class _Turn:
    def __init__(self, api: DebugApi) -> None:
        self._api = api

    def __enter__(self) -> None:
        self._api._busy = True

    def __exit__(self, *_error: object) -> None:
        self._api._busy = False


async def _in_thread(sampler: CpuSampler) -> None:
    """Not of the loop's own pool, for whose threads the end of the process would wait."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not done.done():
            done.set_result(None)

    def run() -> None:
        sampler.run()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell)

    in_main = threading.current_thread() is threading.main_thread()
    if in_main:
        sampler.begin()
    threading.Thread(target=run, name="profiler", daemon=True).start()
    try:
        await done
    finally:
        sampler.stop()
        if in_main:
            sampler.end()


async def _packed(profile: Profile, collapsed: bool, name: str) -> Response:
    pieces: Iterator[bytes] = profile.collapsed() if collapsed else profile.pprof()
    body = b"".join([b"".join(each) async for each in slices(pieces)])
    if collapsed:
        return Response(200, body, (("Content-Type", "text/plain; charset=utf-8"),))
    loop = asyncio.get_running_loop()
    return _download(await loop.run_in_executor(None, gzipped, body), name)


def _download(body: bytes, name: str) -> Response:
    headers = (
        ("Content-Type", "application/octet-stream"),
        ("Content-Disposition", f'attachment; filename="{name}"'),
        ("X-Content-Type-Options", "nosniff"),
    )
    return Response(200, body, headers)


def _seconds(request: Request) -> float:
    try:
        seconds = float(request.query.get("seconds", DEFAULT_SECONDS))
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MAX_SECONDS:  # not true of nan either
        raise HttpError(400, "INVALID_SECONDS")
    return seconds


def _is_collapsed(request: Request) -> bool:
    form = request.query.get("format", "pprof")
    if form not in ("pprof", "collapsed"):
        raise HttpError(400, "INVALID_FORMAT")
    return form == "collapsed"


def _trim() -> None:
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # where there is no glibc
        ctypes.CDLL(None).malloc_trim(0)
