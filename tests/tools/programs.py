"""The utilities as real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import NamedTuple

from tests.daemon import PATIENCE


class Ended(NamedTuple):
    code: int | None
    out: bytes
    err: str

    @property
    def said(self) -> list[str]:
        """The lines of stderr without their times."""
        return [line[20:] for line in self.err.splitlines()]


class Program:
    """`await Program.start("nsq_tail", "--topic=t")`; `ended` gives what it has said, and its exit code."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr

    @classmethod
    async def start(cls, name: str, *flags: str, **environment: str) -> Program:
        pipe = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"nsquark.tools.{name}",
                *flags,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                limit=1 << 24,
                env={**os.environ, **environment},
            )
        )

    async def ended(self, given: bytes | None = None, within: float = 2 * PATIENCE) -> Ended:
        """Close its stdin, after `given`, and wait for its end."""
        try:
            async with asyncio.timeout(within):
                out, err = await self.process.communicate(given)
        except TimeoutError:
            self.process.kill()
            _, err = await self.process.communicate()
            raise AssertionError(f"it did not end within {within} s: {err.decode()}") from None
        return Ended(self.process.returncode, out, err.decode())

    async def line(self) -> bytes:
        """The next line of its stdout."""
        async with asyncio.timeout(PATIENCE):
            return await self.stdout.readline()

    async def says(self, text: str) -> None:
        """Wait for a line with this text on its stderr."""
        async with asyncio.timeout(PATIENCE):
            while line := await self.stderr.readline():
                if text in line.decode():
                    return
        raise AssertionError(f"it ended without saying {text!r}")

    async def interrupted(self, signum: signal.Signals = signal.SIGINT) -> Ended:
        """Its end after a signal, which takes less than a second (and more where the machine is busy)."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.process.send_signal(signum)
        ended = await self.ended()
        assert loop.time() - began < 20
        return ended


async def run(name: str, *flags: str, given: bytes = b"", **environment: str) -> Ended:
    """Run a utility to its end."""
    return await (await Program.start(name, *flags, **environment)).ended(given)
