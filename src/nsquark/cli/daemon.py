"""The life of a daemon's process: command line, log, serving until a signal comes, exit status."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from nsquark.version import BUILT_WITH, NSQ_VERSION

from . import logs, notify, process
from .flags import StartError, report
from .log_forms import FORMS

logger = logging.getLogger(__name__)


class DaemonOptions(Protocol):
    """What the options of every daemon have."""

    version: bool
    log_level: str
    log_format: str
    log_prefix: str
    warnings: list[str]


_OptionsT = TypeVar("_OptionsT", bound=DaemonOptions)


def run_daemon(
    name: str,
    parse: Callable[[list[str]], _OptionsT],
    prepare: Callable[[_OptionsT], Callable[[], Coroutine[Any, Any, bool]]],
) -> int:
    """Run the daemon `name` with the command line of the process; returns the exit status.

    `parse` reads the command line. `prepare` checks what it says and returns the coroutine function that
    serves; that tells whether all went well to the end. All of them may raise StartError.
    """
    # Not that of a module: under `python -m` the daemon's module is called "__main__".
    logger = logging.getLogger(f"nsquark.{name}")
    version_line = f"{name} v{NSQ_VERSION} (built w/{BUILT_WITH})"
    log_prefix, log_format = f"[{name}] ", "text"
    process.outlive_hangups()
    try:
        options = parse(sys.argv[1:])
        if options.version:
            print(version_line)
            return 0
        log_prefix, log_format = options.log_prefix, options.log_format
        serve = prepare(options)
        process.allow_many_files()
        logs.set_up(log_prefix, options.log_level, form=FORMS[log_format])
        logger.info("%s", version_line)
        for warning in options.warnings:
            logger.warning("%s", warning)
        ended_well = process.run(serve())
    except StartError as error:
        logs.flush()
        return report(error, log_prefix, log_format)
    logs.flush()
    return 0 if ended_well else 1


class Startable(Protocol):
    async def start(self) -> None: ...
    async def stop(self) -> object: ...


async def serve_until_signal(server: Callable[[], Startable]) -> bool:
    """Make a server, have it serve until SIGINT or SIGTERM, and stop it. A second signal ends at once."""
    process.collect_seldom()
    signals = process.StopSignals()
    process.on_hangup(lambda: logger.info("SIGHUP: there is nothing to read again"))
    serving = server()  # says that it listens, so signals must be in good hands by now
    await serving.start()
    notify.ready()
    await signals.first.wait()
    notify.stopping()
    stopping = asyncio.ensure_future(serving.stop())
    hurried = asyncio.ensure_future(signals.second.wait())
    await asyncio.wait((stopping, hurried), return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if stopping.done():
        stopping.result()
    return True
