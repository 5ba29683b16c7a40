"""The options of `format("nsq")`: named as Spark's Kafka connector names its own, checked beforehand.

Whatever is wrong is an OptionError that names the option. Unknown options are refused, since a misspelt one
would be a limit that is not kept.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from nsquark.names import is_ephemeral, is_valid_name

from .errors import OptionError
from .http import Access

# Of every kind of source and sink.
CONNECTION: Final = (
    "nsqd.http.addresses", "nsqd.tcp.addresses", "lookupd.http.addresses", "lookupd.pollIntervalMs",
    "requestTimeoutMs", "tls.caFile", "tls.certFile", "tls.keyFile", "tls.insecureSkipVerify", "auth.secret",
)  # fmt: skip
READING: Final = (
    "subscribe", "topic", "subscribePattern", "startingOffsets", "startingTimestamp", "failOnDataLoss",
    "minPartitions", "maxRecordsPerPartition", "fetchBytes",
    "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
)  # fmt: skip
STREAM: Final = (
    *CONNECTION, *READING, "channel", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "maxBytesPerTrigger", "pollWaitMs", "ackMode", "mode", "stagingDirectory",
)  # fmt: skip
BATCH: Final = (*CONNECTION, *READING, "endingOffsets", "endingTimestamp")

SINK: Final = (
    *CONNECTION, "topic", "deliveryMode", "txnAppId", "txnVersion", "bodyBytes", "windowBytes",
    "publish.numRetries", "publish.retryIntervalMs",
    "checkpointLocation", "queryName",  # Spark's own, which travel with a stream's
)  # fmt: skip

EVERY: Final = tuple(dict.fromkeys((*STREAM, *BATCH, *SINK)))

EARLIEST, LATEST = "earliest", "latest"
_SECONDS: Final = {
    "ms": 0.001, "millisecond": 0.001, "s": 1, "sec": 1, "second": 1,
    "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400,
}  # fmt: skip
_DELAY = re.compile(r"(\d{1,9})\s*([a-z]+)")
_TRUTH: Final = {"true": True, "false": False}

Positions = dict[str, dict[str, int]]  # topic, nsqd: position; -2 is earliest, -1 is latest


class Reader:
    """Takes the options of one call apart; what is left at the end is unknown."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): value for name, value in options.items()}
        self._names = {name.lower(): name for name in known}
        for name in options:
            # Spark's own reader options travel in the same mapping
            if name.lower() not in self._names and name.lower() != "path":
                near = difflib.get_close_matches(name.lower(), self._names, 1)
                raise OptionError(
                    name, f"unknown{f'; did you mean {self._names[near[0]]!r}?' if near else ''}"
                )
        if "path" in self._given:
            raise OptionError("path", "nsq has no paths: name topics with 'subscribe'")

    def text(self, name: str, default: str = "") -> str:
        return self._given.get(name.lower(), default).strip()

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def listed(self, name: str) -> list[str]:
        return [each for each in (part.strip() for part in self.text(name).split(",")) if each]

    def number(self, name: str, default: int | None, least: int = 0) -> int | None:
        text = self.text(name)
        if not self.has(name):
            return default
        if not re.fullmatch(r"\d{1,18}", text) or int(text) < least:
            raise OptionError(name, f"{text!r} is not a number of at least {least}")
        return int(text)

    def whole(self, name: str, default: int, least: int = 0) -> int:
        number = self.number(name, default, least)
        assert number is not None
        return number

    def truth(self, name: str, default: bool) -> bool:
        text = self.text(name).lower()
        if not self.has(name):
            return default
        if text not in _TRUTH:
            raise OptionError(name, f"{text!r} is neither true nor false")
        return _TRUTH[text]

    def one_of(self, name: str, choices: tuple[str, ...]) -> str:
        text = self.text(name, choices[0])
        for choice in choices:
            if text.lower() == choice.lower():
                return choice
        raise OptionError(name, f"{text!r} is none of {', '.join(choices)}")

    def delay(self, name: str, default: float) -> float:
        """Seconds: `15m`, `30 seconds`, `500ms`."""
        text = self.text(name)
        if not self.has(name):
            return default
        found = _DELAY.fullmatch(text.lower())
        unit = _SECONDS.get(found[2], _SECONDS.get(found[2].removesuffix("s"))) if found else None
        if found is None or unit is None:
            raise OptionError(name, f"{text!r} is no time such as 500ms, 30s or 15m")
        return int(found[1]) * unit


def check_options(given: Mapping[str, str]) -> None:
    """What can be said before Spark tells what for: it asks when a query starts, its user is told at once."""
    parse_addresses(Reader(given, EVERY))


