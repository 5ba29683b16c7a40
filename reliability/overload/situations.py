"""The situations: each builds up too much of something on an nsqd of its own."""

from __future__ import annotations

import asyncio
import json
import math
import os
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from reliability.untouched import Latency, Untouched
from tests.daemon import Nsqd, dpub, identify, mpub, pub

from .clients import Connection, Crowd, fitting

MEBI = 1 << 20
HOUR_MS = 3_600_000
BODY = b"x" * 100
LONGEST_START = 600.0  # seconds
LONGEST_HEARTBEAT = {"heartbeat_interval": 60_000}


@dataclass(slots=True, frozen=True)
class Size:
    """How much of everything."""

    connections: int = 20_000
    topics: int = 50_000
    channels: int = 10_000
    deferred: int = 1_000_000
    in_flight: int = 250_000
    memory_limit: int = 200 * MEBI
    backlog: int = 2000 * MEBI
    disk_rate: int = 20 * MEBI  # bytes a second of the slow disk
    seconds: float = 10.0  # for which the untouched publisher is measured with all of it there
    p99: float = 250.0  # ms that this publisher may wait


SMALL = Size(
    connections=300,
    topics=200,
    channels=100,
    deferred=2000,
    in_flight=2000,
    memory_limit=200 * MEBI,
    backlog=40 * MEBI,
    seconds=0.2,
    p99=math.inf,  # a test is not to fail because the machine is busy
)


@dataclass(slots=True)
class Result:
    """What a situation has cost. `unit` names the thing that memory is shared out to."""

    name: str
    unit: str = ""
    count: int = 0
    before: int = 0  # bytes of memory
    after: int = 0
    building: Latency | None = None
    there: Latency | None = None
    start: float = 0.0  # seconds, after a kill
    descriptors: int = 0
    faults: list[str] = field(default_factory=list)
    skipped: str = ""

    @property
    def each(self) -> float:
        return (self.after - self.before) / self.count if self.count else 0.0

    def demand(self, holds: bool, fault: str) -> None:
        if not holds:
            self.faults.append(fault)


_trials: list[Trial] = []


def end_all() -> None:
    """Kill every nsqd that a situation has left running, because it failed."""
    while _trials:
        nsqd = _trials.pop().nsqd
        if hasattr(nsqd, "process"):
            nsqd.kill()


class Trial:
    """An nsqd, and the measuring around what a situation does to it."""

    def __init__(
        self, name: str, folder: Path, size: Size, *flags: str, prefix: tuple[str, ...] = ()
    ) -> None:
        self.result = Result(name)
        self.size = size
        self.nsqd = Nsqd(folder / "data", *flags)
        self.nsqd.program = [*prefix, *self.nsqd.program]
        self._flags = ("--drain-timeout=0s",) if prefix else ()
        _trials.append(self)

    def start(self) -> Nsqd:
        self.nsqd.start(*self._flags)
        self._wait_until_ready()
        self.result.before = self.nsqd.memory()
        return self.nsqd

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + LONGEST_START
        while time.monotonic() < deadline:
            with suppress(TimeoutError):  # it listens before it has read its topics, and answers after
                if asyncio.run(_status(self.nsqd, "/ready")) == 200:
                    return
            time.sleep(0.01)
        raise TimeoutError("nsqd does not become ready")

    @contextmanager
    def building(self) -> Iterator[None]:
        """While the situation is built up, an untouched publisher is measured; not for a moment only."""
        if self.size.seconds < 1:
            yield
            return
        with Untouched(self.nsqd.tcp_address) as untouched:
            yield
        self.result.building = untouched.latency

    def look(self, unit: str, count: int, most_descriptors: int, p99: float = 0.0) -> None:
        """All of it is there: what does it cost, and how is the untouched publisher?"""
        p99 = p99 or self.size.p99
        result = self.result
        with Untouched(self.nsqd.tcp_address) as untouched:
            time.sleep(self.size.seconds)
        result.unit, result.count = unit, count
        result.there = untouched.latency
        result.after = self.nsqd.memory()
        result.descriptors = len(os.listdir(f"/proc/{self.nsqd.process.pid}/fd"))
        result.demand(
            untouched.latency.p99 <= p99,
            f"an untouched publisher waits {untouched.latency.p99:.0f} ms",
        )
        result.demand(result.descriptors <= most_descriptors, f"{result.descriptors} descriptors are open")

    def start_again(self) -> None:
        """Kill it, and measure a start with everything there, until it is ready and has answered a PUB."""
        self.nsqd.kill()
        self._check_log()
        begin = time.monotonic()
        self.nsqd.start(*self._flags)
        self._wait_until_ready()
        with closing(Connection(self.nsqd)) as connection:
            connection.ask_all(iter([pub("untouched", BODY)]))
        self.result.start = time.monotonic() - begin

    def end(self) -> Result:
        self.nsqd.kill()
        self._check_log()
        return self.result

    def _check_log(self) -> None:
        errors = [line for line in self.nsqd.lines if "Traceback" in line or "MemoryError" in line]
        self.result.demand(not errors, f"nsqd logged {len(errors)} tracebacks")


