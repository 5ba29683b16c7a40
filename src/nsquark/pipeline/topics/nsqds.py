"""Asking the nsqds before Spark starts, which takes half a minute: an unknown topic is reported at once.

Only what would end the query anyway is refused here. A query that goes on after a stop waits for an nsqd that
is away, so it is not held up.
"""

from __future__ import annotations

import logging
from pathlib import Path
from urllib.parse import urlsplit

from nsquark.cli.flags import StartError
from nsquark.errors import NsquarkError
from nsquark.spark.columns import SCHEMA
from nsquark.spark.errors import OptionError
from nsquark.spark.options import CONNECTION_NAMES, Addresses, OptionReader, parse_addresses
from nsquark.spark.sink.nsqds import find_tcp_addresses
from nsquark.spark.source import NsqBatchReader
from nsquark.spark.source.directory import Directory
from nsquark.spark.source.logs import NsqdWithoutLog, find_logs
from nsquark.spark.source.options import parse_batch_options, parse_stream_options

from ..flags.options import (
    Common,
    Publishing,
    Streaming,
    sink_options,
    stream_options,
    with_flag_names,
)
from ..flags.subcommands import Replay, range_options

logger = logging.getLogger(__name__)


def check_nsqds(options: Common) -> None:
    """Refuse topics that no nsqd has, and nsqds that do not answer. Raises StartError."""
    repeated = logging.getLogger("nsquark.spark.source")  # whose warnings the error or a line below repeats
    level = repeated.level
    repeated.setLevel(logging.CRITICAL)
    try:
        if isinstance(options, Streaming):
            _check_stream(options)
        elif isinstance(options, Replay) and not options.archive:
            NsqBatchReader(parse_batch_options(range_options(options)), SCHEMA).partitions()
        if isinstance(options, Publishing) and (options.publish or isinstance(options, Replay)):
            find_tcp_addresses(_publishing_addresses(options))
    except NsquarkError as error:
        raise StartError(with_flag_names(str(error))) from None
    finally:
        repeated.setLevel(level)


def _check_stream(options: Streaming) -> None:
    source = parse_stream_options(stream_options(options))
    if source.mode == "consumer" or (_goes_on(options.checkpoint) and not options.available_now):
        return
    directory = Directory(source.addresses, source.subscription, source.channel)
    try:
        find_logs(directory)
    except NsqdWithoutLog as error:
        if source.mode == "log":
            raise OptionError("mode", f"nsqd {error.node.name} has no log to read") from None
        if not source.spool_folder:
            raise OptionError(
                "stagingDirectory", f"missing: nsqd {error.node.name} has no log to read"
            ) from None
    for problem in directory.problems:
        logger.warning("%s", with_flag_names(problem))


def _goes_on(checkpoint: str) -> bool:
    """Whether the query has run before. A checkpoint that only Spark can read is taken for an old one."""
    if urlsplit(checkpoint).scheme not in ("", "file"):
        return True
    return any(Path(urlsplit(checkpoint).path, "offsets").glob("[0-9]*"))


def _publishing_addresses(options: Publishing) -> Addresses:
    given = {name: value for name, value in sink_options(options).items() if name in CONNECTION_NAMES}
    return parse_addresses(OptionReader(given, CONNECTION_NAMES))
