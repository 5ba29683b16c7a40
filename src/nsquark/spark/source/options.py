"""The options of a source: which topics to read, from where to where, and in how large pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from nsquark.names import is_ephemeral, is_valid_name

from ..errors import OptionError
from ..http import Access
from ..options import BATCH_NAMES, STREAM_NAMES, Addresses, OptionReader, parse_addresses

EARLIEST, LATEST = "earliest", "latest"
# What the positions of `startingOffsets` and `endingOffsets` may be besides a position.
EARLIEST_POSITION, LATEST_POSITION = -2, -1

GivenPositions = dict[str, dict[str, int]]  # topic: nsqd, by its id or its host:port: position


@dataclass(frozen=True)
class Subscription:
    """The topics of a query: some by name, others by a pattern."""

    topics: tuple[str, ...] = ()
    pattern: str = ""  # a regular expression for the whole name

    def matches(self, topic: str) -> bool:
        return topic in self.topics or bool(self.pattern and re.fullmatch(self.pattern, topic))

    def __str__(self) -> str:
        return ", ".join([*self.topics, *([f"/{self.pattern}/"] if self.pattern else [])])


def parse_subscription(options: OptionReader) -> Subscription:
    given = [name for name in ("subscribe", "topic", "subscribePattern") if options.has(name)]
    if not given:
        raise OptionError("subscribe", "missing: name a topic, or several separated by commas")
    if len(given) > 1:
        raise OptionError(given[1], f"'{given[0]}' is given too")
    name = given[0]
    if name == "subscribePattern":
        return _parse_pattern(options)
    entries = options.texts(name)
    if not entries:
        raise OptionError(name, "empty")
    topics = [each for each in entries if not _is_wildcard(each)]
    for topic in topics:
        if not is_valid_name(topic):
            raise OptionError(name, f"{topic!r} cannot be the name of a topic")
    wildcards = [_regex(each) for each in entries if _is_wildcard(each)]
    return Subscription(tuple(dict.fromkeys(topics)), "|".join(wildcards))


def _parse_pattern(options: OptionReader) -> Subscription:
    pattern = options.text("subscribePattern")
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError("subscribePattern", f"{pattern!r} is no regular expression: {error}") from None
    if not pattern:
        raise OptionError("subscribePattern", "empty")
    return Subscription((), pattern)


def _is_wildcard(entry: str) -> bool:
    return "*" in entry or "?" in entry


def _regex(wildcard: str) -> str:
    return re.escape(wildcard).replace(r"\*", ".*").replace(r"\?", ".")


@dataclass(frozen=True)
class Bound:
    """Where reading begins or ends.

    A time counts if there is one. Otherwise the positions count for the logs that they name, and the word
    `earliest` or `latest` counts for all other logs.
    """

    word: str = EARLIEST
    time_ms: int | None = None
    positions: GivenPositions | None = None

    def given_for(self, topic: str, nsqd_id: str, nsqd_name: str) -> int | None:
        """The position given for a log, or None; the id of an nsqd counts before its name."""
        positions = (self.positions or {}).get(topic, {})
        return positions.get(nsqd_id, positions.get(nsqd_name))


def parse_bound(options: OptionReader, which: str, default: str) -> Bound:
    """`which` is `starting` or `ending`."""
    name, timestamp = f"{which}Offsets", f"{which}Timestamp"
    if options.has(name) and options.has(timestamp):
        raise OptionError(timestamp, f"'{name}' is given too")
    time_ms = options.optional_integer(timestamp)
    if time_ms is not None:
        return Bound(default, time_ms)
    text = options.text(name, default)
    if text.lower() in (EARLIEST, LATEST):
        return Bound(text.lower())
    if not text.startswith("{"):
        raise OptionError(name, f"{text!r} is neither earliest nor latest nor JSON")
    return Bound(default, None, _parse_positions(name, text))


def _parse_positions(name: str, text: str) -> GivenPositions:
    """Parse `{"topic": {"nsqd": 23}}`, or the offsets that Spark reports for a source."""
    form = 'JSON such as {"topic": {"host:4150": 23}}'
    try:
        document = json.loads(text)
    except ValueError as error:
        raise OptionError(name, f"no {form}: {error}") from None
    positions: GivenPositions = {}
    for topic, nsqds in document.items():
        if not isinstance(nsqds, dict):
            raise OptionError(name, f"no {form}: {topic!r} has no nsqds")
        for nsqd, value in nsqds.items():
            number = value.get("offset") if isinstance(value, dict) else value
            if not isinstance(number, int) or isinstance(number, bool) or number < EARLIEST_POSITION:
                raise OptionError(name, f"{value!r} is no offset of {topic!r} at {nsqd!r}")
            positions.setdefault(topic, {})[nsqd] = number
    return positions


@dataclass(frozen=True)
class FetchOptions:
    """How an executor fetches messages from an nsqd."""

    access: Access
    max_bytes: int
    retries: int
    retry_interval: float
    fail_on_data_loss: bool


@dataclass(frozen=True)
class ReadOptions:
    """The options that a stream and a table have in common."""

    addresses: Addresses
    subscription: Subscription
    starting: Bound
    fetch: FetchOptions
    min_partitions: int
    max_records: int | None  # in one partition


def _parse_read_options(options: OptionReader, default_start: str) -> ReadOptions:
    addresses = parse_addresses(options)
    return ReadOptions(
        addresses=addresses,
        subscription=parse_subscription(options),
        starting=parse_bound(options, "starting", default_start),
        fetch=FetchOptions(
            access=addresses.access,
            max_bytes=options.integer("fetchBytes", 8 << 20, 1),
            retries=options.integer("fetchOffset.numRetries", 3),
            retry_interval=options.milliseconds("fetchOffset.retryIntervalMs", 200),
            fail_on_data_loss=options.boolean("failOnDataLoss", True),
        ),
        min_partitions=options.integer("minPartitions", 1, 1),
        max_records=options.optional_integer("maxRecordsPerPartition", 1),
    )


@dataclass(frozen=True)
class StreamOptions(ReadOptions):
    channel: str = ""
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay: float = 900.0
    poll_wait: float = 0.1
    eager: bool = True
    mode: str = "auto"
    spool_folder: str = ""  # option `stagingDirectory`


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    options = OptionReader(given, STREAM_NAMES)
    reading = _parse_read_options(options, LATEST)
    channel = _parse_channel(options)
    max_offsets = options.optional_integer("maxOffsetsPerTrigger", 1)
    max_bytes = options.optional_integer("maxBytesPerTrigger", 1)
    min_offsets = options.optional_integer("minOffsetsPerTrigger", 1)
    if max_offsets and max_bytes:
        raise OptionError("maxBytesPerTrigger", "'maxOffsetsPerTrigger' is given too")
    if max_offsets and min_offsets and min_offsets > max_offsets:
        raise OptionError("minOffsetsPerTrigger", f"{min_offsets} is more than maxOffsetsPerTrigger")
    return StreamOptions(
        **vars(reading),
        channel=channel,
        max_offsets=max_offsets,
        max_bytes=max_bytes,
        min_offsets=min_offsets,
        max_delay=options.duration("maxTriggerDelay", 900.0),
        poll_wait=options.milliseconds("pollWaitMs", 100),
        eager=options.one_of("ackMode", ("eager", "engine")) == "eager",
        mode=options.one_of("mode", ("auto", "log", "consumer")),
        spool_folder=options.text("stagingDirectory"),
    )


def _parse_channel(options: OptionReader) -> str:
    channel = options.text("channel")
    if not channel:
        raise OptionError("channel", "missing: a query is a channel, and its name says which")
    if not is_valid_name(channel):
        raise OptionError("channel", f"{channel!r} cannot be the name of a channel")
    if is_ephemeral(channel):
        raise OptionError("channel", f"{channel!r} is ephemeral, and a query must find its place again")
    return channel


@dataclass(frozen=True)
class BatchOptions(ReadOptions):
    ending: Bound = Bound(LATEST)


def parse_batch_options(given: Mapping[str, str]) -> BatchOptions:
    options = OptionReader(given, BATCH_NAMES)
    reading = _parse_read_options(options, EARLIEST)
    if reading.starting.word == LATEST and reading.starting.time_ms is None:
        raise OptionError("startingOffsets", "a batch that begins at latest has nothing to read")
    ending = parse_bound(options, "ending", LATEST)
    if ending.word == EARLIEST and ending.time_ms is None:
        raise OptionError("endingOffsets", "a batch that ends at earliest has nothing to read")
    return BatchOptions(**vars(reading), ending=ending)