async def _status(nsqd: Nsqd, path: str) -> int:
    return (await nsqd.http("GET", path))[0]


def _stats(nsqd: Nsqd, topic: str) -> dict[str, object]:
    _, body = asyncio.run(nsqd.http("GET", f"/stats?format=json&topic={topic}&include_clients=false"))
    found: dict[str, object] = json.loads(body)["topics"][0]
    return found


def _channel(nsqd: Nsqd, topic: str) -> dict[str, int]:
    channels = _stats(nsqd, topic)["channels"]
    assert isinstance(channels, list)
    first: dict[str, int] = channels[0]
    return first


# ---- the situations


def nothing(folder: Path, size: Size) -> Result:
    """What the machine makes of the untouched publisher without any of it."""
    trial = Trial("nothing", folder, size)
    trial.start()
    trial.look("", 0, 50)
    trial.start_again()
    return trial.end()


def connections(folder: Path, size: Size) -> Result:
    """Half of them are subscribed, and so get heartbeats."""
    count = fitting(size.connections, 1)
    trial = Trial("connections", folder, size)
    nsqd = trial.start()
    hello = b"  V2" + identify(**LONGEST_HEARTBEAT)
    crowd = Crowd(nsqd)
    with trial.building():
        for number in range(count):
            if number % 2:
                crowd.add(hello + b"SUB crowd c\nRDY 1\n", 2)
            else:
                crowd.add(hello, 1)
    trial.look("connection", count, count + 100)
    trial.result.demand(not crowd.dropped, f"{crowd.dropped} connections were dropped")
    # One message for each subscriber, and one more to be sure that they are served.
    with closing(Connection(nsqd)) as publisher:
        publisher.ask_all(pub("crowd", BODY) for _ in range(count // 2))
    crowd.close()
    trial.start_again()
    return trial.end()


def topics(folder: Path, size: Size) -> Result:
    """More topics than there are descriptors: nsqd has a part of their files open."""
    count = size.topics
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    trial = Trial("topics", folder, size)
    nsqd = trial.start()
    with trial.building(), closing(Connection(nsqd)) as publisher:
        publisher.ask_all((pub(f"topic-{number}", BODY) for number in range(count)), 20)
    trial.look("topic", count, most // 2)
    trial.start_again()
    status, body = asyncio.run(nsqd.http("GET", f"/stats?format=json&topic=topic-{count - 1}"))
    trial.result.demand(status == 200 and b'"depth":1' in body, "the last topic is not there after the start")
    return trial.end()


def channels(folder: Path, size: Size) -> Result:
    trial = Trial("channels on a topic", folder, size)
    nsqd = trial.start()

    async def create() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", nsqd.http_port)
        await nsqd.post("/topic/create?topic=wide")
        for first in range(0, size.channels, 100):
            some = range(first, min(first + 100, size.channels))
            for number in some:
                path = f"/channel/create?topic=wide&channel=channel-{number}"
                writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
            for _ in some:
                if not (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200"):
                    raise ConnectionError("a channel was not created")
        writer.close()

    with trial.building():
        asyncio.run(create())
        with closing(Connection(nsqd)) as publisher:
            publisher.ask_all((pub("wide", BODY) for _ in range(200)), 10)
    trial.look("channel", size.channels, 200)
    trial.start_again()
    told = _stats(nsqd, "wide")["channels"]
    assert isinstance(told, list)
    trial.result.demand(len(told) == size.channels, f"{len(told)} channels are there after the start")
    trial.result.demand(all(each["depth"] == 200 for each in told), "a channel has lost messages")
    return trial.end()


def deferred(folder: Path, size: Size) -> Result:
    trial = Trial("deferred messages", folder, size)
    nsqd = trial.start()
    asyncio.run(nsqd.post("/topic/create?topic=late"))
    asyncio.run(nsqd.post("/channel/create?topic=late&channel=c"))
    with trial.building(), closing(Connection(nsqd)) as publisher:
        publisher.ask_all(dpub("late", HOUR_MS, BODY) for _ in range(size.deferred))
    trial.look("deferred message", size.deferred, 200)
    trial.start_again()
    told = _channel(nsqd, "late")["deferred_count"]
    trial.result.demand(told == size.deferred, f"{told} are deferred after the start")
    return trial.end()


def in_flight(folder: Path, size: Size) -> Result:
    trial = Trial("messages in flight", folder, size, "--msg-timeout=15m")
    nsqd = trial.start()
    with closing(Connection(nsqd)) as publisher:
        count = publisher.ask_all(pub("flying", BODY) for _ in range(size.in_flight))
    trial.result.before = nsqd.memory()
    crowd = Crowd(nsqd)
    with trial.building():
        for _ in range(-(-size.in_flight // 2500)):
            crowd.add(b"  V2" + identify(**LONGEST_HEARTBEAT) + b"SUB flying c\nRDY 2500\n", 2)
        deadline = time.monotonic() + 120
        while _channel(nsqd, "flying")["in_flight_count"] < count and time.monotonic() < deadline:
            time.sleep(0.05)
    trial.look("message in flight", size.in_flight, 400)
    told = _channel(nsqd, "flying")["in_flight_count"]
    trial.result.demand(told == count, f"{told} of {count} messages are in flight")
    trial.result.demand(not crowd.dropped, f"{crowd.dropped} consumers were dropped")
    crowd.close()
    trial.start_again()
    told = _channel(nsqd, "flying")["depth"]
    trial.result.demand(told == count, f"{told} of {count} messages are there after the start")
    return trial.end()


def backlog(folder: Path, size: Size) -> Result:
    """Ten times what nsqd may have in memory, over hundreds of segments, and all of it consumed again."""
    limit = f"--data={size.memory_limit}"
    segment = max(MEBI, size.backlog // 200)
    flags = (f"--max-bytes-per-file={segment}",)
    trial = Trial("backlog", folder, size, *flags, prefix=("prlimit", limit))
    nsqd = trial.start()
    batch = mpub("much", [b"x" * 10_000] * 100)
    batches = size.backlog // MEBI
    asyncio.run(nsqd.post("/topic/create?topic=much"))
    asyncio.run(nsqd.post("/channel/create?topic=much&channel=c"))
    with trial.building(), closing(Connection(nsqd)) as publisher:
        publisher.ask_all((batch for _ in range(batches)), 2)
    trial.look("MiB of backlog", batches, 200)
    trial.start_again()
    got = 0
    with closing(Connection(nsqd, b"  V2SUB much c\nRDY 100\n")) as consumer:
        consumer.ok()
        while got < batches * 100:
            message = consumer.frame()
            consumer.send(b"FIN %b\n" % message[10:26])
            got += 1
    trial.result.demand(nsqd.memory() < size.memory_limit, "memory is beyond the limit")
    return trial.end()


SLOW_DISK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static double rate(void) {
    static double known;
    if (!known) known = atof(getenv("DISK_RATE"));
    return known;
}

static void wait_for(int fd, ssize_t bytes) {
    struct stat file;
    if (bytes <= 0 || fstat(fd, &file) || !S_ISREG(file.st_mode)) return;
    double seconds = bytes / rate();
    struct timespec time = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    nanosleep(&time, 0);
}

ssize_t write(int fd, const void *data, size_t size) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "write");
    ssize_t done = real(fd, data, size);
    wait_for(fd, done);
    return done;
}

ssize_t writev(int fd, const struct iovec *data, int count) {
    static ssize_t (*real)(int, const struct iovec *, int);
    if (!real) real = dlsym(RTLD_NEXT, "writev");
    ssize_t done = real(fd, data, count);
    wait_for(fd, done);
    return done;
}
"""


def slow_disk(folder: Path, size: Size) -> Result:
    """Publishers that are faster than the disk are slowed down, and nothing piles up."""
    source, library = folder / "disk.c", folder / "disk.so"
    source.write_text(SLOW_DISK)
    slowed = ("env", f"LD_PRELOAD={library}", f"DISK_RATE={size.disk_rate}")
    trial = Trial("publishers faster than the disk", folder, size, prefix=slowed)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    except (OSError, subprocess.CalledProcessError):
        trial.result.skipped = "there is no C compiler"
        return trial.result
    nsqd = trial.start()
    counts = [0] * 20
    dropped: list[str] = []
    end = threading.Event()

    def publish(number: int) -> None:
        batch = mpub("fast", [b"x" * 1000] * 100)
        try:
            with closing(Connection(nsqd)) as publisher:
                while not end.is_set():
                    counts[number] += publisher.ask_all(iter([batch] * 10), 10)
        except (OSError, ConnectionError) as error:
            dropped.append(str(error))

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    # The untouched publisher has the same disk: it waits for what the others have written before it.
    trial.look("MiB published", 0, 200, p99=max(2000.0, size.p99))
    end.set()
    for thread in threads:
        thread.join()
    answered = sum(counts) * 100
    trial.result.count = max(1, answered * 1000 // MEBI)
    told = _stats(nsqd, "fast")["message_count"]
    result = trial.result
    result.demand(not dropped, f"{len(dropped)} publishers were dropped: {dropped[:1]}")
    result.demand(told == answered, f"{told} messages are stored, {answered} were answered")
    result.demand(result.after - result.before < 100 * MEBI, "memory grows while the disk is slow")
    trial.start_again()
    told = _stats(nsqd, "fast")["depth"]
    result.demand(told == answered, f"{told} messages of {answered} are there after the start")
    return trial.end()


def dead_consumers(folder: Path, size: Size) -> Result:
    """Consumers with a great RDY that never read: their own buffers hold them, and others go on."""
    trial = Trial("consumers that never read", folder, size)
    nsqd = trial.start()
    dead = []
    for number in range(100):
        connection = Connection(nsqd, b"  V2" + identify(**LONGEST_HEARTBEAT))
        connection.ok()
        connection.send(b"SUB flood channel-%d\n" % (number % 10))
        connection.ok()
        connection.send(b"RDY 2500\n")
        dead.append(connection)
    batch = mpub("flood", [b"x" * 10_000] * 100)
    batches = min(300, size.backlog // MEBI)
    with trial.building(), closing(Connection(nsqd)) as publisher:
        publisher.ask_all((batch for _ in range(batches)), 1)
    trial.look("consumer", len(dead), 300)
    grown = trial.result.after - trial.result.before
    trial.result.demand(grown < 150 * MEBI, f"memory has grown by {grown >> 20} MiB")
    for connection in dead:
        with suppress(OSError):
            connection.close()
    trial.start_again()
    return trial.end()


SITUATIONS: dict[str, Callable[[Path, Size], Result]] = {
    "nothing": nothing,
    "connections": connections,
    "topics": topics,
    "channels": channels,
    "deferred": deferred,
    "in-flight": in_flight,
    "backlog": backlog,
    "slow-disk": slow_disk,
    "dead-consumers": dead_consumers,
}
# Bytes of memory that each may cost.
LIMITS = {
    "connection": 40_000,
    "topic": 30_000,
    "channel": 30_000,
    "deferred message": 600,
    "message in flight": 600,
    "MiB of backlog": 100_000,
}
