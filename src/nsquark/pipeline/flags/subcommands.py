"""The subcommands: the flags of each, the checks on them, and a line that says what it does.

Nothing here needs Spark, so a mistake on the command line is reported at once.
"""

# ruff: noqa: RUF009 - `flag` makes a dataclasses.field, so that no default is shared

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from nsquark.cli.flags import BOOL, DURATION, FLOAT, FLOATS, INT, STRING, STRINGS, flag
from nsquark.names import is_valid_name

from ..shipping.files import ZIP, archive_kind
from .kinds import PAIRS, TIME
from .options import (
    Common,
    Logging,
    Publishing,
    Reading,
    Streaming,
    check_addresses,
    check_publishing,
    check_reading,
    local_path,
    publishes_elsewhere,
    reading_options,
    refuse,
)
from .table_flags import DELTA, ICEBERG, PARQUET, TableFlags, check_table

BINARY, TEXT = "binary", "string"


@dataclass(repr=False, eq=False)
class Files(Common):
    """The flags of subcommands that write files."""

    output: str = flag(STRING, "", "the folder to write to")
    format: str = flag(STRING, PARQUET, "parquet, orc, json, csv, or any other that Spark has")
    format_opt: dict[str, str] = flag(
        PAIRS, dict, "an option of the format, such as compression=zstd (may be given multiple times)"
    )


@dataclass(repr=False, eq=False)
class MergedFiles(Files):
    """The flags of subcommands whose files are in folders by date."""

    compact: bool = flag(BOOL, True, "merge small files")
    compact_min_files: int = flag(INT, 8, "merge so many small files of an hour or day that is not over")
    compact_file_size: int = flag(INT, 128 << 20, "files of so many bytes are large enough")


def _check_merging(options: MergedFiles) -> None:
    if options.compact_min_files < 2:
        raise refuse("compact-min-files", f"{options.compact_min_files} is not at least 2")
    if options.compact_file_size < 1:
        raise refuse("compact-file-size", f"{options.compact_file_size} is not at least 1")


@dataclass(repr=False, eq=False)
class Archive(Streaming, MergedFiles, TableFlags):
    exact_files: bool = flag(
        BOOL, True, "files that are exact for every program that lists them; false: Spark's own file sink"
    )
    value_type: str = flag(STRING, BINARY, "what bodies are in the files: binary or string")

    @property
    def is_table(self) -> bool:
        """Whether commits say which files count. Spark's own sinks have formats of the same names."""
        return self.exact_files and (self.manifest or self.format in (DELTA, ICEBERG))


def check_archive(options: Archive) -> None:
    check_reading(options)
    if options.manifest and not options.exact_files:
        raise refuse("manifest", "not with --exact-files=false")
    if options.value_type not in (BINARY, TEXT):
        raise refuse("value-type", f"{options.value_type!r} is neither {BINARY} nor {TEXT}")
    _check_merging(options)
    if options.is_table:
        check_table(options)
    else:
        _require_output(options)
        if options.exact_files:
            _local_output(options, "; --manifest writes exact files anywhere")
    _set_defaults(options, "archive", options.output)


@dataclass(repr=False, eq=False)
class Replay(Reading, Publishing):
    archive: str = flag(STRING, "", "replay this folder, which archive has written, and not a log")
    format: str = flag(STRING, PARQUET, "the archive's format")
    ending_offsets: str = flag(STRING, "", "where to end: latest, or JSON (default latest)")
    ending_timestamp: int = flag(TIME, 0, "or a time: ms since the epoch, or ISO 8601")
    rate: float = flag(FLOAT, 0.0, "messages a second")
    speed: float = flag(FLOAT, 0.0, "or in the time they had: 1 is as it was, 2 twice as fast")
    original_topics: bool = flag(BOOL, False, "each message to the topic it was in, in place of --publish")
    checkpoint: str = flag(STRING, "", "a folder that knows how far the replay is, to go on after a stop")


def range_options(options: Replay) -> dict[str, str]:
    """The options of the data source for the range of the logs that is replayed."""
    given = reading_options(options)
    if options.ending_offsets:
        given["endingOffsets"] = options.ending_offsets
    if options.ending_timestamp:
        given["endingTimestamp"] = str(options.ending_timestamp)
    return given


