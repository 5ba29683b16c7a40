"""The flags that subcommands share, and the options of the `nsq` data source that they stand for.

Each group of flags is a dataclass. The options of a subcommand inherit from the groups that it needs. All
checks that need no Spark are done before Spark is imported.
"""

# ruff: noqa: RUF009 - `flag` makes a dataclasses.field, so that no default is shared

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from nsquark.cli.flags import BOOL, INT, LOG_LEVEL, STRING, STRINGS, StartError, flag
from nsquark.names import is_valid_name

from ..shipping.files import archive_kind
from .kinds import AVAILABLE_NOW, PAIRS, TIME, TRIGGER

EXACTLY_ONCE, AT_LEAST_ONCE, AUTO = "exactly-once", "at-least-once", "auto"

# The flag for each option of the data source.
FLAG_OF_OPTION: Final = {
    "nsqd.http.addresses": "--nsqd-http-address",
    "nsqd.tcp.addresses": "--nsqd-tcp-address",
    "lookupd.http.addresses": "--lookupd-http-address",
    "subscribe": "--topic",
    "subscribePattern": "--topic-pattern",
    "channel": "--channel",
    "startingOffsets": "--starting-offsets",
    "startingTimestamp": "--starting-timestamp",
    "endingOffsets": "--ending-offsets",
    "endingTimestamp": "--ending-timestamp",
    "maxOffsetsPerTrigger": "--max-offsets-per-trigger",
    "maxBytesPerTrigger": "--max-bytes-per-trigger",
    "minPartitions": "--min-partitions",
    "failOnDataLoss": "--fail-on-data-loss",
    "stagingDirectory": "--staging-directory",
    "tls.caFile": "--tls-root-ca-file",
    "tls.certFile": "--tls-cert",
    "tls.keyFile": "--tls-key",
    "tls.insecureSkipVerify": "--tls-insecure-skip-verify",
    "auth.secret": "--auth-secret",
    "topic": "--publish",
    "deliveryMode": "--publish-delivery",
}


def refuse(flag_name: str, problem: str) -> StartError:
    """The error for a flag, to be raised before Spark starts."""
    return StartError(f"--{flag_name}: {problem}")


def with_flag_names(text: str) -> str:
    """The text of an error of the data source, with flags in place of options."""

    def name(found: re.Match[str]) -> str:
        return FLAG_OF_OPTION.get(found[1], f"--source-opt {found[1]}")

    return re.sub(r"option '([\w.]+)'", name, text)


@dataclass(repr=False, eq=False)
class Logging:
    """The flags of every subcommand."""

    version: bool = flag(BOOL, False, "print version string", key=None)
    config: str = flag(STRING, "", "path to config file", key=None)
    log_level: str = flag(LOG_LEVEL, "info", "set log verbosity: debug, info, warn, error, or fatal")
    log_prefix: str = flag(STRING, "[nsq_to_spark] ", "log message prefix")


@dataclass(repr=False, eq=False)
class Common(Logging):
    """The flags of every subcommand that runs on Spark."""

    master: str = flag(STRING, "local[*]", "Spark master: local[*], spark://host:port, yarn, k8s://…")
    conf: dict[str, str] = flag(PAIRS, dict, "a setting of Spark (may be given multiple times)")
    ship: str = flag(STRING, "", "what executors run: a file that `nsq_to_spark package` has written")
    spark_log_level: str = flag(STRING, "fatal", "verbosity of Spark's own log: info, warn, error, or fatal")
    nsqd_http_address: list[str] = flag(STRINGS, list, "nsqd HTTP address (may be given multiple times)")
    nsqd_tcp_address: list[str] = flag(STRINGS, list, "nsqd TCP address (may be given multiple times)")
    lookupd_http_address: list[str] = flag(
        STRINGS, list, "lookupd HTTP address (may be given multiple times)"
    )
    tls_root_ca_file: str = flag(STRING, "", "path to the CA file that nsqd's certificate is checked against")
    tls_cert: str = flag(STRING, "", "path to a client certificate")
    tls_key: str = flag(STRING, "", "path to its key")
    tls_insecure_skip_verify: bool = flag(BOOL, False, "do not check nsqd's certificate")
    auth_secret: str = flag(STRING, "", "secret for nsqds with --http-auth; better in the config file")
    source_opt: dict[str, str] = flag(
        PAIRS, dict, "any other option of the data source (may be given multiple times)"
    )
    progress_json: str = flag(STRING, "", "write progress as JSON lines to this file, or - for stdout")


