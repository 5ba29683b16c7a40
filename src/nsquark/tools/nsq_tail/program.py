"""The program `nsq_tail`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from nsquark.cli import process

from ..command.running import Tool
from .channels import ChannelTail
from .logs import LogTail
from .options import FLAGS, NAME, Options, check
from .output import Output

logger = logging.getLogger(__name__)


async def run(options: Options) -> None:
    """Show messages until there were enough, or a signal comes."""
    stop = asyncio.create_task(process.stop_signal().wait(), name="signals")
    output = Output(options.print_topic, options.n)
    tail = ChannelTail(options, output) if options.from_ is None else LogTail(options, output)
    showing = asyncio.create_task(tail.run(), name="showing")
    await asyncio.wait({stop, showing}, return_when=asyncio.FIRST_COMPLETED)
    if showing.done():
        stop.cancel()
        showing.result()
        return
    showing.cancel()
    await asyncio.wait({showing})
    await output.last_written(0.1)
    logger.info("interrupted; %s", output.report())
    if not showing.cancelled():
        showing.result()


TOOL = Tool(NAME, FLAGS, check, run)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `nsq_tail`; returns the exit code."""
    return TOOL.main(argv)
