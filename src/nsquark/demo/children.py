"""Processes that live as long as we do: started, listened to, and ended with whatever they started."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_LISTENING = re.compile(rb"INFO: (TCP|HTTP): listening on (\S+)")


def _die_with_parent() -> None:
    """In the child, before it becomes another program: should we be killed, it is told."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """A module of ours as a process, in a group of its own: the terminal's Ctrl-C comes to us alone."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process
        self._addresses: dict[str, str] = {}
        self._news = asyncio.Condition()
        self._passing_on = asyncio.create_task(self._pass_on())

    @classmethod
    async def start(cls, module: str, flags: Sequence[str]) -> Child:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *flags,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform.startswith("linux") else None,
        )  # fmt: skip
        return cls(module, process)

    async def _pass_on(self) -> None:
        """Its stderr is ours; the addresses are read from it on the way."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            with contextlib.suppress(OSError):  # nobody reads it
                os.write(2, line)
            if found := _LISTENING.search(line):
                async with self._news:
                    self._addresses[found[1].decode()] = found[2].decode()
                    self._news.notify_all()
        async with self._news:
            self._news.notify_all()

    async def address(self, service: str) -> str:
        """Where it listens, with a host to connect to. Raises ChildProcessError if it ends before."""
        async with self._news:
            await self._news.wait_for(
                lambda: service in self._addresses or self.process.stderr.at_eof()  # type: ignore[union-attr]
            )
        if service not in self._addresses:
            raise ChildProcessError(f"{self.name} did not start")
        host, _, port = self._addresses[service].rpartition(":")
        return f"{'127.0.0.1' if host in ('0.0.0.0', '[::]', '') else host}:{port}"

    async def wait(self) -> int:
        return await self.process.wait()

    async def stop(self, within: float) -> int:
        """SIGTERM, and SIGKILL for those of its group that are still there after that time."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), within)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        status = await self.process.wait()
        await asyncio.wait([self._passing_on], timeout=1.0)  # what it has started may hold its stderr
        self._passing_on.cancel()
        return status
