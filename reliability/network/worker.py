"""A publisher or a consumer as a process of its own: our client library or pynsq.

    python -m reliability.network.worker {nsquark,pynsq} {publish,consume} --topic T [--channel C]
        [--nsqd HOST:PORT] [--lookupd HOST:PORT]

It prints the number of each message that was answered with OK, or that was got and finished, a line each. It
stops when its stdin ends. A body is its number and padding, so that a message that is not whole is noticed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from nsquark.client import Config, Consumer, Producer
from nsquark.client.config import Reconnect
from nsquark.errors import NsquarkError

RATE = 100  # messages a second
PADDING = b"." * 500
# A network that fails is noticed within seconds, not within the minute of the default.
CONFIG = Config(
    heartbeat_interval=1.0,
    read_timeout=3.0,
    dial_timeout=1.0,
    lookupd_poll_interval=1.0,
    lookupd_poll_timeout=1.0,
    reconnect=Reconnect(first=0.1, cap=1.0),
    max_in_flight=100,
    max_attempts=0,
    backoff=None,
)


def body_of(number: int) -> bytes:
    return b"%d %b" % (number, PADDING)


def number_of(body: bytes) -> int:
    """Raises ValueError for a body that was not published."""
    number, _, padding = body.partition(b" ")
    if padding != PADDING:
        raise ValueError(f"a body that is not whole: {body[:40]!r}, {len(body)} bytes")
    return int(number)


def say(number: int) -> None:
    print(number, flush=True)


async def ended() -> None:
    """Return when the parent has closed our stdin."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    await reader.read()


async def publish(arguments: argparse.Namespace) -> None:
    async with Producer(arguments.nsqd, config=CONFIG) as producer:
        under_way: set[asyncio.Task[None]] = set()

        async def publish_one(number: int) -> None:
            try:
                await producer.publish(arguments.topic, body_of(number), timeout=5.0)
            except (NsquarkError, OSError, TimeoutError):
                return  # nothing was promised
            say(number)

        await _numbered(lambda number: _keep(under_way, publish_one(number)))
        await asyncio.gather(*under_way)


def _keep(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _numbered(each: Callable[[int], None]) -> None:
    """Call `each` with numbers, so many a second, until stdin ends."""
    stop = asyncio.create_task(ended())
    number = 0
    while not stop.done():
        each(number)
        number += 1
        await asyncio.wait([stop], timeout=1 / RATE)


async def consume(arguments: argparse.Namespace) -> None:
    nsqd, lookupd = arguments.nsqd or (), arguments.lookupd or ()
    async with Consumer(
        arguments.topic, arguments.channel, nsqd=nsqd, lookupd=lookupd, config=CONFIG
    ) as consumer:

        async def take() -> None:
            async for message in consumer:
                say(number_of(message.body))
                message.finish()

        taking = asyncio.create_task(take())
        await asyncio.wait([taking, asyncio.create_task(ended())], return_when=asyncio.FIRST_COMPLETED)
        if taking.done():
            taking.result()
        taking.cancel()


async def publish_pynsq(arguments: argparse.Namespace) -> None:
    import nsq  # type: ignore[import-untyped]

    writer = nsq.Writer([arguments.nsqd], reconnect_interval=0.5, heartbeat_interval=1)
    under_way: set[int] = set()

    def publish_one(number: int) -> None:
        def answered(_conn: Any, data: Any) -> None:
            under_way.discard(number)
            if data == b"OK":
                say(number)

        if writer.conns:
            under_way.add(number)
            writer.pub(arguments.topic, body_of(number), callback=answered)

    await _numbered(publish_one)
    for _ in range(100):  # a callback may never be called: then nothing was promised
        if not under_way:
            break
        await asyncio.sleep(0.02)


async def consume_pynsq(arguments: argparse.Namespace) -> None:
    import nsq

    def take(message: Any) -> bool:
        say(number_of(message.body))
        return True

    daemons: dict[str, Any] = {}
    if arguments.nsqd:
        daemons["nsqd_tcp_addresses"] = [arguments.nsqd]
    if arguments.lookupd:
        daemons["lookupd_http_addresses"] = [f"http://{arguments.lookupd}"]
    reader = nsq.Reader(
        topic=arguments.topic,
        channel=arguments.channel,
        message_handler=take,
        max_in_flight=100,
        max_tries=0,
        heartbeat_interval=1,
        lookupd_poll_interval=1,
        lookupd_connect_timeout=1,
        lookupd_request_timeout=1,
        **daemons,
    )
    await ended()
    reader.close()


WORK = {
    ("nsquark", "publish"): publish,
    ("nsquark", "consume"): consume,
    ("pynsq", "publish"): publish_pynsq,
    ("pynsq", "consume"): consume_pynsq,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m reliability.network.worker")
    parser.add_argument("library", choices=["nsquark", "pynsq"])
    parser.add_argument("role", choices=["publish", "consume"])
    parser.add_argument("--topic", required=True)
    parser.add_argument("--channel", default="")
    parser.add_argument("--nsqd", default="")
    parser.add_argument("--lookupd", default="")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)  # a network that fails is what is tried
    asyncio.run(WORK[arguments.library, arguments.role](arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
