"""An HTTP server that takes every POST and does as little as it can: what nsq_to_http is measured with.

It prints its port. `--keep FILE` writes every body to a file, a line each, before it answers. SIGTERM ends
it.
"""

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from typing import BinaryIO

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"


class Sink(asyncio.Protocol):
    received = 0

    def __init__(self, keep: BinaryIO | None) -> None:
        self._keep = keep
        self._buffer = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while True:
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if not end:
                return
            found = head.find(b"Content-Length: ")
            size = int(head[found + 16 :].partition(b"\r\n")[0]) if found >= 0 else 0
            if len(rest) < size:
                return
            if self._keep is not None:
                self._keep.write(rest[:size] + b"\n")
            Sink.received += 1
            self._buffer = rest[size:]
            if head.startswith(b"GET /received"):
                count = b"%d" % (Sink.received - 1)
                Sink.received -= 1
                self._transport.write(
                    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(count), count)
                )
            else:
                self._transport.write(ANSWER)


async def serve(keep: BinaryIO | None) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    server = await loop.create_server(lambda: Sink(keep), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await stop.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="write every body there")
    options = parser.parse_args()
    keep = options.keep.open("ab") if options.keep else None
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(keep))
    else:
        uvloop.run(serve(keep))
    if keep is not None:
        keep.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
