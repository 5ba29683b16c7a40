"""Writing into a transport's socket, past the transport."""

from __future__ import annotations

import asyncio

from nsquark.kernel import Buffer, write_some


def send_at_once(transport: asyncio.Transport, fd: int, data: Buffer) -> None:
    """Send without waiting for the end of the loop's turn, if nothing else is on its way."""
    if not transport.is_closing() and not transport.get_write_buffer_size():
        # The descriptor is the connection's until connection_lost, and is_closing is true before that.
        sent = write_some(fd, data)  # 0 if the socket is full or broken: the transport finds out
        if sent == len(data):
            return
        data = data[sent:]
    transport.write(data)
