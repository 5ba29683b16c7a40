"""`make run`: nsqlookupd and nsqd, and a stream into Parquet files to show them off. All end together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from nsquark.cli import process
from nsquark.cli.flags import StartError, report

from . import stream
from .children import Child
from .options import Options, parse

_SERVERS = """\
nsqd: TCP on {nsqd}, HTTP on {nsqd_http}, data in {data}; nsqlookupd: TCP on {lookupd}, HTTP on {lookupd_http}.
Ctrl-C stops everything. From another terminal, here:

publish:  curl -d 'hello' 'http://{nsqd_http}/pub?topic=test'
look up:  curl 'http://{lookupd_http}/lookup?topic=test'
consume:  {python} -c "import nsq; nsq.Reader('test', 'ch', lambda m: print(m.body) or True, \
lookupd_http_addresses=['{lookupd_http}']); nsq.run()"
"""  # noqa: E501 - a line of the terminal
_DEMO = """\
Topic {topic} gets ten orders a second; Spark starts and archives them in {archive} as Parquet. Then:

query:    {python} -c "import pyarrow.dataset as d; print(d.dataset('{archive}', \
partitioning='hive').to_table().group_by(['topic', 'hour']).aggregate([('id', 'count')]).to_pylist())"
"""
# How long a process may take for its end.
_PATIENCE: Final = 10.0


def main() -> int:
    try:
        options, nsqd_flags = parse(sys.argv[1:])
        with asyncio.Runner() as runner:
            return runner.run(_run(options, nsqd_flags))
    except StartError as error:
        return report(error, "[demo] ")
    except ChildProcessError as error:
        return report(StartError(str(error)), "[demo] ")


async def _run(options: Options, nsqd_flags: Sequence[str]) -> int:
    """nsqd's exit status, whatever ended it."""
    stop = process.stop_signal()
    os.makedirs(options.data_path, exist_ok=True)
    async with contextlib.AsyncExitStack() as stack:
        lookupd = await _start(stack, "nsqlookupd", options.lookupd_tcp_address, options.lookupd_http_address)
        lookupd_tcp = await lookupd.address("TCP")
        nsqd = await _start(
            stack, "nsqd", options.nsqd_tcp_address, options.nsqd_http_address,
            f"--data-path={options.data_path}", f"--lookupd-tcp-address={lookupd_tcp}", *nsqd_flags,
        )  # fmt: skip
        addresses = {
            "nsqd": await nsqd.address("TCP"),
            "nsqd_http": await nsqd.address("HTTP"),
            "lookupd": lookupd_tcp,
            "lookupd_http": await lookupd.address("HTTP"),
        }
        _say(_SERVERS, data=options.data_path, **addresses)
        if options.demo:
            await _show_off(stack, options, addresses)
        await _first_of(nsqd, stop)
    return await nsqd.wait()  # the stack has stopped everything, what was started last first


async def _start(
    stack: contextlib.AsyncExitStack, name: str, tcp_address: str, http_address: str, *flags: str
) -> Child:
    child = await Child.start(
        f"nsquark.{name}",
        [
            "--broadcast-address=127.0.0.1",
            f"--tcp-address={tcp_address}",
            f"--http-address={http_address}",
            *flags,
        ],
    )
    stack.push_async_callback(child.stop, _PATIENCE)
    return child


async def _show_off(stack: contextlib.AsyncExitStack, options: Options, addresses: dict[str, str]) -> None:
    """The stream, and the query that archives it, which end before nsqd does."""
    begun = asyncio.Event()
    publishing = asyncio.create_task(stream.publish(addresses["nsqd"], begun))
    stack.push_async_callback(_end, publishing)
    await begun.wait()
    output = options.archive or os.path.join(options.data_path, "archive")
    archive = await Child.start(
        "nsquark.pipeline",
        [
            "archive", f"--nsqd-http-address={addresses['nsqd_http']}", f"--topic={stream.TOPIC}",
            f"--output={output}", "--channel=archive", "--trigger=5s",
        ],
    )  # fmt: skip
    watching = asyncio.create_task(_tell_of_end(archive))
    stack.push_async_callback(archive.stop, _PATIENCE)
    stack.push_async_callback(_end, watching)
    _say(_DEMO, topic=stream.TOPIC, archive=output)


async def _tell_of_end(archive: Child) -> None:
    """The servers go on without it; its own last lines say why it ended."""
    status = await archive.wait()
    print(f"The archive ended with status {status}; everything else goes on.", file=sys.stderr, flush=True)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _say(text: str, **values: str) -> None:
    print(text.format(python=os.path.relpath(sys.executable), **values), flush=True)


async def _first_of(nsqd: Child, stop: asyncio.Event) -> None:
    waiting = [asyncio.create_task(nsqd.wait()), asyncio.create_task(stop.wait())]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()


if __name__ == "__main__":
    sys.exit(main())