@dataclass(frozen=True)
class Addresses:
    """Where to ask for nsqds: one of the three is filled. Each is a URL, or host:port of a TCP port."""

    nsqd_http: tuple[str, ...] = ()
    nsqd_tcp: tuple[str, ...] = ()
    lookupd: tuple[str, ...] = ()
    poll_interval: float = 10.0
    access: Access = field(default_factory=Access)


def parse_addresses(options: Reader) -> Addresses:
    names = ("nsqd.http.addresses", "lookupd.http.addresses", "nsqd.tcp.addresses")
    given = [name for name in names if options.has(name)]
    if not given:
        raise OptionError(names[0], f"missing: give one of {', '.join(names)}")
    if len(given) > 1:
        raise OptionError(given[1], f"'{given[0]}' is given too: one of them says where the nsqds are")
    if not options.listed(given[0]):
        raise OptionError(given[0], "empty")
    timeout = options.whole("requestTimeoutMs", 10_000, 1) / 1000
    access = Access(
        timeout,
        options.text("tls.caFile"),
        options.text("tls.certFile"),
        options.text("tls.keyFile"),
        not options.truth("tls.insecureSkipVerify", False),
        options.text("auth.secret"),
    )
    for name, path in (("tls.caFile", access.ca_file), ("tls.certFile", access.cert_file)):
        if path:
            try:
                access.ssl_context()
            except OSError as error:
                raise OptionError(name, f"{path!r} cannot be used: {error}") from None
    return Addresses(
        tuple(_url(names[0], each) for each in options.listed(names[0])),
        tuple(_host_port(names[2], each) for each in options.listed(names[2])),
        tuple(_url(names[1], each) for each in options.listed(names[1])),
        options.whole("lookupd.pollIntervalMs", 10_000, 1) / 1000,
        access,
    )


def _url(option: str, address: str) -> str:
    url = address if "://" in address else f"http://{address}"
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port or parts.path not in ("", "/"):
        raise OptionError(option, f"{address!r} is neither host:port nor an http URL with a port")
    return url.rstrip("/")


def _host_port(option: str, address: str) -> str:
    if "://" in address:
        raise OptionError(option, f"{address!r} is not host:port")
    return _url(option, address).removeprefix("http://")


@dataclass(frozen=True)
class Subscription:
    """Which topics: some by name, others by pattern."""

    topics: tuple[str, ...] = ()
    pattern: str = ""  # a regular expression for the whole name

    def matches(self, topic: str) -> bool:
        return topic in self.topics or bool(self.pattern and re.fullmatch(self.pattern, topic))

    def __str__(self) -> str:
        return ", ".join([*self.topics, *([f"/{self.pattern}/"] if self.pattern else [])])


def parse_subscription(options: Reader) -> Subscription:
    given = [name for name in ("subscribe", "topic", "subscribePattern") if options.has(name)]
    if not given:
        raise OptionError("subscribe", "missing: name a topic, or several separated by commas")
    if len(given) > 1:
        raise OptionError(given[1], f"'{given[0]}' is given too")
    name = given[0]
    if name == "subscribePattern":
        pattern = options.text(name)
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(name, f"{pattern!r} is no regular expression: {error}") from None
        if not pattern:
            raise OptionError(name, "empty")
        return Subscription((), pattern)
    entries = options.listed(name)
    if not entries:
        raise OptionError(name, "empty")
    topics = [each for each in entries if not _is_wildcard(each)]
    for topic in topics:
        if not is_valid_name(topic):
            raise OptionError(name, f"{topic!r} cannot be the name of a topic")
    wild = [_regex(each) for each in entries if _is_wildcard(each)]
    return Subscription(tuple(dict.fromkeys(topics)), "|".join(wild))


def _is_wildcard(entry: str) -> bool:
    return "*" in entry or "?" in entry


def _regex(wildcard: str) -> str:
    return re.escape(wildcard).replace(r"\*", ".*").replace(r"\?", ".")


@dataclass(frozen=True)
class Bound:
    """Where reading begins or ends: a word, a time, or positions (with the word for what they leave out)."""

    word: str = EARLIEST
    time_ms: int | None = None
    positions: Positions | None = None


def parse_bound(options: Reader, which: str, default: str) -> Bound:
    """`which` is starting or ending."""
    name, timestamp = f"{which}Offsets", f"{which}Timestamp"
    if options.has(name) and options.has(timestamp):
        raise OptionError(timestamp, f"'{name}' is given too")
    time_ms = options.number(timestamp, None)
    if time_ms is not None:
        return Bound(default, time_ms)
    text = options.text(name, default)
    if text.lower() in (EARLIEST, LATEST):
        return Bound(text.lower())
    if not text.startswith("{"):
        raise OptionError(name, f"{text!r} is neither earliest nor latest nor JSON")
    return Bound(default, None, _parse_positions(name, text))


