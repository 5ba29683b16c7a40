"""nsq_to_file's options: every flag of NSQ 1.3.0 and our own, and the checks of them."""

# ruff: noqa: RUF009 - `flag` makes a dataclasses.field, so that no default is shared

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from nsquark.cli.flags import BOOL, DURATION, INT, STRING, STRINGS, CommandLine, FlagSet, flag
from nsquark.cli.logs import LEVELS
from nsquark.client import Consumer
from nsquark.errors import UsageError
from nsquark.gotext import compile_pattern

from ..command.options import Consuming, check_addresses
from ..command.running import ToolError
from .file_name import REVISION, FileNames

DEFAULT_MSG_TIMEOUT = 60.0  # nsqd's own, unless its flags or a consumer's option say otherwise
FORMATS = ("plain", "jsonl")


@dataclass(slots=True, repr=False, eq=False)
class Options(Consuming):
    """A field per flag, named as the flag with `_` for `-`."""

    topic: list[str] = flag(STRINGS, list, "nsq topic (may be given multiple times)", key=None)
    topic_pattern: str = flag(STRING, "", "only log topics matching the following pattern", key=None)
    topic_refresh: float = flag(
        DURATION, 60.0, "how frequently the topic list should be refreshed; it is read at start too", key=None
    )
    channel: str = flag(STRING, "nsq_to_file", "nsq channel", key=None)
    output_dir: str = flag(STRING, "/tmp", "directory to write output files to", key=None)
    work_dir: str = flag(
        STRING,
        "",
        "directory for in-progress files before moving to output-dir, on any file system;"
        " files that a killed run has left there are moved at start",
        key=None,
    )
    datetime_format: str = flag(
        STRING, "%Y-%m-%d_%H", "strftime compatible format for <DATETIME> in filename format", key=None
    )
    filename_format: str = flag(
        STRING,
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        "output filename format (<TOPIC>, <HOST>, <PID>, <DATETIME>, <REV> are replaced."
        " <REV> is increased when file already exists)",
        key=None,
    )
    host_identifier: str = flag(
        STRING,
        "",
        "value to output in log filename in place of hostname."
        " <SHORT_HOST> and <HOSTNAME> are valid replacement tokens",
        key=None,
    )
    format: str = flag(
        STRING,
        "plain",
        "plain: the body and a newline; jsonl: a JSON object a line, with id, timestamp_ns, attempts, node,"
        " and body, or body_base64 if the body is no UTF-8",
        key=None,
    )
    gzip: bool = flag(BOOL, False, "gzip output files.", key=None)
    gzip_level: int = flag(INT, 6, "gzip compression level (1-9, 1=BestSpeed, 9=BestCompression)", key=None)
    zstd: bool = flag(BOOL, False, "compress output files with zstd", key=None)
    zstd_level: int = flag(INT, 3, "zstd compression level (1-22)", key=None)
    skip_empty_files: bool = flag(BOOL, False, "skip writing empty files", key=None)
    rotate_size: int = flag(INT, 0, "rotate the file when it grows bigger than `rotate-size` bytes", key=None)
    rotate_interval: float = flag(DURATION, 0.0, "rotate the file every duration", key=None)
    sync_interval: float = flag(
        DURATION,
        30.0,
        "sync file to disk every duration; sooner where messages would time out first",
        key=None,
    )
    http_client_connect_timeout: float = flag(DURATION, 2.0, "timeout for HTTP connect", key=None)
    http_client_request_timeout: float = flag(DURATION, 5.0, "timeout for HTTP request", key=None)
    log_level: str = flag(STRING, "info", "set log verbosity: debug, info, warn, error, or fatal", key=None)
    log_prefix: str = flag(STRING, "[nsq_to_file] ", "log message prefix", key=None)

    @property
    def moves(self) -> bool:
        """Whether finished files are moved from a work directory to another directory."""
        return bool(self.work_dir) and os.path.realpath(self.work_dir) != os.path.realpath(self.output_dir)

    @property
    def compressed(self) -> bool:
        return self.gzip or self.zstd

    @property
    def needs_revisions(self) -> bool:
        """Whether there may be several files of one date."""
        return self.compressed or self.rotate_size > 0 or self.rotate_interval > 0 or self.moves


FLAGS = FlagSet("nsq_to_file", Options, checked_first=())


def check_line(line: CommandLine) -> None:
    """What NSQ checks before it tells its version. Raises ToolError."""
    if line.rest:
        raise ToolError(f"unknown arguments: [{' '.join(line.rest)}]")
    if line.values.get("log_level", "info").lower() not in LEVELS:
        raise ToolError(f"--log-level {line.values['log_level']!r} is none of {', '.join(LEVELS)}")


def check(options: Options) -> None:
    """Refuse, by ToolError, options that nsq_to_file cannot run with. The first checks are in NSQ's order."""
    if not options.channel:
        raise ToolError("--channel is required")
    _check_positive(options, "http_client_connect_timeout", "http_client_request_timeout")
    check_addresses(options)
    if not 1 <= options.gzip_level <= 9:
        raise ToolError(f"invalid --gzip-level value ({options.gzip_level}), should be 1-9")
    if not options.topic and not options.topic_pattern:
        raise ToolError("--topic or --topic-pattern required")
    if not options.topic and not options.lookupd_http_address:
        raise ToolError("--lookupd-http-address must be specified when no --topic specified")
    if not 1 <= options.zstd_level <= 22:
        raise ToolError(f"invalid --zstd-level value ({options.zstd_level}), should be 1-22")
    if options.gzip and options.zstd:
        raise ToolError("use --gzip or --zstd not both")
    if options.format not in FORMATS:
        raise ToolError(f"--format {options.format!r} is none of {', '.join(FORMATS)}")
    _check_positive(options, "sync_interval", "topic_refresh", "max_in_flight")
    pattern = compile_topic_pattern(options.topic_pattern)
    if options.topic and not any(map(pattern.search, options.topic)):
        raise ToolError(f"--topic-pattern {options.topic_pattern!r} matches no --topic")
    if options.needs_revisions and REVISION not in options.filename_format:
        raise ToolError(
            f"missing {REVISION} in --filename-format {options.filename_format!r}"
            " when compression, rotation, or work dir enabled"
        )
    for topic in options.topic or ["topic"]:
        file_names(options, topic)
        try:  # a consumer that is not started has checked names and addresses
            Consumer(
                topic, options.channel, nsqd=options.nsqd_tcp_address, lookupd=options.lookupd_http_address
            )
        except UsageError as error:
            raise ToolError(str(error)) from None


def _check_positive(options: Options, *fields: str) -> None:
    for field in fields:
        if getattr(options, field) <= 0:
            raise ToolError(f"--{field.replace('_', '-')} should be positive")


def compile_topic_pattern(pattern: str) -> Any:
    """Raises ToolError."""
    try:
        return compile_pattern(pattern)
    except ValueError as error:
        raise ToolError(f"invalid --topic-pattern {pattern!r}: {error}") from None


def file_names(options: Options, topic: str) -> FileNames:
    """The names of a topic's files. Raises ToolError."""
    extension = ".gz" if options.gzip else ".zst" if options.zstd else ""
    try:
        return FileNames.of(
            options.filename_format,
            options.datetime_format,
            topic=topic,
            host_identifier=options.host_identifier,
            extension=extension,
            with_revisions=options.needs_revisions,
        )
    except ValueError as error:
        raise ToolError(f"topic {topic}: {error}") from None
