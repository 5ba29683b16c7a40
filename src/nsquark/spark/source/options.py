"""The options of a source: which topics to read, from where to where, and in how large pieces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nsquark.names import is_ephemeral, is_valid_name

from ..columns import parse_columns
from ..http import Access
from ..options import BATCH_NAMES, STREAM_NAMES, Addresses, OptionReader, parse_addresses
from .archived_object import NEVER, has_secret
from .bounds import EARLIEST, LATEST, Bound, parse_bound
from .subscription import Subscription, parse_subscription


@dataclass(frozen=True)
class FetchOptions:
    """What an executor fetches from an nsqd, and how."""

    columns: frozenset[str]  # those to fill; the other columns of the schema are null
    access: Access
    max_bytes: int
    retries: int
    retry_interval: float
    fail_on_data_loss: bool
    archive_url: str = ""  # in place of the URL that nsqd tells; "none": nsqd sends what is in its archive
    through: str = ""  # the channel of a streaming query, by which the nsqd knows what may be read


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
            columns=frozenset(parse_columns(options)),
            access=addresses.access,
            max_bytes=options.integer("fetchBytes", 8 << 20, 1),
            retries=options.integer("fetchOffset.numRetries", 3),
            retry_interval=options.milliseconds("fetchOffset.retryIntervalMs", 200),
            fail_on_data_loss=options.boolean("failOnDataLoss", True),
            archive_url=_parse_archive_url(options),
        ),
        min_partitions=options.integer("minPartitions", 1, 1),
        max_records=options.optional_integer("maxRecordsPerPartition", 1),
    )


def _parse_archive_url(options: OptionReader) -> str:
    url = options.text("archive.url")
    if url and url != NEVER:
        if "://" not in url:
            raise options.error("archive.url", f"{url!r} is neither a URL nor {NEVER!r}")
        if has_secret(url):
            raise options.error(
                "archive.url", "it holds credentials: give them to the executors' environment"
            )
    return url


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
        raise options.error("maxBytesPerTrigger", "'maxOffsetsPerTrigger' is given too")
    if max_offsets and min_offsets and min_offsets > max_offsets:
        raise options.error("minOffsetsPerTrigger", f"{min_offsets} is more than maxOffsetsPerTrigger")
    fetch = replace(reading.fetch, through=channel)
    return StreamOptions(
        **{**vars(reading), "fetch": fetch},
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
        raise options.error("channel", "missing: a query is a channel, and its name says which")
    if not is_valid_name(channel):
        raise options.error("channel", f"{channel!r} cannot be the name of a channel")
    if is_ephemeral(channel):
        raise options.error("channel", f"{channel!r} is ephemeral, and a query must find its place again")
    return channel


@dataclass(frozen=True)
class BatchOptions(ReadOptions):
    ending: Bound = field(default_factory=lambda: Bound(LATEST))
    push_filters: bool = False


def parse_batch_options(given: Mapping[str, str]) -> BatchOptions:
    options = OptionReader(given, BATCH_NAMES)
    reading = _parse_read_options(options, EARLIEST)
    if reading.starting.word == LATEST:
        raise options.error("startingOffsets", "a batch that begins at latest has nothing to read")
    ending = parse_bound(options, "ending", LATEST)
    if ending.word == EARLIEST:
        raise options.error("endingOffsets", "a batch that ends at earliest has nothing to read")
    push_filters = options.boolean("filterPushdown", False)
    return BatchOptions(**vars(reading), ending=ending, push_filters=push_filters)
