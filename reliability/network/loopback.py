"""Clients that behave badly, all on this machine: slow readers, silent ones, resets, churn."""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from reliability.outcome import Outcome
from reliability.untouched import Untouched
from tests.daemon import Nsqd, identify, mpub, pub, sized

from .traffic import Traffic, wait_for

MEBI = 1 << 20
HEARTBEAT_MS = 1000  # of the bad clients: nsqd gives them up after two


@dataclass(slots=True, frozen=True)
class Size:
    seconds: float = 10.0
    clients: int = 200
    half_open: int = 2000
    resets: int = 5000
    churn_rate: int = 3000  # connections a second
    outage: float = 6.0  # seconds of a partition
    memory: int = 150 * MEBI  # that a trial may add to nsqd's
    p99: float = 250.0  # ms: of a publisher that has nothing to do with it, on a machine that is busy
    given_up: float = 30.0  # seconds until the messages of silent consumers come to others


SMALL = Size(
    seconds=0.5,
    clients=10,
    half_open=50,
    resets=100,
    churn_rate=500,
    outage=1.5,
    memory=60 * MEBI,
    p99=math.inf,  # a test is not to fail because the machine is busy
    given_up=math.inf,
)


@contextmanager
def nsqd_and_traffic(outcome: Outcome, size: Size, *flags: str) -> Iterator[Nsqd]:
    """An nsqd with good clients beside the bad ones: they lose nothing, and one's latency is measured."""
    with tempfile.TemporaryDirectory() as folder, Nsqd(Path(folder) / "data", *flags).start() as nsqd:
        with Traffic(nsqd.tcp_address) as traffic:
            traffic.flows(1)
            memory, descriptors = nsqd.memory(), open_files(nsqd)
            with Untouched(nsqd.tcp_address) as untouched:
                yield nsqd
            outcome.figures["untouched p99"] = str(untouched.latency)
            outcome.demand(untouched.latency.p99 <= size.p99, "an untouched publisher was disturbed")
            traffic.flows(1)
            grown = nsqd.memory() - memory
            outcome.figures["memory grown"] = f"{grown / MEBI:.0f} MiB"
            outcome.demand(grown <= size.memory, f"nsqd's memory has grown by {grown >> 20} MiB")
            # The trial's own connections are gone; a segment or two may be open more than before.
            settled = wait_for_files(nsqd, descriptors + 8)
            outcome.figures["descriptors"] = f"{descriptors} before, {settled} after"
            outcome.demand(settled <= descriptors + 8, "descriptors were not closed")
            traffic.settle(outcome)
        errors = [line for line in nsqd.lines if "Traceback" in line]
        outcome.demand(not errors, f"nsqd logged {len(errors)} tracebacks")


def open_files(nsqd: Nsqd) -> int:
    return len(os.listdir(f"/proc/{nsqd.process.pid}/fd"))


def wait_for_files(nsqd: Nsqd, most: int) -> int:
    with suppress(TimeoutError):
        wait_for(lambda: open_files(nsqd) <= most, "descriptors are closed", 20)
    return open_files(nsqd)


def connected(nsqd: Nsqd, receive_buffer: int = 0) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(60)
    host, _, port = nsqd.tcp_address.rpartition(":")
    sock.connect((host, int(port)))
    return sock