def check_replay(options: Replay) -> None:
    check_publishing(options)
    if options.archive:
        local_path("archive", options.archive)
        if not Path(options.archive).is_dir():
            raise refuse("archive", f"{options.archive!r} is no folder")
        for name in ("starting_offsets", "ending_offsets"):
            if getattr(options, name):
                raise refuse(name.replace("_", "-"), "not with --archive, which is replayed by times")
    else:
        check_reading(options)
    if not publishes_elsewhere(options):
        check_addresses(options)
    if bool(options.publish) == options.original_topics:
        raise refuse("publish", "one of --publish and --original-topics says where to")
    if not options.archive:
        if options.original_topics and not publishes_elsewhere(options):
            raise refuse("original-topics", "each topic of the log would be replayed into itself")
        _check_no_loop(options, options)
    if options.rate < 0:
        raise refuse("rate", f"{options.rate:g} is negative")
    if options.speed < 0:
        raise refuse("speed", f"{options.speed:g} is negative")
    if options.rate and options.speed:
        raise refuse("speed", "--rate is given too")
    if options.ending_offsets and options.ending_timestamp:
        raise refuse("ending-timestamp", "--ending-offsets is given too")
    if options.checkpoint:
        options.checkpoint = str(local_path("checkpoint", options.checkpoint))


@dataclass(repr=False, eq=False)
class Rollup(Streaming, MergedFiles, Publishing):
    window: float = flag(DURATION, 60.0, "the length of a window")
    watermark: float = flag(DURATION, 60.0, "how late a message may be and still count")
    percentile: list[float] = flag(
        FLOATS, lambda: [0.5, 0.9, 0.99], "latency percentiles in (0, 1), divided by commas"
    )
    stats_interval: float = flag(DURATION, 5.0, "time between looks at nsqd's counters, for retry shares")


def check_rollup(options: Rollup) -> None:
    check_reading(options)
    _check_merging(options)
    check_publishing(options)
    if not options.output and not options.publish:
        raise refuse("output", "missing: give it, or --publish, or both")
    _check_no_loop(options, options)
    if options.output:
        _local_output(options)
    for name, least in (("window", 1.0), ("watermark", 0.0), ("stats_interval", 0.1)):
        if getattr(options, name) < least:
            raise refuse(name.replace("_", "-"), f"{getattr(options, name):g} s is less than {least:g} s")
    for percentile in options.percentile:
        if not 0 < percentile < 1:
            raise refuse("percentile", f"{percentile:g} is not between 0 and 1")
    options.percentile = sorted(set(options.percentile))
    _set_defaults(options, "rollup", options.output)


@dataclass(repr=False, eq=False)
class Dedupe(Streaming, MergedFiles, Publishing):
    by: str = flag(STRING, "id", "what tells a message: id, body, or a JSON path such as $.order.id")
    within: float = flag(DURATION, 600.0, "how much later than the first one a duplicate may come")


def check_dedupe(options: Dedupe) -> None:
    check_reading(options)
    _check_merging(options)
    check_publishing(options)
    if options.by not in ("id", "body") and not options.by.startswith("$"):
        raise refuse("by", f"{options.by!r} is neither id nor body nor a JSON path such as $.order.id")
    if options.within < 1:
        raise refuse("within", f"{options.within:g} s is less than a second")
    if bool(options.output) == bool(options.publish):
        raise refuse("publish", "one of --publish and --output says where to")
    _check_no_loop(options, options)
    if options.output:
        _local_output(options)
    _set_defaults(options, "dedupe", options.output)


@dataclass(repr=False, eq=False)
class Sql(Streaming, Files, Publishing):
    file: str = flag(STRING, "", "the file with the query; each topic is a view")
    schema: dict[str, str] = flag(
        PAIRS, dict, "topic=DDL, such as orders='id INT, sum DOUBLE': fields of the topic's JSON bodies"
    )
    sample: int = flag(INT, 1000, "of other topics, look at so many messages for the fields; 0: do not parse")
    watermark: float = flag(DURATION, 0.0, "how late a message may be (on _timestamp); 0: no watermark")
    output_mode: str = flag(STRING, "append", "append, update, or complete")


