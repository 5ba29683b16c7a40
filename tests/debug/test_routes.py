"""`/debug` of a running nsqd."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time

import pytest

from nsquark.debug.sampler import BlockWatcher, CpuSampler
from tests.daemon import Nsqd, until
from tests.debug.pprof_reader import read
from tests.http.served import Client, get


async def ask(nsqd: Nsqd, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    client = await Client.connect(nsqd.http_port)
    try:
        answer = await client.ask(get(path, method=method))
    finally:
        client.close()
    return answer.status, answer.headers, answer.body


async def test_the_index_names_what_there_is(nsqd: Nsqd) -> None:
    status, headers, body = await ask(nsqd, "/debug/pprof/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "X-Nsq-Content-Type" not in headers
    for name in ("profile", "heap", "goroutine", "threadcreate", "block", "cmdline"):
        assert b'href="%b"' % name.encode() in body
    assert (await ask(nsqd, "/debug/pprof"))[0] == 301


async def test_the_command_line(nsqd: Nsqd) -> None:
    _, _, body = await ask(nsqd, "/debug/pprof/cmdline")
    assert body.decode().split("\0") == nsqd.process.args


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_symbols_are_in_the_profiles(nsqd: Nsqd, method: str) -> None:
    status, _, body = await ask(nsqd, "/debug/pprof/symbol", method)
    assert (status, body) == (200, b"num_symbols: 0\n")


async def test_a_profile_shows_where_the_time_goes(nsqd: Nsqd) -> None:
    profiling = asyncio.create_task(ask(nsqd, "/debug/pprof/profile?seconds=1"))
    while not profiling.done():
        await nsqd.http("GET", "/stats?format=json")
    status, headers, body = await profiling
    assert (status, headers["Content-Type"]) == (200, "application/octet-stream")
    assert headers["Content-Disposition"] == 'attachment; filename="profile"'
    told = read(body)
    assert told.kinds == [("samples", "count"), ("cpu", "nanoseconds")]
    assert told.duration_ns >= 1_000_000_000
    seen = {function for stack, _, _ in told.samples for function in stack}
    assert "json_pieces" in seen or "HttpConnection.data_received" in seen
    assert {labels["thread"] for _, _, labels in told.samples} >= {"MainThread"}


async def test_one_profile_at_a_time_and_nobody_waits_for_it(nsqd: Nsqd) -> None:
    profiling = asyncio.create_task(ask(nsqd, "/debug/pprof/profile?seconds=60&format=collapsed"))

    async def begun() -> bool:
        return b"profiler (id " in (await ask(nsqd, "/debug/pprof/threadcreate"))[2]

    await until(begun)
    status, _, body = await ask(nsqd, "/debug/pprof/profile?seconds=1")
    assert (status, body) == (409, b'{"message":"PROFILE_IN_PROGRESS"}')
    await nsqd.post("/pub?topic=t", b"x")
    assert not profiling.done()
    assert nsqd.stop(signal.SIGTERM) == 0  # nor does the end of the process
    await asyncio.wait([profiling])
    profiling.exception()


@pytest.mark.parametrize("seconds", ["", "x", "0", "-1", "301", "nan", "inf"])
async def test_seconds_are_bounded(nsqd: Nsqd, seconds: str) -> None:
    status, _, body = await ask(nsqd, f"/debug/pprof/profile?seconds={seconds}")
    assert (status, body) == (400, b'{"message":"INVALID_SECONDS"}')


async def test_a_profile_as_collapsed_stacks(nsqd: Nsqd) -> None:
    status, headers, body = await ask(nsqd, "/debug/pprof/profile?seconds=0.2&format=collapsed")
    assert (status, headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    for line in body.decode().splitlines():
        stack, _, value = line.rpartition(" ")
        assert stack
        assert int(value) > 0
    assert (await ask(nsqd, "/debug/pprof/profile?format=svg"))[0] == 400


async def test_the_heap_when_it_is_traced(nsqd: Nsqd) -> None:
    status, _, body = await ask(nsqd, "/debug/pprof/heap")
    assert (status, body) == (409, b'{"message":"NOT_TRACED"}')
    assert json.loads((await ask(nsqd, "/debug/tracemalloc"))[2]) == {"frames": 0}
    for frames in ("x", "-1", "65"):
        status, _, body = await ask(nsqd, f"/debug/tracemalloc?frames={frames}", "PUT")
        assert (status, body) == (400, b'{"message":"INVALID_FRAMES"}')
    status, _, body = await ask(nsqd, "/debug/tracemalloc?frames=4", "PUT")
    assert (status, json.loads(body)["frames"]) == (200, 4)
    await nsqd.post("/mpub?topic=t", b"message\n" * 5000)
    status, headers, body = await ask(nsqd, "/debug/pprof/heap")
    assert status == 200
    assert headers["Content-Disposition"] == 'attachment; filename="heap"'
    told = read(body)
    assert told.kinds == [("inuse_objects", "count"), ("inuse_space", "bytes")]
    assert any("routes.py:" in name for stack, _, _ in told.samples for name in stack)
    assert sum(values[1] for _, values, _ in told.samples) > 100_000
    await nsqd.post("/pub?topic=t", b"x")  # all is as before
    assert json.loads((await ask(nsqd, "/debug/tracemalloc?frames=0", "PUT"))[2]) == {"frames": 0}
    assert nsqd.stop() == 0


async def test_stacks_of_tasks_and_threads(nsqd: Nsqd) -> None:
    status, headers, body = await ask(nsqd, "/debug/pprof/goroutine?debug=2")
    assert (status, headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    text = body.decode()
    tasks, _, threads = text.partition("\nthreads: ")
    assert tasks.startswith("tasks: ")
    assert "_serve\n" in tasks
    assert "Event.wait\n" in tasks
    assert "MainThread (id " in threads
    assert "MainThread" in (await ask(nsqd, "/debug/pprof/threadcreate"))[2].decode()


async def test_free_memory(nsqd: Nsqd) -> None:
    status, _, body = await ask(nsqd, "/debug/freememory", "POST")
    assert (status, body) == (200, b"")
    assert (await ask(nsqd, "/debug/freememory"))[1]["Allow"] == "OPTIONS, POST"


async def test_the_block_rate(nsqd: Nsqd) -> None:
    status, _, body = await ask(nsqd, "/debug/setblockrate?rate=x", "PUT")
    assert (status, body) == (400, b'invalid block rate : strconv.Atoi: parsing "x": invalid syntax')
    told = read((await ask(nsqd, "/debug/pprof/block"))[2])
    assert told.kinds == [("contentions", "count"), ("delay", "nanoseconds")]
    assert told.samples == []
    for rate in (1_000_000, 20_000_000, 0):
        assert (await ask(nsqd, f"/debug/setblockrate?rate={rate}", "PUT"))[0] == 200
        assert (await ask(nsqd, "/debug/pprof/block"))[0] == 200
    assert nsqd.stop() == 0


async def test_profiles_are_not_in_the_access_log(nsqd: Nsqd) -> None:
    await ask(nsqd, "/debug/pprof/cmdline")
    await ask(nsqd, "/ping")
    nsqd.wait_for_line("200 GET /ping")
    assert not any("cmdline" in line for line in nsqd.lines)


def burn(until_done: threading.Event) -> None:
    while not until_done.is_set():
        sum(range(1000))


def test_only_those_who_work_are_counted() -> None:
    stop = threading.Event()
    threads = [
        threading.Thread(target=burn, args=(stop,), name="busy"),
        threading.Thread(target=stop.wait, name="waiting"),
    ]
    for thread in threads:
        thread.start()
    sampler = CpuSampler(60)
    sampling = threading.Thread(target=sampler.run)
    sampling.start()
    deadline = time.monotonic() + 20
    while samples(sampler, "busy") < 20:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    stop.set()
    sampler.stop()
    for thread in (*threads, sampling):
        thread.join(20)
        assert not thread.is_alive()
    # to begin to wait is work, too
    assert samples(sampler, "waiting") <= 2


def samples(sampler: CpuSampler, thread: str) -> int:
    return sum(values[0] for (name, _), values in list(sampler.profile.samples.items()) if name == thread)


async def test_what_holds_up_the_loop_is_seen() -> None:
    watcher = BlockWatcher(asyncio.get_running_loop(), 0.002)
    deadline = time.monotonic() + 20

    def hold_up() -> None:
        while not watcher.profile.samples:
            assert time.monotonic() < deadline

    await asyncio.sleep(0.01)
    hold_up()
    await asyncio.sleep(0)
    watcher.stop()
    stacks = [[place.function for place in stack] for _, stack in watcher.profile.samples]
    assert any("hold_up" in name for stack in stacks for name in stack)
    assert all(values[1] > 0 for values in watcher.profile.samples.values())