def reset(sock: socket.socket) -> None:
    """Close with a RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def read_frame(sock: socket.socket) -> bytes:
    size = struct.unpack(">i", _exactly(sock, 4))[0]
    return _exactly(sock, size)[4:]


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionError("closed")
        data += piece
    return data


def publish(sock: socket.socket, command: bytes) -> None:
    sock.sendall(command)
    answer = b"_heartbeat_"
    while answer == b"_heartbeat_":
        answer = read_frame(sock)
    if answer != b"OK":
        raise ConnectionError(f"nsqd says {answer!r}")


def stats(nsqd: Nsqd, topic: str) -> dict[str, object]:
    _, body = asyncio.run(nsqd.http("GET", f"/stats?format=json&topic={topic}&include_clients=false"))
    found: dict[str, object] = json.loads(body)["topics"][0]
    return found


# ---- the trials


def slow_readers(size: Size) -> Outcome:
    """Consumers with a great RDY that read a byte now and then, and some that never read."""
    outcome = Outcome("slow readers")
    with nsqd_and_traffic(outcome, size) as nsqd:
        readers = []
        for number in range(size.clients):
            sock = connected(nsqd, receive_buffer=4096)
            sock.sendall(b"  V2" + identify(heartbeat_interval=60_000, output_buffer_size=1 << 16))
            read_frame(sock)
            sock.sendall(b"SUB flood channel-%d\n" % (number % 10))
            read_frame(sock)
            sock.sendall(b"RDY 2500\n")
            readers.append(sock)
        flood = connected(nsqd)
        flood.sendall(b"  V2")
        end = time.monotonic() + size.seconds
        count = 0
        while time.monotonic() < end:
            publish(flood, mpub("flood", [b"x" * 10_000] * 100))
            count += 100
            for sock in readers[::2]:
                sock.recv(1)
        told = stats(nsqd, "flood")
        outcome.figures["readers"] = f"{len(readers)} of {count * 10_000 >> 20} MiB published"
        outcome.demand(told["message_count"] == count, f"the topic has {told['message_count']} of {count}")
        for sock in (*readers, flood):
            reset(sock)
    return outcome


def half_open(size: Size) -> Outcome:
    """Clients that say half of something and then nothing: they go, and their messages come to others."""
    outcome = Outcome("half-open connections")
    beginnings = (
        b"",
        b"  V",
        b"  V2",
        b"  V2PU",
        b"  V2PUB half\n",
        b"  V2PUB half\n" + struct.pack(">i", 1000) + b"x" * 500,
        b"  V2MPUB half\n" + struct.pack(">iii", 1000, 2, 400) + b"x" * 10,
        b"  V2IDENTIFY\n" + struct.pack(">i", 1000) + b"{",
    )
    with nsqd_and_traffic(outcome, size) as nsqd:
        silent = []
        for number in range(size.half_open):
            sock = connected(nsqd)
            sock.sendall(beginnings[number % len(beginnings)])
            silent.append(sock)
        holders = []
        for _ in range(10):
            sock = connected(nsqd)
            sock.sendall(b"  V2" + identify(heartbeat_interval=HEARTBEAT_MS))
            read_frame(sock)
            sock.sendall(b"SUB held c\nRDY 10\n")
            read_frame(sock)
            holders.append(sock)
        with connected(nsqd) as publisher:
            publisher.sendall(b"  V2")
            for number in range(100):
                publish(publisher, pub("held", b"%d" % number))
        # The heartbeats are not answered: nsqd gives the holders up, and the messages go to one that lives.
        got: set[bytes] = set()
        with connected(nsqd) as living:
            living.sendall(b"  V2SUB held c\nRDY 100\n")
            read_frame(living)
            begin = time.monotonic()
            while len(got) < 100:
                frame = read_frame(living)
                if frame == b"_heartbeat_":
                    living.sendall(b"NOP\n")
                    continue
                living.sendall(b"FIN %b\n" % frame[10:26])
                got.add(frame[26:])
            took = time.monotonic() - begin
        outcome.figures["connections"] = str(len(silent) + len(holders))
        outcome.figures["messages of silent consumers after"] = f"{took:.1f} s"
        outcome.demand(took < size.given_up, f"it took {took:.0f} s to give up silent consumers")
        for sock in (*silent, *holders):
            reset(sock)
    return outcome


def resets(size: Size) -> Outcome:
    """Connections that are reset in the middle of a command, of an answer and of a delivery."""
    outcome = Outcome("resets in the middle of frames")
    whole = pub("reset", b"whole" * 100)
    many = mpub("reset", [b"whole" * 100] * 20)
    with nsqd_and_traffic(outcome, size) as nsqd:
        with connected(nsqd) as publisher:
            publisher.sendall(b"  V2")
            publish(publisher, whole)
        answered = 1
        for number in range(size.resets):
            sock = connected(nsqd)
            kind = number % 4
            if kind == 0:  # in the middle of a PUB
                sock.sendall(b"  V2" + whole[: 20 + number % 400])
            elif kind == 1:  # in the middle of an MPUB, after a PUB that was answered
                sock.sendall(b"  V2")
                publish(sock, whole)
                answered += 1
                sock.sendall(many[: 30 + number % 5000])
            elif kind == 2:  # before the answer is read
                sock.sendall(b"  V2" + identify() + sized(b"")[:2])
            else:  # in the middle of a delivery
                sock.sendall(b"  V2SUB reset other\nRDY 100\n")
                sock.recv(15)
            reset(sock)
        told = stats(nsqd, "reset")
        outcome.figures["connections"] = str(size.resets)
        outcome.figures["published"] = f"{told['message_count']}, {answered} answered"
        outcome.demand(
            told["message_count"] == answered,
            f"{told['message_count']} messages, and {answered} were answered: half a command counted",
        )
    return outcome


def churn(size: Size) -> Outcome:
    """Thousands of connections a second that come, say a word, and go."""
    outcome = Outcome("connects and disconnects")
    with nsqd_and_traffic(outcome, size) as nsqd:
        begin = time.monotonic()
        count = 0
        while (elapsed := time.monotonic() - begin) < size.seconds:
            if count > elapsed * size.churn_rate:
                time.sleep(0.001)
                continue
            sock = connected(nsqd)
            if count % 3 == 0:
                sock.sendall(b"  V2NOP\n")
            if count % 2 == 0:
                reset(sock)
            else:
                sock.close()
            count += 1
        outcome.figures["connections"] = f"{count}, {count / elapsed:.0f} a second"
    return outcome
