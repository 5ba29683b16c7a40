"""The `nsqd` command."""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsquark.cli import notify, process
from nsquark.cli.daemon import run_daemon
from nsquark.kernel import COMPILED, KERNEL, NOT_COMPILED, keep_freed_memory

try:
    from nsquark.nsqd.importing.starting import print_report, take_over
    from nsquark.nsqd.protocol.certificates import Certificates
    from nsquark.nsqd.replica.copy.promotion import promote
    from nsquark.nsqd.replica.member.member_file import refuse_members_directory
    from nsquark.nsqd.storage import daemon_threads
    from nsquark.nsqd.storage.data_path import lock_data_path

    from .options import Options, parse
    from .options_check import validate
    from .server import Server
except (ImportError, TypeError, ValueError) as error:
    # One of another version, say: what it includes does not fit, and it raises any of these.
    if not COMPILED:
        raise
    sys.exit(f"nsqd: a compiled module cannot be loaded: {error}. Install again, or set NSQUARK_PURE=1.")

if TYPE_CHECKING:
    from nsquark.nsqd.replica.member.member import Member

# A large body is read, laid out and kept for a while in blocks that come and go with each message.
LARGEST_KEPT = 8 << 20
MOST_KEPT = 32 << 20

logger = logging.getLogger("nsquark.nsqd")  # not __name__: under `python -m` that is "__main__"


def main() -> int:
    status = run_daemon("nsqd", parse, _prepare)
    if daemon_threads.are_left():
        process.leave(status)  # pyarrow's end of S3 waits for requests that are under way, for a minute
    return status


def _prepare(options: Options) -> Callable[[], Coroutine[Any, Any, bool]]:
    lock_data_path(options.data_path)
    certificates = Certificates(options)
    validate(options, certificates.load_server, certificates.load_client)
    if options.import_ == "check":
        return partial(print_report, options)
    return partial(_serve, options, certificates)


async def _serve(options: Options, certificates: Certificates) -> bool:
    """Serve until a signal comes; returns whether everything could be stored then."""
    process.collect_seldom()
    keep_freed_memory(LARGEST_KEPT, MOST_KEPT)
    signals = process.StopSignals()
    process.on_hangup(lambda: logger.info("SIGHUP: there are no certificates to read again"))
    logger.info("ID: %d", options.node_id)
    logger.info("kernel: %s", KERNEL)
    if NOT_COMPILED:
        logger.warning("runs uncompiled, and slowly: no compiled %s", ", ".join(NOT_COMPILED))
    if options.replica_group:
        return await _be_member(options, certificates, signals)
    refuse_members_directory(Path(options.data_path or "."))
    if options.replica_of:
        from nsquark.nsqd.replica.copy.follower_server import follow

        notify.ready()
        if not await follow(options, signals.first):
            return True
    promote(Path(options.data_path or "."))
    if not await take_over(options, signals.first):
        return True
    server = Server(options, certificates)  # says that it listens, so signals must be in good hands by now
    await server.start()
    if certificates.offered:
        process.on_hangup(partial(_reload, server))
    notify.ready()
    await signals.first.wait()
    logger.info("NSQ: stopping subsystems")
    notify.stopping("consumers finish what they have")
    await server.drain(signals.second)
    notify.stopping("storing everything")
    stored = await server.stop()
    logger.info("NSQ: bye")
    return stored


async def _be_member(options: Options, certificates: Certificates, signals: process.StopSignals) -> bool:
    """Be a member of a replica group until a signal comes; returns whether everything could be stored."""
    from nsquark.nsqd.replica.member.member import Member

    server = Server(options, certificates)
    member = Member(options, server)
    if certificates.offered:
        process.on_hangup(partial(_reload, server, member))
    notify.ready()
    tasks = [asyncio.create_task(each) for each in (member.run(), signals.first.wait())]
    await asyncio.wait(tasks, return_when=FIRST_COMPLETED)
    if member.failure is not None:
        raise member.failure
    if tasks[0].done():
        tasks[0].result()
    logger.info("NSQ: stopping subsystems")
    member.stopping = True
    if member.serving:
        notify.stopping("consumers finish what they have")
        draining = asyncio.create_task(server.drain(signals.second))
        await asyncio.wait([draining, asyncio.create_task(member.ended.wait())], return_when=FIRST_COMPLETED)
        draining.cancel()  # there is nothing to wait for where another member leads by now
    notify.stopping("storing everything")
    stored = await member.stop()
    logger.info("NSQ: bye")
    return stored


def _reload(server: Server, member: Member | None = None) -> None:
    notify.reloading()
    server.reload()
    if member is not None:
        member.etcd.reload(member.options)
    notify.ready()


if __name__ == "__main__":
    sys.exit(main())
