"""The `nsqd` command."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import sys

from nsquark import logs
from nsquark.flags import StartError, report
from nsquark.version import NSQ_VERSION, VERSION

from . import options as nsqd_options
from .data_path import lock_data_path
from .server import Server

logger = logging.getLogger(__name__)

VERSION_LINE = f"nsqd v{NSQ_VERSION} (built w/nsquark {VERSION})"


def main() -> int:
    log_prefix = "[nsqd] "
    try:
        options = nsqd_options.parse(sys.argv[1:])
        if options.version:
            print(VERSION_LINE)
            return 0
        log_prefix = options.log_prefix
        lock_data_path(options.data_path)
        nsqd_options.validate(options)
        _refuse_missing(options)
        _allow_many_files()
        logs.set_up(options.log_prefix, options.log_level)
        logger.info("%s", VERSION_LINE)
        logger.info("ID: %d", options.node_id)
        for warning in options.warnings:
            logger.warning("%s", warning)
        _run(options)
    except StartError as error:
        logs.flush()
        return report(error, log_prefix)
    logs.flush()
    return 0


def _refuse_missing(options: nsqd_options.Options) -> None:
    """What is accepted as a flag and not built yet must not be taken for granted."""
    refused: tuple[tuple[str, object], ...] = (
        ("--tls-cert", options.tls_cert),
        ("--tls-key", options.tls_key),
        ("--auth-http-address", options.auth_http_address),
    )
    for flag, given in refused:
        if given:
            raise StartError(f"failed to instantiate nsqd - {flag} is not supported by nsquark {VERSION} yet")
    ignored: tuple[tuple[str, object], ...] = (("--lookupd-tcp-address", options.lookupd_tcp_address),)
    for flag, given in ignored:
        if given:
            options.warnings.append(f"{flag} has no effect in nsquark {VERSION} yet")


def _allow_many_files() -> None:
    """Every connection and every topic needs descriptors: take as many as the system gives."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _run(options: nsqd_options.Options) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(options))
    else:
        uvloop.run(_serve(options))


async def _serve(options: nsqd_options.Options) -> None:
    loop = asyncio.get_running_loop()
    # Hardly anything here is garbage that counting references does not find; look for it seldom.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server = Server(options)  # says that it listens, so signals must be in good hands by now
    await server.start()
    await stop.wait()
    logger.info("NSQ: stopping subsystems")
    await server.stop()
    logger.info("NSQ: bye")


if __name__ == "__main__":
    sys.exit(main())
