"""A wrong option or column of a sink gets an error of one line that names it."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from nsquark.spark.errors import OptionError
from nsquark.spark.sink.options import parse_sink_options

NSQD = {"nsqd.http.addresses": "127.0.0.1:4151"}
ONCE = {**NSQD, "topic": "t", "deliveryMode": "exactlyOnce"}


def schema(**columns: str) -> StructType:
    found = StructType()
    for name, kind in columns.items():
        found.add(name, kind)
    return found


def test_what_is_said_is_kept() -> None:
    options = parse_sink_options(
        {**ONCE, "TXNAPPID": "nightly", "txnVersion": "7", "bodyBytes": "1000"},
        schema(value="string", defer="integer"),
    )
    assert (options.topic, options.app, options.version, options.body_bytes) == ("t", "nightly", 7, 1000)
    assert options.exactly_once
    assert options.deferred


@pytest.mark.parametrize(
    ("options", "columns", "problem"),
    [
        ({}, {"value": "binary"}, "option 'nsqd.http.addresses': missing"),
        (NSQD, {"value": "binary"}, "option 'topic': missing, and there is no column 'topic' either"),
        ({**NSQD, "topic": "a b"}, {"value": "binary"}, "option 'topic': 'a b' cannot be"),
        ({**NSQD, "topik": "t"}, {"value": "binary"}, "option 'topik': unknown; did you mean 'topic'?"),
        ({**NSQD, "channel": "c", "topic": "t"}, {"value": "binary"}, "option 'channel': unknown"),
        (NSQD, {"topic": "string"}, "option 'schema': there is no column 'value'"),
        (NSQD, {"value": "integer", "topic": "string"}, "column 'value' is BINARY or STRING, not INT"),
        (NSQD, {"value": "binary", "topic": "binary"}, "column 'topic' is STRING, not BINARY"),
        (NSQD, {"value": "binary", "defer": "string"}, "column 'defer' is TINYINT or"),
        (NSQD, {"value": "binary", "key": "string"}, "column 'key': a sink takes value, topic, defer"),
        (
            {**NSQD, "topic": "t", "deliveryMode": "once"},
            {"value": "binary"},
            "option 'deliveryMode': 'once'",
        ),
        ({**NSQD, "topic": "t", "txnAppId": "a"}, {"value": "binary"}, "option 'txnAppId': only with"),
        ({**ONCE, "txnAppId": "a/b"}, {"value": "binary"}, "option 'txnAppId': 'a/b' is not"),
        ({**ONCE, "txnVersion": "1"}, {"value": "binary"}, "option 'txnVersion': needs 'txnAppId'"),
        ({**ONCE, "bodyBytes": "0"}, {"value": "binary"}, "option 'bodyBytes': '0' is not a number"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, str], columns: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as found:
        parse_sink_options(options, schema(**columns))
    assert problem in str(found.value)
    assert "\n" not in str(found.value)
