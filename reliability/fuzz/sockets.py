"""Mutated conversations with an nsqd process, over real sockets, beside a client that nothing may happen to.

    python -m reliability.fuzz.sockets --connections 5000 --seed 7

Thousands of connections send valid conversations that were changed at random: V2, HTTP, a TLS hello, and
compressed streams after IDENTIFY. They end in the middle, half-close, reset, dribble, or stay open. All the
while another client publishes and consumes, and /ping is asked. nsqd must answer both, log no exception, keep
its memory and its descriptors bounded, and stop in order at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import ssl
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nsquark.wire.compression import Deflate, Snappy
from tests import daemon
from tests.daemon import Nsqd

from .mutator import change
from .target import Wrong, load

ROOT = Path(__file__).parents[2]
CERTIFICATE = ROOT / "tests" / "client" / "tls"
TOGETHER = 24  # connections at a time
LEFT_OPEN = 100  # connections that are left open, at most
PATIENCE = 30.0  # for what takes milliseconds, on a machine that has something else to do
WARM = 0.3  # the part of the connections after which memory has to stay as it is
GROWTH = 48 << 20  # bytes by which memory may grow after that
MAGIC = b"  V2"


def pub(body: bytes) -> bytes:
    return daemon.pub("fuzzed", body)


def mpub(*bodies: bytes) -> bytes:
    return daemon.mpub("fuzzed", bodies)


def identify(**asked: object) -> bytes:
    document = json.dumps({"feature_negotiation": True, **asked}).encode()
    return MAGIC + b"IDENTIFY\n" + struct.pack(">I", len(document)) + document


def request(line: str, body: bytes = b"") -> bytes:
    return f"{line} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def client_hello() -> bytes:
    """The first bytes of a TLS client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="h").do_handshake()
    return outgoing.read()


COMMANDS = [
    pub(b"one") + pub(b"two" * 20) + mpub(b"a", b"b" * 300) + b"NOP\n",
    b"SUB fuzzed ch\nRDY 5\n"
    + b"FIN 0123456789abcdef\nREQ 0123456789abcdef 0\nTOUCH 0123456789abcdef\nCLS\n",
    b"SUB gone#ephemeral ch#ephemeral\nRDY 2500\n" + b"FIN 0123456789abcdef\n" * 30,
    b"DPUB fuzzed 60000\n\0\0\0\5later" + b"AUTH\n\0\0\0\1s" + pub(b"x"),
    mpub(*[b"m" * 50] * 200) * 3 + pub(b"y" * 70000),
]
REQUESTS = [
    request("POST /pub?topic=fuzzed", b"body") + request("GET /ping") + request("GET /stats?format=json"),
    request("POST /mpub?topic=fuzzed&binary=true", b"\0\0\0\1\0\0\0\1a") + request("GET /info"),
    request("POST /topic/create?topic=made") + request("POST /topic/delete?topic=made"),
    request("GET /log/read?topic=fuzzed&start=0&end=9") + request("GET /metrics"),
    b"POST /pub?topic=fuzzed HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
]


@dataclass
class Findings:
    """What the run has seen."""

    connections: Counter[str] = field(default_factory=Counter)
    sent: int = 0  # bytes
    answered: int = 0  # connections that got at least a byte
    rounds: int = 0  # publish and consume of the untouched client
    slowest: float = 0.0  # of those, in seconds
    pings: int = 0


