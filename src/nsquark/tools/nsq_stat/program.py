"""The program `nsq_stat`: NSQ's lines for pipes, a live table for people."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence

from nsquark.cli import process

from ..command.running import Tool
from ..command.stdout import StdoutWriter
from . import plain
from .counters import total
from .options import FLAGS, NAME, Options, check
from .polling import Poller

logger = logging.getLogger(__name__)


class Stat:
    """One run of the program. The first round only remembers the counters; each later one is a report."""

    def __init__(self, options: Options) -> None:
        self.reports = 0
        self._options = options
        self._poller = Poller(options)

    def _enough(self) -> bool:
        return self._options.count is not None and self.reports >= self._options.count

    async def print_lines(self) -> None:
        """Raises ToolError, OSError."""
        options, stdout = self._options, StdoutWriter()
        old, failing, number = None, set[str](), 0
        while True:
            polled = await self._poller.poll()
            for address in polled.failed.keys() - failing:
                logger.info("going on without %s: %s", address, polled.failed[address])
            for address in failing - polled.failed.keys():
                logger.info("%s is back", address)
            failing = set(polled.failed)
            new = total(polled.nodes.values())
            text = plain.HEADERS if number % plain.HEADERS_EVERY == 0 else ""
            if old is not None:
                text += plain.line(old, new, options.interval)
                self.reports += 1
            if text:
                await stdout.write(text.encode())
            old = new
            number += 1
            await asyncio.sleep(options.interval)
            if self._enough():
                return

    async def show_table(self) -> None:
        """Raises ToolError."""
        from .table import Screen, StatTable  # rich takes longer to import than all the rest

        loop, options = asyncio.get_running_loop(), self._options
        table = StatTable(options.topic, options.channel, options.interval)
        polled = await self._poller.poll()
        with Screen(table) as screen:
            loop.add_signal_handler(signal.SIGWINCH, screen.draw)
            try:
                while True:
                    table.update(polled, loop.time())
                    screen.draw()
                    await asyncio.sleep(options.interval)
                    if self._enough():
                        return
                    polled = await self._poller.poll()
                    self.reports += 1
            finally:
                loop.remove_signal_handler(signal.SIGWINCH)


def _is_for_people(options: Options) -> bool:
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return terminal and not options.plain and os.environ.get("TERM", "dumb") != "dumb"


async def run(options: Options) -> None:
    stopped = process.stop_signal()
    process.on_hangup(stopped.set)
    stat = Stat(options)
    work = asyncio.create_task(stat.show_table() if _is_for_people(options) else stat.print_lines())
    stop = asyncio.create_task(stopped.wait())
    await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not work.done():
        work.cancel()
        await asyncio.wait({work})
        if work.cancelled():
            reports = "1 report" if stat.reports == 1 else f"{stat.reports} reports"
            logger.info("interrupted after %s", reports)
            return
    work.result()


TOOL = Tool(NAME, FLAGS, check, run)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `nsq_stat`; returns the exit code."""
    return TOOL.main(argv)
