"""What a sink is told: its options, and which columns it gets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from nsquark.names import is_valid_name

from ..columns import check_type
from ..errors import OptionError
from ..options import SINK, Addresses, Reader, parse_addresses

AT_LEAST_ONCE, EXACTLY_ONCE = "atLeastOnce", "exactlyOnce"
BODY_BYTES: Final = 240 << 10  # with its head, nsqd has it in one read: 1 MiB took it twice the time
WINDOW_BYTES: Final = 8 << 20
_APP = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
_COLUMNS: Final[dict[str, tuple[type[DataType], ...]]] = {
    "value": (BinaryType, StringType),
    "topic": (StringType,),
    "defer": _WHOLE,
}


@dataclass(frozen=True)
class SinkOptions:
    """Shipped to the executors as it is."""

    addresses: Addresses
    topic: str  # empty: the column says
    deferred: bool  # there is a column `defer`
    exactly_once: bool
    app: str  # empty: the query's id
    version: int | None  # of a batch write: its number among those of the application
    body_bytes: int
    window_bytes: int
    retries: int
    retry_interval: float


def parse_sink_options(given: Mapping[str, str], schema: StructType) -> SinkOptions:
    """Raises OptionError, which names the option or the column."""
    options = Reader(given, SINK)
    addresses = parse_addresses(options)
    columns = _check_columns(schema)
    topic = options.text("topic")
    if topic and not is_valid_name(topic):
        raise OptionError("topic", f"{topic!r} cannot be the name of a topic")
    if not topic and "topic" not in columns:
        raise OptionError("topic", "missing, and there is no column 'topic' either")
    exactly_once = options.one_of("deliveryMode", (AT_LEAST_ONCE, EXACTLY_ONCE)) == EXACTLY_ONCE
    app = options.text("txnAppId")
    for name in ("txnAppId", "txnVersion"):
        if options.has(name) and not exactly_once:
            raise OptionError(name, f"only with deliveryMode={EXACTLY_ONCE}")
    if options.has("txnAppId") and not _APP.fullmatch(app):
        raise OptionError("txnAppId", f"{app!r} is not up to 128 letters, digits, '.', '_', ':' and '-'")
    if options.has("txnVersion") and not app:
        raise OptionError("txnVersion", "needs 'txnAppId', which says whose version it is")
    return SinkOptions(
        addresses,
        topic,
        "defer" in columns,
        exactly_once,
        app,
        options.number("txnVersion", None),
        options.whole("bodyBytes", BODY_BYTES, 1),
        options.whole("windowBytes", WINDOW_BYTES, 1),
        options.whole("publish.numRetries", 10),
        options.whole("publish.retryIntervalMs", 500) / 1000,
    )


def _check_columns(schema: StructType) -> set[str]:
    for field in schema.fields:
        types = _COLUMNS.get(field.name)
        if types is None:
            raise OptionError("schema", f"column {field.name!r}: a sink takes {', '.join(_COLUMNS)}")
        check_type(field, types)
    if "value" not in schema.names:
        raise OptionError("schema", "there is no column 'value', which holds the messages")
    return set(schema.names)
