"""The `nsq_to_spark` command."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nsquark.cli import logs
from nsquark.cli.flags import FlagError, FlagSet, HelpRequested, StartError, report
from nsquark.errors import NsquarkError
from nsquark.version import BUILT_WITH, NSQ_VERSION

from .flags.options import (
    Common,
    Streaming,
    check_shipping,
    stream_options,
    with_flag_names,
)
from .flags.subcommands import SUBCOMMANDS, Replay, Subcommand, range_options
from .running import session
from .running.failures import one_line
from .running.queries import Interrupted, StopSignal
from .running.quiet import StderrFilter, silence_loggers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsquark.spark.reports import ProgressListener

# Not __name__, which is "__main__" under `python -m`.
logger = logging.getLogger("nsquark.pipeline")

_LAST_REPORT = 3.0  # seconds that the end of the command may wait for it

VERSION_LINE = f"nsq_to_spark v{NSQ_VERSION} (built w/{BUILT_WITH})"


def usage() -> str:
    lines = [f"  {each.name:<10}{each.summary}" for each in SUBCOMMANDS.values()]
    return (
        "Usage: nsq_to_spark <subcommand> [flags]\n\n"
        + "\n".join(lines)
        + "\n\nnsq_to_spark <subcommand> --help tells its flags.\n"
    )


def parse(argv: Sequence[str]) -> tuple[Subcommand, Any] | None:
    """The subcommand and its checked options; None if the command line asks for the version.

    Raises StartError.
    """
    if not argv:
        raise FlagError("a subcommand is missing", usage())
    name, rest = argv[0], argv[1:]
    if name in ("-version", "--version"):
        return None
    if name in ("-h", "-help", "--help", "help"):
        raise HelpRequested(usage())
    found = SUBCOMMANDS.get(name)
    if found is None:
        raise FlagError(f"no such subcommand: {name}", usage())
    flags: FlagSet[Any] = FlagSet(f"nsq_to_spark {name}", found.options)
    line = flags.parse(rest)
    options = flags.build(line)
    if options.version:
        return None
    if line.rest:
        raise FlagError(f"no flag: {line.rest[0]}", flags.usage())
    found.check(options)
    if isinstance(options, Common):
        check_shipping(options)
    return found, options


def check_source(options: Common) -> None:
    """Refuse what the data source would refuse, before Spark starts. Raises StartError."""
    from nsquark.spark.source.options import parse_batch_options, parse_stream_options

    try:
        if isinstance(options, Streaming):
            parse_stream_options(stream_options(options))
        elif isinstance(options, Replay) and not options.archive:
            parse_batch_options(range_options(options))
    except NsquarkError as error:
        raise StartError(with_flag_names(str(error))) from None


def check_nsqds(options: Common) -> None:
    """Refuse topics and nsqds that are not there, before Spark starts. Raises StartError."""
    from .topics import nsqds  # which imports PySpark

    nsqds.check_nsqds(options)


def main() -> int:
    log_prefix = "[nsq_to_spark] "
    try:
        parsed = parse(sys.argv[1:])
        if parsed is None:
            print(VERSION_LINE)
            return 0
        subcommand, options = parsed
        log_prefix = options.log_prefix
        if not subcommand.on_spark:
            logs.set_up(options.log_prefix, options.log_level)
            _module(subcommand).run(options)
            return 0
        session.require_spark()
        check_source(options)
        logs.set_up(options.log_prefix, options.log_level)
        logger.info("%s: %s", VERSION_LINE, subcommand.name)
        check_nsqds(options)
        return _run(subcommand, options)
    except StartError as error:
        logs.flush()
        return report(error, log_prefix)
    finally:
        logs.flush()


def _module(subcommand: Subcommand) -> Any:
    return importlib.import_module(f"nsquark.pipeline.commands.{subcommand.name}")


def _run(subcommand: Subcommand, options: Any) -> int:
    silence_loggers()
    stderr = StderrFilter()
    stop = StopSignal(stderr.mute)
    stop.install()
    try:
        with stop.at_once():
            spark = session.start(options, subcommand.name, stderr)
    except (Interrupted, KeyboardInterrupt):  # the JVM ends when it notices that this process has ended
        logger.info("stopped")
        return 0
    stop.install()
    reports = _report_progress(spark) if isinstance(options, Streaming) else None
    try:
        _module(subcommand).run(spark, options, stop)
    except StartError:
        raise
    except NsquarkError as error:
        logger.critical("%s", error)
        return 1
    finally:
        stderr.mute()
        if reports is not None:
            reports.wait(_LAST_REPORT, ends=True)
        spark.stop()
    logger.info("stopped" if stop else "done")
    return 0


def _report_progress(spark: SparkSession) -> ProgressListener | None:
    """Have the progress of the query told to the nsqds, which nsqadmin asks."""
    from nsquark.spark import report_progress

    try:
        return report_progress(spark, log_level=logging.DEBUG)
    except Exception as error:  # of Py4J or of Spark: the query runs without it
        logger.warning("the progress of the query is not reported: %s", one_line(error))
        return None


if __name__ == "__main__":
    sys.exit(main())
