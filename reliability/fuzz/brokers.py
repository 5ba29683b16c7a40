"""A broker in this process, in a folder of its own, for one input: the same ids for the same input."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest import mock

from nsquark.nsqd.broker import Broker
from nsquark.nsqd.options import Options

from .target import folder

NODE_ID = 5
FIRST_ID = NODE_ID << 54 | 1000 << 24  # of the first topic's first message; the next topic has the next block
SETTLED = 6  # turns of the event loop after which all that follows from a read is done


@asynccontextmanager
async def broker(**changes: object) -> AsyncIterator[Broker]:
    """A broker without sockets. Nothing of it waits for a disk."""
    with folder() as path, mock.patch("os.fsync"):
        known = {"node": "00" * 16, "blocks": 1000, "floor": 0, "version": 1}
        (path / "nsquark.dat").write_text(json.dumps(known))
        options = Options(data_path=str(path), node_id=NODE_ID, broadcast_address="here")
        for name, value in changes.items():
            setattr(options, name, value)
        options.fill_in(4150, 4151)
        made = Broker(options, asyncio.get_running_loop())
        made.load()
        try:
            yield made
        finally:
            made.stopping = True
            for connection in list(made.connections):
                connection.abort()
            made.lookup.close()
            made.turn.run()
            await made.stop_saving()
            made.close()


async def settle() -> None:
    for _ in range(SETTLED):
        await asyncio.sleep(0)
