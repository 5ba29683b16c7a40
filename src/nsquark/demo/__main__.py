"""`make run`: `nsquark up`, and a stream into Parquet files to show it off. All end together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from nsquark.cli import process
from nsquark.cli.flags import StartError, report

from . import stream
from .archiving import PATIENCE, archive
from .children import Child
from .options import Options, parse

_SERVERS = """\
nsqd        TCP {nsqd_tcp}, HTTP {nsqd_http}, data in {data_path}
nsqlookupd  TCP {lookupd_tcp}, HTTP {lookupd_http}
nsqadmin    {admin_page}

From another terminal, here:

publish:    curl -d 'hello' 'http://{nsqd_http}/pub?topic=test'
consume:    {nsquark} tail test --from earliest --nsqd-http {nsqd_http}
watch:      {nsquark} top --nsqd-http {nsqd_http}
look up:    curl 'http://{lookupd_http}/lookup?topic=test'

Ctrl-C stops everything.
"""


def main() -> int:
    try:
        options, nsqd_flags = parse(sys.argv[1:])
        with asyncio.Runner() as runner:
            return runner.run(_run(options, nsqd_flags))
    except StartError as error:
        return report(error, "[demo] ")
    except ChildProcessError as error:
        return int(error.args[0])  # the servers have said why they did not start


async def _run(options: Options, nsqd_flags: Sequence[str]) -> int:
    """The servers' exit status, whatever ended them."""
    stop = process.stop_signal()
    async with contextlib.AsyncExitStack() as stack:
        servers = await Child.start_module(
            "nsquark.tools.people",
            [
                "up", "--json", f"--data-path={options.data_path}",
                f"--nsqd-tcp-address={options.nsqd_tcp_address}",
                f"--nsqd-http-address={options.nsqd_http_address}",
                f"--lookupd-tcp-address={options.lookupd_tcp_address}",
                f"--lookupd-http-address={options.lookupd_http_address}",
                f"--admin-http-address={options.admin_http_address}",
                "--", *nsqd_flags,
            ],
            announces=True,
        )  # fmt: skip
        stack.push_async_callback(servers.stop, PATIENCE)
        addresses = await servers.announced()
        page = f"http://{addresses['admin_http']}/" if addresses["admin_http"] else "not installed"
        print(_SERVERS.format(nsquark=_nsquark(), admin_page=page, **addresses), flush=True)
        if options.demo:
            await _show_off(stack, options, addresses)
        await _first_of(servers, stop)
    return await servers.wait()  # the stack has stopped everything, what was started last first


async def _show_off(stack: contextlib.AsyncExitStack, options: Options, addresses: dict[str, str]) -> None:
    """The stream, and the query that archives it, which end before nsqd does."""
    begun = asyncio.Event()
    publishing = asyncio.create_task(stream.publish(addresses["nsqd_tcp"], begun))
    stack.push_async_callback(_end, publishing)
    await begun.wait()
    print(f"Topic {stream.TOPIC} gets ten orders a second.", flush=True)
    output = options.archive or os.path.join(options.data_path, "archive")
    archiving = asyncio.create_task(archive(addresses["nsqd_http"], output, options.spark_setup))
    stack.push_async_callback(_end, archiving)


def _nsquark() -> str:
    """How the command `nsquark` is called here."""
    installed = os.path.join(os.path.dirname(sys.executable), "nsquark")
    if os.path.exists(installed):
        return os.path.relpath(installed)
    return f"{os.path.relpath(sys.executable)} -m nsquark.tools.people"


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _first_of(servers: Child, stop: asyncio.Event) -> None:
    waiting = [asyncio.create_task(servers.wait()), asyncio.create_task(stop.wait())]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()


if __name__ == "__main__":
    sys.exit(main())
