"""Real daemons as processes, and a client that knows frames and commands and nothing else.

`Nsqd` starts `python -m nsquark.nsqd` on free ports, reads them off its stderr, kills it, starts it again
on the same data; `Nsqlookupd` and `Nsqadmin` likewise. `Client` speaks V2 the way a test wants to: every byte
can be wrong on purpose.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

PATIENCE = 20.0  # for what takes milliseconds, on a machine that has something else to do
RESPONSE, ERROR, MESSAGE = range(3)
_LISTENING = re.compile(r"INFO: (TCP|HTTP|HTTPS): listening on (.+)")


class Daemon:
    """A process with a TCP and an HTTP port: `with Nsqd(path).start() as nsqd` ends with a kill."""

    name = ""
    services: tuple[str, ...] = ("TCP", "HTTP")

    def __init__(self, *flags: str) -> None:
        self.flags = flags
        self.program = [sys.executable, "-m", f"nsquark.{self.name}"]
        self.tcp_address = self.http_address = "127.0.0.1:0"
        self.lines: list[str] = []  # of the present process
        self.process: subprocess.Popen[bytes]
        self._news = threading.Condition()
        self._silent = True
        self._drain: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def tcp_port(self) -> int:
        return int(self.tcp_address.rpartition(":")[2])

    @property
    def http_port(self) -> int:
        return int(self.http_address.rpartition(":")[2])

    def command(self, *flags: str) -> list[str]:
        return [
            *self.program,
            f"--tcp-address={self.tcp_address}",
            f"--http-address={self.http_address}",
            *self.flags,
            *flags,
        ]

    def start(self, *flags: str) -> Self:
        """Start it, with `flags` for this time only, and wait until it listens."""
        again = self.http_address != "127.0.0.1:0"
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self._start(flags)
            except AssertionError:
                # While it was down, another test's connection may have got its port. It soon gives it back.
                taken = any("address already in use" in line for line in self.lines)
                if not (again and taken) or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return self

    def _start(self, flags: tuple[str, ...]) -> None:
        self.lines = []
        self._silent = False
        self.process = self.spawn(self.command(*flags))
        self._drain = threading.Thread(target=self._read_stderr, args=(self.process,), daemon=True)
        self._drain.start()
        for service in self.services:
            address = self._wait_for_address(service)
            if service == "TCP":
                self.tcp_address = address
            else:
                self.http_address = address

    def spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start the process. Its stderr is a pipe."""
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    def _read_stderr(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with process.stderr as stderr:
            for line in stderr:
                with self._news:
                    self.lines.append(line.decode("utf-8", "replace").rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._silent = True
            self._news.notify_all()

    def _wait_for_address(self, service: str) -> str:
        found: list[str] = []

        def listens() -> bool:
            found.extend(
                m[2] for m in map(_LISTENING.search, self.lines) if m is not None and m[1] == service
            )
            return bool(found) or self._silent

        with self._news:
            self._news.wait_for(listens, PATIENCE)
        if not found:
            self.kill()
            raise AssertionError(f"{self.name} did not start:\n" + "\n".join(self.lines))
        return found[0]

    def wait_for_line(self, pattern: str, timeout: float = PATIENCE) -> str:
        """The first line of its stderr that matches, once it is there."""

        def matching() -> str | None:
            return next((line for line in self.lines if re.search(pattern, line)), None)

        with self._news:
            line = self._news.wait_for(lambda: matching() or self._silent, timeout)
            assert isinstance(line, str), f"no {pattern!r} in\n" + "\n".join(self.lines)
            return line

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL. Does nothing when it is dead already."""
        self._end(signal.SIGKILL)

    def stop(self, signum: signal.Signals = signal.SIGTERM, within: float = PATIENCE) -> int:
        """A graceful end; the exit status. Fails if it takes longer than `within` seconds."""
        try:
            return self._end(signum, within)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not stop within {within} s of {signum.name}") from None

    def _end(self, signum: signal.Signals, within: float = PATIENCE) -> int:
        self.process.send_signal(signum)
        status = self.process.wait(within)
        if self._drain is not None:
            self._drain.join(PATIENCE)
        return status

    def restart(self, *flags: str) -> Self:
        """Start it again after its end, on the same ports."""
        assert not self.running
        return self.start(*flags)

    def memory(self) -> int:
        """Its resident set, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    # ---- talking to it

    async def http(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """The status and the body that a request is answered with."""
        host, _, port = self.http_address.rpartition(":")
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(
                    f"{method} {path} HTTP/1.1\r\nHost: nsqd\r\nConnection: close\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n".encode()
                    + body
                )
                head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
            finally:
                writer.close()
        return int(head.split(b" ", 2)[1]), answer

    async def post(self, path: str, body: bytes = b"") -> bytes:
        status, answer = await self.http("POST", path, body)
        assert status == 200, (path, status, answer)
        return answer


class Nsqd(Daemon):
    """A data directory and the nsqd that serves it."""

    name = "nsqd"

    def __init__(self, data_path: Path, *flags: str) -> None:
        super().__init__(f"--data-path={data_path}", *flags)
        self.data_path = data_path

    def command(self, *flags: str) -> list[str]:
        command = super().command(*flags)
        if self.program[0] == sys.executable:  # else it is Go's nsqd, which does not know the flag
            # Tests that leave messages in flight are not about consumers that need time.
            command.insert(len(self.program), "--drain-timeout=0s")
        return command

    def start(self, *flags: str) -> Self:
        self.data_path.mkdir(parents=True, exist_ok=True)
        return super().start(*flags)

    async def connect(self, magic: bytes = b"  V2") -> Client:
        return await Client.connect(self.tcp_address, magic)


class Nsqlookupd(Daemon):
    """An nsqlookupd that nsqds on this machine can reach."""

    name = "nsqlookupd"

    def __init__(self, *flags: str) -> None:
        super().__init__("--broadcast-address=127.0.0.1", *flags)

    async def get(self, path: str) -> Any:
        """What a GET is answered with, which must be JSON."""
        status, answer = await self.http("GET", path)
        assert status == 200, (path, status, answer)
        return json.loads(answer)


class Nsqadmin(Daemon):
    """An nsqadmin, which has an HTTP port alone."""

    name = "nsqadmin"
    services = ("HTTP",)

    def command(self, *flags: str) -> list[str]:
        return [*self.program, f"--http-address={self.http_address}", *self.flags, *flags]


class Frame(NamedTuple):
    kind: int
    data: bytes


class Message(NamedTuple):
    timestamp: int
    attempts: int
    id: bytes
    body: bytes


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def pub(topic: str, body: bytes) -> bytes:
    return b"PUB %b\n" % topic.encode() + sized(body)


def dpub(topic: str, delay_ms: int, body: bytes) -> bytes:
    return b"DPUB %b %d\n" % (topic.encode(), delay_ms) + sized(body)


def mpub(topic: str, bodies: Iterable[bytes]) -> bytes:
    messages = [sized(body) for body in bodies]
    return b"MPUB %b\n" % topic.encode() + sized(struct.pack(">i", len(messages)) + b"".join(messages))


def identify(**fields: object) -> bytes:
    return b"IDENTIFY\n" + sized(json.dumps(fields).encode())


class Closed(ConnectionError):
    """The server has closed the connection."""


class Client:
    """A V2 connection. One task at a time may receive.

    Heartbeats are answered and not seen; messages that come between answers, and answers that come between
    messages, wait until they are asked for.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.heartbeats = 0
        self.messages: deque[Message] = deque()
        self.answers: deque[Frame] = deque()
        self._head = (
            b""  # of a frame whose data have not come yet: receiving may be given up and taken up again
        )

    @classmethod
    async def connect(cls, address: str, magic: bytes = b"  V2") -> Client:
        """Connect to host:port, or to the unix socket of that path. Raises Closed if none listens."""
        try:
            if "/" in address:
                client = cls(*await asyncio.open_unix_connection(address, limit=1 << 20))
            else:
                host, _, port = address.rpartition(":")
                client = cls(*await asyncio.open_connection(host, int(port), limit=1 << 20))
        except ConnectionError as error:
            raise Closed(str(error)) from None
        if magic:
            client.send(magic)
        return client

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.writer.close()

    def abort(self) -> None:
        """Close without a goodbye."""
        self.writer.transport.abort()

    def half_close(self) -> None:
        self.writer.write_eof()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    # ---- receiving

    async def _read_frame(self) -> Frame:
        try:
            if not self._head:
                self._head = await self.reader.readexactly(8)
            size, kind = struct.unpack(">ii", self._head)
            data = await self.reader.readexactly(size - 4)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Closed(str(error)) from None
        self._head = b""
        return Frame(kind, data)

    async def frame(self) -> Frame:
        """The next frame, whatever it is, but for heartbeats. Raises Closed."""
        while True:
            frame = await self._read_frame()
            if frame == (RESPONSE, b"_heartbeat_"):
                self.heartbeats += 1
                self.send(b"NOP\n")
            else:
                return frame

    async def _receive(self) -> None:
        frame = await self.frame()
        if frame.kind == MESSAGE:
            timestamp, attempts, message_id = struct.unpack_from(">qH16s", frame.data)
            self.messages.append(Message(timestamp, attempts, message_id, frame.data[26:]))
        else:
            self.answers.append(frame)

    async def answer(self) -> Frame:
        """The next frame that is no message."""
        async with asyncio.timeout(PATIENCE):
            while not self.answers:
                await self._receive()
        return self.answers.popleft()

    async def message(self, within: float = PATIENCE) -> Message:
        """The next message. Raises TimeoutError."""
        if not self.messages:
            async with asyncio.timeout(within):
                while not self.messages:
                    await self._receive()
        return self.messages.popleft()

    async def ok(self) -> None:
        frame = await self.answer()
        assert frame == (RESPONSE, b"OK"), frame

    async def error(self) -> bytes:
        frame = await self.answer()
        assert frame.kind == ERROR, frame
        return frame.data

    async def closed(self) -> None:
        """Nothing more comes: the server has closed its side."""
        async with asyncio.timeout(PATIENCE):
            try:
                rest = await self.reader.read()
            except ConnectionError:
                return
        assert rest == b""

    # ---- commands

    async def ask(self, command: bytes) -> None:
        """Send something that is answered with OK."""
        self.send(command)
        await self.ok()

    async def pub(self, topic: str, body: bytes) -> None:
        await self.ask(pub(topic, body))

    async def dpub(self, topic: str, delay_ms: int, body: bytes) -> None:
        await self.ask(dpub(topic, delay_ms, body))

    async def mpub(self, topic: str, bodies: Iterable[bytes]) -> None:
        await self.ask(mpub(topic, bodies))

    async def sub(self, topic: str, channel: str, rdy: int = 0) -> None:
        await self.ask(b"SUB %b %b\n" % (topic.encode(), channel.encode()))
        if rdy:
            self.rdy(rdy)

    def rdy(self, count: int) -> None:
        self.send(b"RDY %d\n" % count)

    def fin(self, message: Message) -> None:
        self.send(b"FIN %b\n" % message.id)

    def req(self, message: Message, delay_ms: int = 0) -> None:
        self.send(b"REQ %b %d\n" % (message.id, delay_ms))

    def touch(self, message: Message) -> None:
        self.send(b"TOUCH %b\n" % message.id)

    async def caught_up(self) -> None:
        """Return when the server has done, and journaled, everything sent so far.

        An answer says that the turn of its command has come, the next one that this turn is over.
        """
        for _ in range(2):
            self.send(b"TOUCH ................\n")
            assert await self.error() == b"E_TOUCH_FAILED TOUCH ................ failed ID not in flight"


async def until(condition: Callable[[], object], within: float = PATIENCE) -> None:
    """Wait until `condition()`, for what nothing announces. It may be a coroutine function."""
    deadline = time.monotonic() + within
    while True:
        result = condition()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.002)