def _parse_positions(name: str, text: str) -> Positions:
    """`{"topic": {"nsqd": 23}}`; the offsets that Spark logs for a source are taken too."""
    form = 'JSON such as {"topic": {"host:4150": 23}}'
    try:
        document = json.loads(text)
    except ValueError as error:
        raise OptionError(name, f"no {form}: {error}") from None
    positions: Positions = {}
    for topic, nsqds in document.items():
        if not isinstance(nsqds, dict):
            raise OptionError(name, f"no {form}: {topic!r} has no nsqds")
        for nsqd, value in nsqds.items():
            number = value.get("offset") if isinstance(value, dict) else value
            if not isinstance(number, int) or isinstance(number, bool) or number < -2:
                raise OptionError(name, f"{value!r} is no offset of {topic!r} at {nsqd!r}")
            positions.setdefault(topic, {})[nsqd] = number
    return positions


@dataclass(frozen=True)
class Fetching:
    """How executors read."""

    access: Access
    max_bytes: int
    retries: int
    retry_interval: float
    fail_on_data_loss: bool


@dataclass(frozen=True)
class ReadOptions:
    """What stream and batch have in common."""

    addresses: Addresses
    subscription: Subscription
    starting: Bound
    fetching: Fetching
    min_partitions: int
    max_records: int | None  # of a partition


def _parse_reading(options: Reader, default_start: str) -> ReadOptions:
    addresses = parse_addresses(options)
    return ReadOptions(
        addresses,
        parse_subscription(options),
        parse_bound(options, "starting", default_start),
        Fetching(
            addresses.access,
            options.whole("fetchBytes", 8 << 20, 1),
            options.whole("fetchOffset.numRetries", 3),
            options.whole("fetchOffset.retryIntervalMs", 200) / 1000,
            options.truth("failOnDataLoss", True),
        ),
        options.whole("minPartitions", 1, 1),
        options.number("maxRecordsPerPartition", None, 1),
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
    staging: str = ""


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    options = Reader(given, STREAM)
    reading = _parse_reading(options, LATEST)
    channel = options.text("channel")
    if not channel:
        raise OptionError("channel", "missing: a query is a channel, and its name says which")
    if not is_valid_name(channel):
        raise OptionError("channel", f"{channel!r} cannot be the name of a channel")
    if is_ephemeral(channel):
        raise OptionError("channel", f"{channel!r} is ephemeral, and a query must find its place again")
    max_offsets = options.number("maxOffsetsPerTrigger", None, 1)
    max_bytes = options.number("maxBytesPerTrigger", None, 1)
    min_offsets = options.number("minOffsetsPerTrigger", None, 1)
    if max_offsets and max_bytes:
        raise OptionError("maxBytesPerTrigger", "'maxOffsetsPerTrigger' is given too")
    if max_offsets and min_offsets and min_offsets > max_offsets:
        raise OptionError("minOffsetsPerTrigger", f"{min_offsets} is more than maxOffsetsPerTrigger")
    return StreamOptions(
        **{name: getattr(reading, name) for name in ReadOptions.__dataclass_fields__},
        channel=channel,
        max_offsets=max_offsets,
        max_bytes=max_bytes,
        min_offsets=min_offsets,
        max_delay=options.delay("maxTriggerDelay", 900.0),
        poll_wait=options.whole("pollWaitMs", 100) / 1000,
        eager=options.one_of("ackMode", ("eager", "engine")) == "eager",
        mode=options.one_of("mode", ("auto", "log", "consumer")),
        staging=options.text("stagingDirectory"),
    )


@dataclass(frozen=True)
class BatchOptions(ReadOptions):
    ending: Bound = Bound(LATEST)


def parse_batch_options(given: Mapping[str, str]) -> BatchOptions:
    options = Reader(given, BATCH)
    reading = _parse_reading(options, EARLIEST)
    if reading.starting.word == LATEST and reading.starting.time_ms is None:
        raise OptionError("startingOffsets", "a batch that begins at latest has nothing to read")
    ending = parse_bound(options, "ending", LATEST)
    if ending.word == EARLIEST and ending.time_ms is None:
        raise OptionError("endingOffsets", "a batch that ends at earliest has nothing to read")
    return BatchOptions(
        **{name: getattr(reading, name) for name in ReadOptions.__dataclass_fields__}, ending=ending
    )
