"""The `nsqlookupd` command."""

from __future__ import annotations

import logging
import sys

from nsquark.cli import logs, process
from nsquark.cli.flags import StartError, report
from nsquark.version import BUILT_WITH, NSQ_VERSION

from . import options as nsqlookupd_options
from .server import Server

logger = logging.getLogger("nsquark.nsqlookupd")  # not __name__: under `python -m` that is "__main__"

VERSION_LINE = f"nsqlookupd v{NSQ_VERSION} (built w/{BUILT_WITH})"


def main() -> int:
    log_prefix = "[nsqlookupd] "
    try:
        options = nsqlookupd_options.parse(sys.argv[1:])
        if options.version:
            print(VERSION_LINE)
            return 0
        log_prefix = options.log_prefix
        nsqlookupd_options.validate(options)
        process.allow_many_files()
        logs.set_up(options.log_prefix, options.log_level)
        logger.info("%s", VERSION_LINE)
        for warning in options.warnings:
            logger.warning("%s", warning)
        process.run(_serve(options))
    except StartError as error:
        logs.flush()
        return report(error, log_prefix)
    logs.flush()
    return 0


async def _serve(options: nsqlookupd_options.Options) -> None:
    process.collect_seldom()
    stop = process.stop_signal()
    server = Server(options)  # says that it listens, so signals must be in good hands by now
    await server.start()
    await stop.wait()
    await server.stop()


if __name__ == "__main__":
    sys.exit(main())
