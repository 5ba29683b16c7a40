"""The options of a sink."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import StructType

from nsquark.names import is_valid_name

from ..columns import check_sink_schema
from ..options import SINK_NAMES, Addresses, OptionReader, parse_addresses

AT_LEAST_ONCE, EXACTLY_ONCE = "atLeastOnce", "exactlyOnce"
BODY_BYTES: Final = 240 << 10  # so that nsqd gets the body and its command line in one read of 256 KiB
WINDOW_BYTES: Final = 8 << 20
_APP_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(frozen=True)
class SinkOptions:
    """Pickled and shipped to the executors."""

    addresses: Addresses
    topic: str  # empty: the column `topic` tells
    deferred: bool  # the schema has a column `defer`
    exactly_once: bool
    app: str  # empty: the id of the query
    version: int | None  # of a batch write: its number among the writes of the application
    body_bytes: int
    window_bytes: int
    retries: int
    retry_interval: float
    default_topic: str = ""  # of the rows whose column `topic` is null; empty: there may be no such rows


def parse_sink_options(given: Mapping[str, str], schema: StructType, table_topic: str = "") -> SinkOptions:
    """Raises OptionError, which names the option or the column.

    `table_topic` is the topic that the table reads, if rows are inserted into a table.
    """
    options = OptionReader(given, SINK_NAMES)
    addresses = parse_addresses(options)
    check_sink_schema(schema)
    topic = options.text("topic")
    if topic and not is_valid_name(topic):
        raise options.error("topic", f"{topic!r} cannot be the name of a topic")
    if not topic and "topic" not in schema.names:
        topic = table_topic
    if not topic and "topic" not in schema.names:
        raise options.error("topic", "missing, and there is no column 'topic' either")
    exactly_once = options.one_of("deliveryMode", (AT_LEAST_ONCE, EXACTLY_ONCE)) == EXACTLY_ONCE
    app = options.text("txnAppId")
    for name in ("txnAppId", "txnVersion"):
        if options.has(name) and not exactly_once:
            raise options.error(name, f"only with deliveryMode={EXACTLY_ONCE}")
    if options.has("txnAppId") and not _APP_NAME.fullmatch(app):
        raise options.error("txnAppId", f"{app!r} is not up to 128 letters, digits, '.', '_', ':' and '-'")
    if options.has("txnVersion") and not app:
        raise options.error("txnVersion", "needs 'txnAppId', which says whose version it is")
    return SinkOptions(
        addresses=addresses,
        topic=topic,
        default_topic=table_topic,
        deferred="defer" in schema.names,
        exactly_once=exactly_once,
        app=app,
        version=options.optional_integer("txnVersion"),
        body_bytes=options.integer("bodyBytes", BODY_BYTES, 1),
        window_bytes=options.integer("windowBytes", WINDOW_BYTES, 1),
        retries=options.integer("publish.numRetries", 10),
        retry_interval=options.milliseconds("publish.retryIntervalMs", 500),
    )