class Fuzzer:
    def __init__(self, nsqd: Nsqd, https_port: int, seed: int) -> None:
        self.found = Findings()
        self._chance = random.Random(seed)
        self._ports = {"tcp": nsqd.tcp_port, "http": nsqd.http_port, "https": https_port}
        self._hello = client_hello()
        self._words = (*load("protocol").words[1:], *load("http_requests").words, b"||")
        self._open: list[socket.socket] = []
        self._kinds: list[Callable[[], tuple[str, list[bytes]]]] = [
            self._plain,
            self._plain,
            self._compressed,
            self._compressed,
            self._http,
            self._tls,
            self._noise,
        ]

    # ---- what is sent: the port, and bursts; after each but the last an answer is waited for

    def _mutated(self, data: bytes) -> bytes:
        made = bytearray(data)
        for _ in range(self._chance.choice((0, 1, 1, 2, 4, 8))):
            change(self._chance, made, self._words, [*COMMANDS, *REQUESTS])
        return bytes(made)

    def _commands(self) -> bytes:
        return self._mutated(b"".join(self._chance.choices(COMMANDS, k=self._chance.choice((1, 1, 3)))))

    def _plain(self) -> tuple[str, list[bytes]]:
        if self._chance.random() < 0.5:
            return "tcp", [MAGIC + self._commands()]
        asked = self._chance.choice(
            ({}, {"heartbeat_interval": 1000}, {"sample_rate": 50, "msg_timeout": 1000})
        )
        return "tcp", [self._mutated(identify(**asked)), self._commands(), self._commands()]

    def _compressed(self) -> tuple[str, list[bytes]]:
        deflate = self._chance.random() < 0.5
        stream = Deflate(self._chance.randint(1, 9)) if deflate else Snappy()
        first = identify(deflate=deflate, snappy=not deflate)
        bursts = [stream.compress(self._commands()) for _ in range(self._chance.choice((1, 2, 3)))]
        if (
            self._chance.random() < 0.3
        ):  # a bomb; perhaps with the end of a deflate stream, and more behind it
            end = b"\x03\x00" + self._chance.randbytes(400) if self._chance.random() < 0.5 else b""
            bursts.append(stream.compress(bytes(self._chance.choice((200_000, 4 << 20)))) + end)
        return "tcp", [first, *(self._mutated(each) for each in bursts)]

    def _http(self) -> tuple[str, list[bytes]]:
        return "http", [self._mutated(b"".join(self._chance.choices(REQUESTS, k=3)))]

    def _tls(self) -> tuple[str, list[bytes]]:
        if self._chance.random() < 0.5:
            return "https", [self._mutated(self._hello), self._mutated(self._hello)]
        return "tcp", [identify(tls_v1=True), self._mutated(self._hello), self._chance.randbytes(100)]

    def _noise(self) -> tuple[str, list[bytes]]:
        size = self._chance.choice((0, 1, 3, 100, 20000))
        return self._chance.choice(("tcp", "http", "https")), [self._chance.randbytes(size)]

    # ---- how it is sent

    async def connections(self, count: int) -> None:
        slots = asyncio.Semaphore(TOGETHER)

        async def one() -> None:
            async with slots:
                with contextlib.suppress(OSError):  # refused, reset, or silent: nsqd may do so
                    await self._converse()

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(one())

    async def _converse(self) -> None:
        port, bursts = self._chance.choice(self._kinds)()
        ending = self._chance.choice(("eof", "eof", "reset", "cut", "dribble", "open"))
        self.found.connections[f"{port} {ending}"] += 1
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[port])
        heard = 0
        try:
            for number, burst in enumerate(bursts):
                last = number == len(bursts) - 1
                if last and ending == "cut":
                    burst = burst[: self._chance.randrange(len(burst) + 1)]
                await self._send(writer, burst, ending == "dribble")
                if not last:
                    heard += await self._hear(reader, 0.3)
            if ending == "open" and len(self._open) < LEFT_OPEN:
                kept = writer.get_extra_info("socket")
                self._open.append(socket.socket(fileno=os.dup(kept.fileno())))
            elif ending == "reset":
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            else:
                if writer.can_write_eof():
                    writer.write_eof()
                while got := await self._hear(reader, 3.0):
                    heard += got
        finally:
            self.found.answered += heard > 0
            writer.transport.abort()

    async def _send(self, writer: asyncio.StreamWriter, data: bytes, dribble: bool) -> None:
        self.found.sent += len(data)
        step = max(1, len(data) // 20) if dribble else max(1, len(data))
        for at in range(0, len(data), step):
            writer.write(data[at : at + step])
            async with asyncio.timeout(3.0):
                await writer.drain()
            if dribble:
                await asyncio.sleep(0)

    async def _hear(self, reader: asyncio.StreamReader, patience: float) -> int:
        """How many bytes come; none if nothing comes for so long, or nothing more."""
        try:
            async with asyncio.timeout(patience):
                return len(await reader.read(1 << 16))
        except TimeoutError:
            return 0

    def close(self) -> None:
        for each in self._open:
            each.close()


async def untouched(nsqd: Nsqd, found: Findings, over: asyncio.Event) -> None:
    """A client that publishes, consumes and finishes one message after the other. Raises Wrong."""
    client = await daemon.Client.connect(nsqd.tcp_address)
    await client.sub("untouched", "ch", 1)
    while not found.rounds or not over.is_set():
        began = time.monotonic()
        body = b"%d" % found.rounds
        async with asyncio.timeout(PATIENCE):
            await client.pub("untouched", body)
            message = await client.message(PATIENCE)
        if message.body != body:
            raise Wrong(f"{message.body!r} came in place of {body!r}")
        client.fin(message)
        found.rounds += 1
        found.slowest = max(found.slowest, time.monotonic() - began)
        await asyncio.sleep(0.02)
    client.close()


async def pings(nsqd: Nsqd, found: Findings, over: asyncio.Event) -> None:
    """Ask /ping again and again. Raises Wrong."""
    while not found.pings or not over.is_set():
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", nsqd.http_port)
            writer.write(b"GET /ping HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
        writer.close()
        if not answer.startswith(b"HTTP/1.1 200 ") or not answer.endswith(b"\r\n\r\nOK"):
            raise Wrong(f"/ping is answered {answer!r}")
        found.pings += 1
        await asyncio.sleep(0.1)


def memory(nsqd: Nsqd) -> int:
    """Bytes of memory that the process has."""
    status = Path(f"/proc/{nsqd.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


def descriptors(nsqd: Nsqd) -> int:
    return len(os.listdir(f"/proc/{nsqd.process.pid}/fd"))


async def run(nsqd: Nsqd, https_port: int, count: int, seed: int) -> tuple[Findings, int, int]:
    """The findings, and memory before and after; the connections in between do not count."""
    fuzzer = Fuzzer(nsqd, https_port, seed)
    over = asyncio.Event()
    before = 0

    async def all_connections() -> None:
        nonlocal before
        try:
            await fuzzer.connections(round(count * WARM))
            before = memory(nsqd)
            await fuzzer.connections(count - round(count * WARM))
        finally:
            over.set()
            fuzzer.close()

    async with asyncio.TaskGroup() as group:
        group.create_task(untouched(nsqd, fuzzer.found, over))
        group.create_task(pings(nsqd, fuzzer.found, over))
        group.create_task(all_connections())
    return fuzzer.found, before, memory(nsqd)


async def settled(nsqd: Nsqd, most: int) -> int:
    """How many descriptors the process has, once its clients are gone or time is up."""
    deadline = time.monotonic() + PATIENCE
    while descriptors(nsqd) > most and time.monotonic() < deadline:  # noqa: ASYNC110 - nothing announces it
        await asyncio.sleep(0.05)
    return descriptors(nsqd)


def fuzz(count: int, seed: int, growth: int) -> Findings:
    """Run so many connections. Raises Wrong."""
    with tempfile.TemporaryDirectory() as path:
        tls = (f"--tls-cert={CERTIFICATE / 'cert.pem'}", f"--tls-key={CERTIFICATE / 'key.pem'}")
        nsqd = Nsqd(Path(path), "--https-address=127.0.0.1:0", *tls)
        with nsqd.start() as nsqd:
            line = nsqd.wait_for_line("HTTPS: listening on")
            idle = descriptors(nsqd)
            found, before, after = asyncio.run(run(nsqd, int(line.rpartition(":")[2]), count, seed))
            if after - before > growth:
                raise Wrong(f"memory has grown from {before >> 20} to {after >> 20} MiB")
            # Files of the topics that the connections have made, and of threads.
            left = asyncio.run(settled(nsqd, idle + 60))
            if left > idle + 60:
                raise Wrong(f"{left} descriptors are open, {idle} were")
            unexpected = [each for each in nsqd.lines if "Traceback" in each or "Exception" in each]
            if unexpected:
                at = nsqd.lines.index(unexpected[0])
                raise Wrong("nsqd has logged\n" + "\n".join(nsqd.lines[at - 3 : at + 30]))
            status = nsqd.stop(within=PATIENCE * 2)
            if status:
                raise Wrong(f"nsqd has ended with {status}:\n" + "\n".join(nsqd.lines[-20:]))
        print(f"memory {before >> 20} MiB, then {after >> 20} MiB; {idle} descriptors, then {left}")
        return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reliability.fuzz.sockets", description=__doc__)
    parser.add_argument("--connections", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    # A sanitizer keeps freed memory for a while, to see that nothing uses it.
    growth = GROWTH if not os.environ.get("NSQUARK_SANITIZED") else 16 * GROWTH
    try:
        found = fuzz(given.connections, given.seed, growth)
    except* Wrong as errors:
        sys.exit(f"seed {given.seed}: {errors.exceptions[0]}")
    print(", ".join(f"{count} {kind}" for kind, count in sorted(found.connections.items())))
    print(
        f"{found.connections.total()} connections sent {found.sent} bytes, {found.answered} were answered;"
        f" {found.rounds} messages untouched, the slowest in {found.slowest:.3f} s; {found.pings} pings"
    )


if __name__ == "__main__":
    main()
