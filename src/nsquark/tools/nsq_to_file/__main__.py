"""The `nsq_to_file` command."""

from __future__ import annotations

import logging
import sys

from nsquark.cli import logs, process
from nsquark.gotext import format_duration, nanoseconds

from ..command.options import consumer_config
from ..command.running import Tool
from .options import DEFAULT_MSG_TIMEOUT, FLAGS, Options, check, check_line
from .topics import Topics

logger = logging.getLogger("nsquark.tools.nsq_to_file")  # not __name__: under `python -m` that is "__main__"


async def _archive(options: Options) -> None:
    process.collect_seldom()
    stop = process.stop_signal()
    config = consumer_config("nsq_to_file", options)
    timeout = config.msg_timeout or DEFAULT_MSG_TIMEOUT
    if options.sync_interval >= timeout:
        logger.warning(
            "--sync-interval %s is not below the message timeout of %s:"
            " files are synced when half of the timeout is over",
            format_duration(nanoseconds(options.sync_interval)),
            format_duration(nanoseconds(timeout)),
        )
    topics = Topics(options, config)
    process.on_hangup(topics.reopen)
    await topics.run(stop)


def _set_up_logs(options: Options) -> None:
    logs.set_up(options.log_prefix, options.log_level.lower())


TOOL = Tool("nsq_to_file", FLAGS, check, _archive, _set_up_logs, check_line)


def main() -> int:
    return TOOL.main()


if __name__ == "__main__":
    sys.exit(main())
