"""Every option of a source: its default, its values, and the one line that a wrong value gets."""

from __future__ import annotations

import pytest

from nsquark.spark.errors import OptionError
from nsquark.spark.source.bounds import Bound
from nsquark.spark.source.options import parse_batch_options, parse_stream_options

LEAST = {"nsqd.http.addresses": "127.0.0.1:4151", "subscribe": "events"}
STREAM = {**LEAST, "channel": "archive"}


def test_the_least_that_must_be_said() -> None:
    options = parse_stream_options(STREAM)
    assert options.addresses.nsqd_http == ("http://127.0.0.1:4151",)
    assert options.subscription.topics == ("events",)
    assert options.channel == "archive"
    assert options.starting == Bound("latest")
    assert (options.max_offsets, options.max_bytes, options.min_offsets) == (None, None, None)
    assert (options.eager, options.mode, options.fetch.fail_on_data_loss) == (True, "auto", True)
    assert options.max_delay == 900
    batch = parse_batch_options(LEAST)
    assert (batch.starting, batch.ending) == (Bound("earliest"), Bound("latest"))


def test_names_are_taken_in_any_case() -> None:
    options = parse_stream_options({**STREAM, "STARTINGoffsets": "Earliest", "failondataloss": "FALSE"})
    assert options.starting.word == "earliest"
    assert not options.fetch.fail_on_data_loss


def test_a_subscription_by_name_list_or_pattern() -> None:
    def matches(**changes: str) -> list[str]:
        given = {name: value for name, value in STREAM.items() if name != "subscribe"}
        subscription = parse_stream_options({**given, **changes}).subscription
        return [name for name in ("a", "b", "ab", "a.b", "c") if subscription.matches(name)]

    assert matches(subscribe="a") == ["a"]
    assert matches(topic="a") == ["a"]
    assert matches(subscribe=" a, b ,a") == ["a", "b"]
    assert matches(subscribe="a*") == ["a", "ab", "a.b"]
    assert matches(subscribe="c,a?b") == ["a.b", "c"]
    assert matches(subscribePattern="a.?") == ["a", "ab"]


def test_positions_as_the_kafka_connector_writes_them_and_as_spark_logs_them() -> None:
    def positions(text: str) -> object:
        return parse_stream_options({**STREAM, "startingOffsets": text}).starting.positions

    assert positions('{"events": {"h:4150": 23, "abc": -2}}') == {"events": {"h:4150": 23, "abc": -2}}
    logged = '{"events": {"abc": {"epoch": "e", "nsqd": "h:4150", "offset": 5}}}'
    assert positions(logged) == {"events": {"abc": 5}}


def test_a_topic_may_begin_at_a_word() -> None:
    given = {**STREAM, "startingOffsets": '{"events": "earliest", "orders": {"h:4150": 5}}'}
    bound = parse_stream_options(given).starting
    assert [bound.given_for("events", "abc", "h:4150"), bound.given_for("orders", "abc", "h:4150")] == [-2, 5]
    assert bound.given_for("orders", "abc", "other:4150") is None
    assert bound.named_nsqds() == {"events": [], "orders": ["h:4150"]}


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1767225600000", 1767225600000),
        ("2026-01-01", 1767225600000),
        ("2026-01-01T00:00:00Z", 1767225600000),
        ("2026-01-01 01:00:00.250+01:00", 1767225600250),
        ("1969-12-31T00:00:00Z", 0),
        ("9999-12-31T00:00:00Z", 9223372036853),  # later than nsqd can count
    ],
)
def test_a_time_is_milliseconds_or_iso_8601(text: str, milliseconds: int) -> None:
    assert parse_batch_options({**LEAST, "startingTimestamp": text}).starting.time_ms == milliseconds
    assert parse_batch_options({**LEAST, "endingTimestamp": text}).ending.time_ms == milliseconds


def test_a_time_for_each_topic_and_nsqd() -> None:
    times = '{"events": "2026-01-01T00:00:00Z", "orders": {"h:4150": 5, "abc": "1970-01-01T00:00:00.007Z"}}'
    bound = parse_stream_options({**STREAM, "startingTimestamp": times}).starting
    assert bound.time_for("events", "abc", "h:4150") == 1767225600000
    assert bound.time_for("orders", "def", "h:4150") == 5
    assert bound.time_for("orders", "abc", "h:4150") == 7
    assert bound.time_for("orders", "def", "other:4150") is None
    assert not bound.is_word


def test_a_topic_is_read_at_the_nsqds_that_are_assigned() -> None:
    given = {name: value for name, value in STREAM.items() if name != "subscribe"}
    assigned = '{"events": ["h:4150", "i:4150"], "orders": ["h:4150"]}'
    subscription = parse_stream_options({**given, "assign": assigned}).subscription
    assert subscription.topics == ("events", "orders")
    assert subscription.includes("events", "i:4150")
    assert not subscription.includes("orders", "i:4150")


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("500ms", 0.5), ("30 seconds", 30), ("1h", 3600), ("2 min", 120)]
)
def test_delays(text: str, seconds: float) -> None:
    assert parse_stream_options({**STREAM, "maxTriggerDelay": text}).max_delay == seconds