def check_shipping(options: Common) -> None:
    if not options.ship:
        return
    archive_kind("ship", options.ship)
    if options.master.startswith("local") and not options.master.startswith("local-cluster"):
        raise refuse("ship", f"--master={options.master} has no executors on other machines")
    if not Path(options.ship).is_file():
        raise refuse("ship", f"{options.ship!r} is no file; `nsq_to_spark package` writes one")
    options.ship = str(local_path("ship", options.ship))


def connection_options(options: Common) -> dict[str, str]:
    """The options of the data source for addresses, TLS and secret."""
    given = {
        "nsqd.http.addresses": ",".join(options.nsqd_http_address),
        "nsqd.tcp.addresses": ",".join(options.nsqd_tcp_address),
        "lookupd.http.addresses": ",".join(options.lookupd_http_address),
        **access_options(options),
    }
    return {name: value for name, value in given.items() if value}


def access_options(options: Common) -> dict[str, str]:
    return {
        "tls.caFile": options.tls_root_ca_file,
        "tls.certFile": options.tls_cert,
        "tls.keyFile": options.tls_key,
        "tls.insecureSkipVerify": "true" if options.tls_insecure_skip_verify else "",
        "auth.secret": options.auth_secret,
    }


@dataclass(repr=False, eq=False)
class Reading(Common):
    """The flags of subcommands that read topics."""

    topic: list[str] = flag(STRINGS, list, "NSQ topic (may be given multiple times)")
    topic_pattern: str = flag(STRING, "", "or a regular expression for topics' whole names")
    starting_offsets: str = flag(STRING, "", "where to begin: earliest, latest, or JSON (default earliest)")
    starting_timestamp: int = flag(TIME, 0, "or a time: ms since the epoch, or ISO 8601")
    min_partitions: int = flag(INT, 0, "read in at least so many tasks at once")
    fail_on_data_loss: bool = flag(BOOL, True, "fail if messages are gone that were not read")


def reading_options(options: Reading) -> dict[str, str]:
    given = connection_options(options)
    if options.topic:
        given["subscribe"] = ",".join(options.topic)
    if options.topic_pattern:
        given["subscribePattern"] = options.topic_pattern
    if options.starting_timestamp:
        given["startingTimestamp"] = str(options.starting_timestamp)
    if options.starting_offsets or not options.starting_timestamp:
        given["startingOffsets"] = options.starting_offsets or "earliest"
    if options.min_partitions:
        given["minPartitions"] = str(options.min_partitions)
    if not options.fail_on_data_loss:
        given["failOnDataLoss"] = "false"
    return {**given, **options.source_opt}


@dataclass(repr=False, eq=False)
class Streaming(Reading):
    """The flags of subcommands that run a streaming query."""

    channel: str = flag(STRING, "", "NSQ channel; its name is the subcommand's unless given")
    checkpoint: str = flag(STRING, "", "where the query keeps its place (default OUTPUT.checkpoint)")
    trigger: float | str = flag(
        TRIGGER, 10.0, "time between batches; once (or available-now): all there is, then end"
    )
    max_offsets_per_trigger: int = flag(INT, 0, "at most so many messages in a batch")
    max_bytes_per_trigger: int = flag(INT, 0, "or at most about so many bytes")
    staging_directory: str = flag(STRING, "", "for nsqds without a log (Go's): where messages are kept")

    @property
    def available_now(self) -> bool:
        return self.trigger == AVAILABLE_NOW


