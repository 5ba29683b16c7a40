"""Processes that live as long as we do: started, asked where they are, and ended with what they started."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def _die_with_parent() -> None:
    """In the child, before it becomes another program: should we be killed, it is told."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """A process in a group of its own: the terminal's Ctrl-C comes to us alone."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, *words: str, announces: bool = False) -> Child:
        """Start a program. With `announces`, its stdout is for `announced`; otherwise it is ours."""
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if announces else None,
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform.startswith("linux") else None,
        )
        return cls(process)

    @classmethod
    async def start_module(cls, module: str, flags: Sequence[str], *, announces: bool = False) -> Child:
        """Start a module of ours."""
        return await cls.start(sys.executable, "-m", module, *flags, announces=announces)

    async def announced(self) -> dict[str, str]:
        """The JSON that it prints when it is ready. Raises ChildProcessError if it ends before."""
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise ChildProcessError(await self.process.wait())
        return {key: str(value) for key, value in json.loads(line).items()}

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
        return await self.process.wait()
