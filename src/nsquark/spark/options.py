"""The names of all options of `format("nsq")`, how their values are read, and the options of a connection.

Options are named as Spark's Kafka connector names its own. A wrong value is an OptionError that names the
option as the user wrote it. An unknown option is refused too: a misspelt limit would otherwise be a limit
that does not hold.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from .errors import OptionError
from .http import Access

# Every source and every sink has these.
CONNECTION_NAMES: Final = (
    "nsqd.http.addresses", "nsqd.tcp.addresses", "lookupd.http.addresses", "lookupd.pollIntervalMs",
    "requestTimeoutMs", "tls.caFile", "tls.certFile", "tls.keyFile", "tls.insecureSkipVerify", "auth.secret",
)  # fmt: skip
_READ_NAMES: Final = (
    "subscribe", "topic", "subscribePattern", "assign", "columns", "startingOffsets", "startingTimestamp",
    "failOnDataLoss", "minPartitions", "maxRecordsPerPartition", "fetchBytes",
    "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "archive.url",
)  # fmt: skip
STREAM_NAMES: Final = (
    *CONNECTION_NAMES, *_READ_NAMES, "channel", "maxOffsetsPerTrigger", "minOffsetsPerTrigger",
    "maxTriggerDelay", "maxBytesPerTrigger", "pollWaitMs", "ackMode", "mode", "stagingDirectory",
)  # fmt: skip
BATCH_NAMES: Final = (
    *CONNECTION_NAMES, *_READ_NAMES, "endingOffsets", "endingTimestamp", "filterPushdown",
)  # fmt: skip
SINK_NAMES: Final = (
    *CONNECTION_NAMES, "topic", "deliveryMode", "txnAppId", "txnVersion", "bodyBytes", "windowBytes",
    "publish.numRetries", "publish.retryIntervalMs",
    "checkpointLocation", "queryName",  # Spark passes these two options of its own to a streaming sink
)  # fmt: skip
# Of each of these groups a query has one option at the most; the first group says where the nsqds are.
EXCLUSIVE_NAMES: Final = (
    ("nsqd.http.addresses", "nsqd.tcp.addresses", "lookupd.http.addresses"),
    ("subscribe", "topic", "subscribePattern", "assign"),
    ("startingOffsets", "startingTimestamp"),
    ("endingOffsets", "endingTimestamp"),
    ("maxOffsetsPerTrigger", "maxBytesPerTrigger"),
)
ALL_NAMES: Final = tuple(dict.fromkeys((*STREAM_NAMES, *BATCH_NAMES, *SINK_NAMES)))

_SECONDS: Final = {
    "ms": 0.001, "millisecond": 0.001, "s": 1, "sec": 1, "second": 1,
    "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400,
}  # fmt: skip
_DURATION = re.compile(r"(\d{1,9})\s*([a-z]+)")
_BOOLEANS: Final = {"true": True, "false": False}


class OptionReader:
    """Reads the options of one call by name and type. The case of a name does not matter."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        """Raises OptionError for an option that is not among the `known` names."""
        self._given = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in known}
        # Spark hands a source the names of its options in lower case. Such a name is taken to be written as
        # it is documented.
        self._written = {name.lower(): names.get(name, name) if name.islower() else name for name in options}
        for name in options:
            # Spark puts `path` into the same mapping. It gets an error of its own below.
            if name.lower() not in names and name.lower() != "path":
                near = difflib.get_close_matches(name.lower(), names, 1)
                if not near:
                    raise OptionError(name, "unknown")
                meant = names[near[0]]
                raise OptionError(_in_case_of(meant, name), f"unknown; did you mean {meant!r}?")
        if "path" in self._given:
            raise OptionError("path", "nsq has no paths: name topics with 'subscribe'")

    def error(self, name: str, problem: str) -> OptionError:
        """The error that names the option as it was written."""
        return OptionError(self.written(name), problem)

    def written(self, name: str) -> str:
        """The name of an option as the user wrote it; as it is documented if the option is not given."""
        return self._written.get(name.lower(), name)

    def hint(self) -> str:
        """What else to tell if an option is missing that every query has."""
        if self._given:
            return ""
        return (
            " (Spark tells the options of a table only if it was created without columns, and only to an "
            "INSERT that leaves out the columns that nsqd fills; else give them as in t WITH (…))"
        )

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str, default: str = "") -> str:
        return self._given.get(name.lower(), default).strip()

    def texts(self, name: str) -> list[str]:
        """The entries of a list that is separated by commas, without empty ones."""
        return [each for each in (part.strip() for part in self.text(name).split(",")) if each]

    def integer(self, name: str, default: int, least: int = 0) -> int:
        number = self.optional_integer(name, least)
        return default if number is None else number

    def optional_integer(self, name: str, least: int = 0) -> int | None:
        """The number, or None if the option is not given."""
        text = self.text(name)
        if not self.has(name):
            return None
        if not re.fullmatch(r"\d{1,18}", text) or int(text) < least:
            raise self.error(name, f"{text!r} is not a number of at least {least}")
        return int(text)

    def boolean(self, name: str, default: bool) -> bool:
        text = self.text(name).lower()
        if not self.has(name):
            return default
        if text not in _BOOLEANS:
            raise self.error(name, f"{text!r} is neither true nor false")
        return _BOOLEANS[text]

    def one_of(self, name: str, choices: tuple[str, ...]) -> str:
        """One of the choices, in any case; the first is the default."""
        text = self.text(name, choices[0])
        for choice in choices:
            if text.lower() == choice.lower():
                return choice
        raise self.error(name, f"{text!r} is none of {', '.join(choices)}")

    def milliseconds(self, name: str, default_ms: int, least_ms: int = 0) -> float:
        """Seconds, from an option that counts milliseconds."""
        return self.integer(name, default_ms, least_ms) / 1000

    def duration(self, name: str, default: float) -> float:
        """Seconds, from a text such as `15m`, `30 seconds` or `500ms`."""
        text = self.text(name)
        if not self.has(name):
            return default
        found = _DURATION.fullmatch(text.lower())
        unit = _SECONDS.get(found[2], _SECONDS.get(found[2].removesuffix("s"))) if found else None
        if found is None or unit is None:
            raise self.error(name, f"{text!r} is no time such as 500ms, 30s or 15m")
        return int(found[1]) * unit


def _in_case_of(documented: str, name: str) -> str:
    """A misspelt name in the case of the letters that it shares with the name that was meant."""
    if not name.islower():
        return name
    letters = list(name)
    matcher = difflib.SequenceMatcher(None, name, documented.lower(), autojunk=False)
    for start, there, size in matcher.get_matching_blocks():
        letters[start : start + size] = documented[there : there + size]
    return "".join(letters)


def check_options(given: Mapping[str, str], complete: bool = True) -> None:
    """Check the names of the options, and where the daemons are.

    Spark creates the data source before it says whether it wants a table, a stream or a sink. These checks
    hold for all three, so the user hears of a mistake at `load()` and not when the query starts. Without
    `complete`, a table may have noted where the daemons are.
    """
    options = OptionReader(given, ALL_NAMES)
    if complete or any(options.has(name) for name in EXCLUSIVE_NAMES[0]):
        parse_addresses(options)


@dataclass(frozen=True)
class Addresses:
    """Where the daemons are: exactly one of the three lists is filled.

    `nsqd_http` and `lookupd` hold URLs, `nsqd_tcp` holds host:port.
    """

    nsqd_http: tuple[str, ...] = ()
    nsqd_tcp: tuple[str, ...] = ()
    lookupd: tuple[str, ...] = ()
    poll_interval: float = 10.0
    access: Access = field(default_factory=Access)


def parse_addresses(options: OptionReader) -> Addresses:
    names = ("nsqd.http.addresses", "lookupd.http.addresses", "nsqd.tcp.addresses")
    given = [name for name in names if options.has(name)]
    if not given:
        raise options.error(names[0], f"missing: give one of {', '.join(names)}{options.hint()}")
    if len(given) > 1:
        raise options.error(
            given[1], f"'{options.written(given[0])}' is given too: one of them says where the nsqds are"
        )
    if not options.texts(given[0]):
        raise options.error(given[0], "empty")
    access = _parse_access(options)
    return Addresses(
        nsqd_http=tuple(_parse_url(options.written(names[0]), each) for each in options.texts(names[0])),
        nsqd_tcp=tuple(_parse_host_port(options.written(names[2]), each) for each in options.texts(names[2])),
        lookupd=tuple(_parse_url(options.written(names[1]), each) for each in options.texts(names[1])),
        poll_interval=options.milliseconds("lookupd.pollIntervalMs", 10_000, 1),
        access=access,
    )


def _parse_access(options: OptionReader) -> Access:
    access = Access(
        timeout=options.milliseconds("requestTimeoutMs", 10_000, 1),
        ca_file=options.text("tls.caFile"),
        cert_file=options.text("tls.certFile"),
        key_file=options.text("tls.keyFile"),
        verify=not options.boolean("tls.insecureSkipVerify", False),
        secret=options.text("auth.secret"),
    )
    for name, path in (("tls.caFile", access.ca_file), ("tls.certFile", access.cert_file)):
        if path:
            try:
                access.ssl_context()
            except OSError as error:
                raise options.error(name, f"{path!r} cannot be used: {error}") from None
    return access


def _parse_url(option: str, address: str) -> str:
    url = address if "://" in address else f"http://{address}"
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port or parts.path not in ("", "/"):
        raise OptionError(option, f"{address!r} is neither host:port nor an http URL with a port")
    return url.rstrip("/")


def _parse_host_port(option: str, address: str) -> str:
    if "://" in address:
        raise OptionError(option, f"{address!r} is not host:port")
    return _parse_url(option, address).removeprefix("http://")
