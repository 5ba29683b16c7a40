"""`nsquark` as a process, with pipes or with a terminal; and an nsqd that has only the routes of Go's."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from tests.daemon import PATIENCE, Nsqd

PROGRAM = [sys.executable, "-m", "nsquark.tools.people"]
# Of a stop within a second: the rest is for an interpreter on a busy machine.
SOON = 20.0
OURS = ("/log/", "/topic/peek", "/channel/peek", "/channel/seek", "/channel/redeliver", "/channel/commit")
_ESCAPES = re.compile(rb"\x1b(\[[0-9;?]*[A-Za-z]|[=>]|\([A-Z])")


def environment(**more: str) -> dict[str, str]:
    """Nothing of the machine's own settings."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NSQUARK_", "XDG_"))}
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        kept.pop(name, None)
    return {**kept, "HOME": "/nonexistent", "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **more}


def nsquark(*words: str, stdin: bytes = b"", **more: str) -> subprocess.CompletedProcess[str]:
    """The command, run to its end."""
    done = subprocess.run(
        [*PROGRAM, *words], input=stdin, capture_output=True, timeout=PATIENCE * 3, env=environment(**more)
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def output(*words: str, stdin: bytes = b"", **more: str) -> str:
    """What a command prints that ends well."""
    done = nsquark(*words, stdin=stdin, **more)
    assert done.returncode == 0, (words, done)
    return done.stdout


def failure(*words: str, status: int = 1, stdin: bytes = b"", **more: str) -> str:
    """The one line on stderr of a command that fails."""
    done = nsquark(*words, stdin=stdin, **more)
    assert done.returncode == status, (words, done)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    if status == 1:
        assert done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith("nsquark: "), done.stderr
    return done.stderr


class Running:
    """A command under way, with pipes."""

    def __init__(self, *words: str, stdin: int = subprocess.DEVNULL, **more: str) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, *words],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(**more),
        )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode()

    def interrupt(self, signum: signal.Signals = signal.SIGINT) -> tuple[int, str, str]:
        """Exit status, the rest of stdout, and stderr."""
        begun = time.monotonic()
        self.process.send_signal(signum)
        stdout, stderr = self.process.communicate(timeout=PATIENCE)
        assert time.monotonic() - begun < SOON
        assert "Traceback" not in stderr.decode()
        return self.process.returncode, stdout.decode(), stderr.decode()


class Terminal:
    """A command in a terminal of its own, which keeps everything that was written to it."""

    def __init__(self, *words: str, columns: int = 80, lines: int = 24, **more: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(PROGRAM[0], [*PROGRAM, *words], environment(**more))
        self.resize(columns, lines)
        self.written = b""
        self.status: int | None = None

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def read(self, within: float) -> bool:
        if not select.select([self.fd], [], [], within)[0]:
            return True
        try:
            piece = os.read(self.fd, 65536)
        except OSError:
            return False
        self.written += piece
        return bool(piece)

    @property
    def text(self) -> str:
        """Without colours and cursor movements."""
        return _ESCAPES.sub(b"", self.written).decode("utf-8", "replace")

    def wait_for(self, pattern: str, within: float = PATIENCE) -> None:
        deadline = time.monotonic() + within
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.text!r}"
            assert self.read(0.05) or re.search(pattern, self.text), (
                f"ended without {pattern!r}: {self.text!r}"
            )

    def end(self) -> int:
        """The exit status, once it has ended."""
        deadline = time.monotonic() + PATIENCE
        while self.read(0.05):
            assert time.monotonic() < deadline, self.text
        _, status = os.waitpid(self.pid, 0)
        self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def interrupt(self) -> int:
        """Ctrl-C, and its exit status. Again after a while: Python may miss one before a read."""
        for _ in range(20):
            self.type(b"\x03")
            deadline = time.monotonic() + 1.0
            while time.monotonic() < deadline:
                if not self.read(0.05):
                    return self.end()
        raise AssertionError(self.text)

    def close(self) -> None:
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
        os.close(self.fd)


@contextmanager
def terminal(*words: str, columns: int = 80, lines: int = 24, **more: str) -> Iterator[Terminal]:
    running = Terminal(*words, columns=columns, lines=lines, **more)
    try:
        yield running
    finally:
        running.close()


@asynccontextmanager
async def like_go(nsqd: Nsqd, missing: Sequence[str] = OURS) -> AsyncIterator[str]:
    """The HTTP address of an nsqd without the routes that Go's does not have."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        target = head.split()[1].decode()
        if target.startswith(tuple(missing)):
            body = b'{"message":"NOT_FOUND"}'
            writer.write(b"HTTP/1.1 404 Not Found\r\nX-Nsq-Content-Type: nsq; version=1.0\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        else:
            host, _, port = nsqd.http_address.rpartition(":")
            there, back = await asyncio.open_connection(host, int(port))
            back.write(head)
            writer.write(await there.read())
            back.close()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