def check_sql(options: Sql) -> None:
    check_reading(options)
    check_publishing(options)
    if not options.file:
        raise refuse("file", "missing: the file with the query")
    if not Path(options.file).is_file():
        raise refuse("file", f"{options.file!r} is no file")
    if options.topic_pattern:
        raise refuse("topic-pattern", "not with sql, whose views are named by --topic")
    for topic in options.schema:
        if topic not in options.topic:
            raise refuse("schema", f"{topic!r} is none of the topics")
    if options.output_mode not in ("append", "update", "complete"):
        raise refuse("output-mode", f"{options.output_mode!r} is none of append, update, complete")
    if options.output and options.publish:
        raise refuse("publish", "--output is given too")
    _check_no_loop(options, options)
    if options.output and options.output_mode != "append":
        raise refuse("output-mode", f"{options.output_mode!r} cannot go to files, which are never changed")
    if options.sample < 0:
        raise refuse("sample", f"{options.sample} is negative")
    if options.output:
        _local_output(options)
    _set_defaults(options, "sql", options.output, options.file)


@dataclass(repr=False, eq=False)
class Package(Logging):
    output: str = flag(
        STRING, "", "the file: .zip for the modules alone, .tar.gz (.tgz, .tar) for a whole environment"
    )
    with_: list[str] = flag(
        STRINGS, list, "another installed package that the environment gets (may be given multiple times)"
    )


def check_package(options: Package) -> None:
    if not options.output:
        raise refuse("output", "missing: the file to write")
    kind = archive_kind("output", options.output)
    if options.with_ and kind == ZIP:
        raise refuse("with", f"not with a {ZIP}, which has the modules of nsquark alone")
    options.output = str(local_path("output", options.output))


def _check_no_loop(reading: Reading, publishing: Publishing) -> None:
    """Refuse to publish to a topic that the query reads: it would read its own messages for ever."""
    topic = publishing.publish
    if not topic or publishes_elsewhere(publishing):
        return
    if topic in reading.topic:
        raise refuse("publish", f"{topic!r} is read, too")
    try:
        matches = bool(reading.topic_pattern and re.fullmatch(reading.topic_pattern, topic))
    except re.error as error:
        raise refuse(
            "topic-pattern", f"{reading.topic_pattern!r} is no regular expression: {error}"
        ) from None
    if matches:
        raise refuse("publish", f"{topic!r} is read, too: it matches --topic-pattern")


def _require_output(options: Files) -> None:
    if not options.output:
        raise refuse("output", "missing: the folder to write to")


def _local_output(options: Files, hint: str = "") -> None:
    options.output = str(local_path("output", options.output, hint))


def _set_defaults(options: Streaming, name: str, output: str, beside: str = "") -> None:
    """Set the channel and the checkpoint if they are not given."""
    options.channel = options.channel or f"nsq_to_spark_{name}"
    if not is_valid_name(options.channel):
        raise refuse("channel", f"{options.channel!r} cannot be the name of a channel")
    if not options.checkpoint:
        if not output and not beside:
            raise refuse("checkpoint", "missing: where the query keeps its place")
        options.checkpoint = f"{(output or beside).rstrip('/')}.checkpoint"
    if not isinstance(options, Archive) or (options.exact_files and not options.is_table):
        options.checkpoint = str(local_path("checkpoint", options.checkpoint))


class Subcommand(NamedTuple):
    name: str
    options: type[Logging]
    check: Callable[[Any], None]
    summary: str
    on_spark: bool = True


SUBCOMMANDS: Final = {
    each.name: each
    for each in (
        Subcommand("archive", Archive, check_archive, "topics into files, or into a table"),
        Subcommand("replay", Replay, check_replay, "an archive, or a range of a log, back into a topic"),
        Subcommand(
            "rollup", Rollup, check_rollup, "counts, rates, latencies and retries by topic and window"
        ),
        Subcommand("dedupe", Dedupe, check_dedupe, "what was published twice, once"),
        Subcommand("sql", Sql, check_sql, "a query in SQL over topics"),
        Subcommand("package", Package, check_package, "nsquark as a file, for executors without it", False),
    )
}
