"""The import as a part of a start: after the lock of the data directory, before the sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

from nsquark.cli.flags import StartError
from nsquark.nsqd.options import Options
from nsquark.nsqd.storage.inspection import DataRefused
from nsquark.nsqd.storage.metadata import BadMetadata

from .report import report
from .takeover import Takeover


async def take_over(options: Options, stop: asyncio.Event) -> bool:
    """Take over what Go's nsqd has left, unless --import=off. Returns False if `stop` was set before the end.

    Raises StartError.
    """
    if options.import_ == "off":
        return True
    path = Path(options.data_path or ".")
    takeover = Takeover(path, options.node_id, options.max_bytes_per_file, options.max_msg_size)
    importing = asyncio.ensure_future(asyncio.to_thread(takeover.run))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((importing, stopping), return_when=asyncio.FIRST_COMPLETED)
    takeover.stop()
    stopping.cancel()
    try:
        return await importing
    except DataRefused as error:
        raise StartError(f"failed to load data - {error}") from None
    except BadMetadata as error:
        raise StartError(f"failed to load metadata - {error}") from None


async def print_report(options: Options) -> bool:
    """Print what an import would do: all that nsqd does with --import=check. Raises StartError."""
    path = Path(options.data_path or ".")
    try:
        for line in report(path, options.node_id, options.max_msg_size):
            print(line)
    except (DataRefused, OSError) as error:
        raise StartError(f"failed to load data - {error}") from None
    except BadMetadata as error:
        raise StartError(f"failed to load metadata - {error}") from None
    return True