def stream_options(options: Streaming) -> dict[str, str]:
    given = reading_options(options)
    given["channel"] = options.channel
    if options.max_offsets_per_trigger:
        given["maxOffsetsPerTrigger"] = str(options.max_offsets_per_trigger)
    if options.max_bytes_per_trigger:
        given["maxBytesPerTrigger"] = str(options.max_bytes_per_trigger)
    if options.staging_directory:
        given["stagingDirectory"] = options.staging_directory
    return given


@dataclass(repr=False, eq=False)
class Publishing(Common):
    """The flags of subcommands that publish."""

    publish: str = flag(STRING, "", "the topic to publish to")
    publish_nsqd_http_address: list[str] = flag(
        STRINGS, list, "nsqd HTTP address to publish to, if not those read from (may be given multiple times)"
    )
    publish_nsqd_tcp_address: list[str] = flag(STRINGS, list, "or its TCP address")
    publish_lookupd_http_address: list[str] = flag(STRINGS, list, "or lookupds that know it")
    publish_delivery: str = flag(
        STRING, AUTO, "exactly-once (nsqds of nsquark), at-least-once, or auto: the best there is"
    )


def publishes_elsewhere(options: Publishing) -> bool:
    """Whether the command publishes to other nsqds than those that it reads from."""
    return bool(
        options.publish_nsqd_http_address
        or options.publish_nsqd_tcp_address
        or options.publish_lookupd_http_address
    )


def sink_options(options: Publishing) -> dict[str, str]:
    """The options of the sink, without `deliveryMode`: `delivery` asks the nsqds before it chooses one."""
    given = {
        "nsqd.http.addresses": ",".join(options.publish_nsqd_http_address),
        "nsqd.tcp.addresses": ",".join(options.publish_nsqd_tcp_address),
        "lookupd.http.addresses": ",".join(options.publish_lookupd_http_address),
    }
    if publishes_elsewhere(options):
        given |= access_options(options)
    else:
        given = connection_options(options)
    return {name: value for name, value in {**given, "topic": options.publish}.items() if value}


def check_publishing(options: Publishing) -> None:
    if options.publish and not is_valid_name(options.publish):
        raise refuse("publish", f"{options.publish!r} cannot be the name of a topic")
    if options.publish_delivery not in (AUTO, EXACTLY_ONCE, AT_LEAST_ONCE):
        raise refuse(
            "publish-delivery",
            f"{options.publish_delivery!r} is none of {AUTO}, {EXACTLY_ONCE}, {AT_LEAST_ONCE}",
        )


def check_reading(options: Reading) -> None:
    """Check the addresses and topics here, since the data source would name options and not flags."""
    check_addresses(options)
    if not options.topic and not options.topic_pattern:
        raise refuse("topic", "missing: name a topic, or several with --topic-pattern")
    if options.topic and options.topic_pattern:
        raise refuse("topic-pattern", f"{options.topic_pattern!r}: --topic is given too")
    for topic in options.topic:
        if not is_valid_name(topic):
            raise refuse("topic", f"{topic!r} cannot be the name of a topic")
    if options.starting_offsets and options.starting_timestamp:
        raise refuse("starting-timestamp", "--starting-offsets is given too")


def check_addresses(options: Common) -> None:
    ways: Mapping[str, list[str]] = {
        "nsqd-http-address": options.nsqd_http_address,
        "nsqd-tcp-address": options.nsqd_tcp_address,
        "lookupd-http-address": options.lookupd_http_address,
    }
    given = [name for name, addresses in ways.items() if addresses]
    if not given:
        raise refuse("lookupd-http-address", "missing: say where the nsqds are, or give --nsqd-http-address")
    if len(given) > 1:
        raise refuse(given[1], f"--{given[0]} is given too: one of them says where the nsqds are")


def local_path(flag_name: str, text: str, hint: str = "") -> Path:
    """The absolute path on this machine's file system. Raises StartError for a path on any other."""
    parts = urlsplit(text)
    if parts.scheme not in ("", "file") or parts.netloc:
        raise refuse(flag_name, f"{text!r} is not a path of a local file system{hint}")
    return Path(parts.path if parts.scheme else text).absolute()
