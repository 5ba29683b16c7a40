"""The `nsqd` command."""

from __future__ import annotations

import logging
import sys

from nsquark.cli import logs, process
from nsquark.cli.flags import StartError, report
from nsquark.nsqd.protocol.certificates import Certificates
from nsquark.nsqd.storage.data_path import lock_data_path
from nsquark.version import BUILT_WITH, NSQ_VERSION

from . import options as nsqd_options
from .server import Server

logger = logging.getLogger("nsquark.nsqd")  # not __name__: under `python -m` that is "__main__"

VERSION_LINE = f"nsqd v{NSQ_VERSION} (built w/{BUILT_WITH})"


def main() -> int:
    log_prefix = "[nsqd] "
    try:
        options = nsqd_options.parse(sys.argv[1:])
        if options.version:
            print(VERSION_LINE)
            return 0
        log_prefix = options.log_prefix
        lock_data_path(options.data_path)
        certificates = Certificates(options)
        nsqd_options.validate(options, certificates.load_server, certificates.load_client)
        process.allow_many_files()
        logs.set_up(options.log_prefix, options.log_level)
        logger.info("%s", VERSION_LINE)
        logger.info("ID: %d", options.node_id)
        for warning in options.warnings:
            logger.warning("%s", warning)
        stored = process.run(_serve(options, certificates))
    except StartError as error:
        logs.flush()
        return report(error, log_prefix)
    logs.flush()
    return 0 if stored else 1


async def _serve(options: nsqd_options.Options, certificates: Certificates) -> bool:
    """Serve until a signal comes; returns whether everything could be stored then."""
    process.collect_seldom()
    stop = process.stop_signal()
    server = Server(options, certificates)  # says that it listens, so signals must be in good hands by now
    await server.start()
    if certificates.offered:
        process.on_hangup(server.reload)
    await stop.wait()
    logger.info("NSQ: stopping subsystems")
    stored = await server.stop()
    logger.info("NSQ: bye")
    return stored


if __name__ == "__main__":
    sys.exit(main())