WRONG = [
    ({"nsqd.http.addresses": None}, "nsqd.http.addresses", "missing"),
    ({"nsqd.http.addresses": ""}, "nsqd.http.addresses", "empty"),
    ({"nsqd.http.addresses": "somewhere"}, "nsqd.http.addresses", "'somewhere' is neither host:port"),
    ({"nsqd.http.addresses": "h:4151/x"}, "nsqd.http.addresses", "'h:4151/x' is neither"),
    ({"nsqd.http.addresses": "h:99999"}, "nsqd.http.addresses", "'h:99999' is neither"),
    ({"lookupd.http.addresses": "h:4161"}, "lookupd.http.addresses", "'nsqd.http.addresses' is given too"),
    ({"subscribe": None}, "subscribe", "missing"),
    ({"subscribe": " , "}, "subscribe", "empty"),
    ({"subscribe": "no spaces"}, "subscribe", "'no spaces' cannot be the name of a topic"),
    ({"topic": "t"}, "topic", "'subscribe' is given too"),
    ({"subscribe": None, "subscribePattern": "("}, "subscribePattern", "'(' is no regular expression"),
    ({"channel": None}, "channel", "missing"),
    ({"channel": "a b"}, "channel", "'a b' cannot be the name of a channel"),
    ({"channel": "c#ephemeral"}, "channel", "'c#ephemeral' is ephemeral"),
    ({"startingOffsets": "yesterday"}, "startingOffsets", "'yesterday' is neither earliest nor latest"),
    ({"startingOffsets": "{"}, "startingOffsets", "no JSON such as"),
    ({"startingOffsets": '{"events": 5}'}, "startingOffsets", "'events' has no nsqds"),
    ({"startingOffsets": '{"events": {"h": -3}}'}, "startingOffsets", "-3 is no offset"),
    ({"startingOffsets": '{"events": {"h": true}}'}, "startingOffsets", "True is no offset"),
    ({"startingTimestamp": "now"}, "startingTimestamp", "'now' is neither milliseconds since 1970"),
    ({"startingTimestamp": '{"events": "now"}'}, "startingTimestamp", "'now' is no time of 'events'"),
    (
        {"startingTimestamp": '{"events": {"h:1": true}}'},
        "startingTimestamp",
        "True is no time of 'events' at",
    ),
    ({"startingTimestamp": "{"}, "startingTimestamp", "no JSON such as"),
    ({"startingOffsets": '{"events": "noon"}'}, "startingOffsets", "'noon' is no offset of 'events'"),
    ({"assign": '{"events": ["h:1"]}'}, "assign", "'subscribe' is given too"),
    ({"subscribe": None, "assign": "events"}, "assign", "no JSON such as"),
    ({"subscribe": None, "assign": "[]"}, "assign", "no JSON such as"),
    ({"subscribe": None, "assign": '{"events": "h:1"}'}, "assign", "'events' has no nsqds"),
    ({"subscribe": None, "assign": '{"a b": ["h:1"]}'}, "assign", "'a b' cannot be the name of a topic"),
    ({"columns": "value, key"}, "columns", "no column 'key': there are value, topic"),
    ({"columns": "offset INT"}, "columns", "column 'offset' is BIGINT, not INT"),
    ({"columns": " "}, "columns", "empty"),
    ({"startingOffsets": "latest", "startingTimestamp": "5"}, "startingTimestamp", "given too"),
    ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger", "'0' is not a number of at least 1"),
    ({"maxOffsetsPerTrigger": "-1"}, "maxOffsetsPerTrigger", "'-1' is not a number"),
    ({"maxOffsetsPerTrigger": "1", "maxBytesPerTrigger": "1"}, "maxBytesPerTrigger", "given too"),
    ({"maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "2"}, "minOffsetsPerTrigger", "2 is more than"),
    ({"maxTriggerDelay": "soon"}, "maxTriggerDelay", "'soon' is no time"),
    ({"minPartitions": "0"}, "minPartitions", "'0' is not a number"),
    ({"failOnDataLoss": "maybe"}, "failOnDataLoss", "'maybe' is neither true nor false"),
    ({"ackMode": "late"}, "ackMode", "'late' is none of eager, engine"),
    ({"mode": "magic"}, "mode", "'magic' is none of auto, log, consumer"),
    ({"tls.caFile": "/no/such/file"}, "tls.caFile", "'/no/such/file' cannot be used"),
    ({"maxOffsetPerTrigger": "5"}, "maxOffsetPerTrigger", "did you mean 'maxOffsetsPerTrigger'?"),
    ({"maxoffsetpertrigger": "5"}, "maxOffsetPerTrigger", "did you mean 'maxOffsetsPerTrigger'?"),
    ({"MINPARTITIONS": "0"}, "MINPARTITIONS", "'0' is not a number"),
    ({"minpartitions": "0"}, "minPartitions", "'0' is not a number"),
    ({"path": "x"}, "path", "no paths"),
]


@pytest.mark.parametrize(("changes", "option", "problem"), WRONG)
def test_a_wrong_option_is_named_in_one_line(
    changes: dict[str, str | None], option: str, problem: str
) -> None:
    given = {name: value for name, value in {**STREAM, **changes}.items() if value is not None}
    with pytest.raises(OptionError) as caught:
        parse_stream_options(given)
    assert str(caught.value).startswith(f"option '{option}': ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
        ({"channel": "c"}, "channel"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger"),
    ],
)
def test_what_a_batch_cannot_do(changes: dict[str, str], option: str) -> None:
    with pytest.raises(OptionError, match=f"option '{option}'"):
        parse_batch_options({**LEAST, **changes})


def test_the_secret_is_in_no_text() -> None:
    options = parse_stream_options({**STREAM, "auth.secret": "opensesame"})
    assert options.addresses.access.secret == "opensesame"
    assert "opensesame" not in repr(options)
