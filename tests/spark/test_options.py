"""Names and types of options, and the addresses that every source and sink needs."""

from __future__ import annotations

import pytest

from nsquark.spark.errors import OptionError
from nsquark.spark.options import OptionReader, check_options, parse_addresses

LEAST = {"nsqd.http.addresses": "127.0.0.1:4151", "subscribe": "events"}
NAMES = ("number", "switch", "choice", "wait")


def reader(**options: str) -> OptionReader:
    return OptionReader(options, NAMES)


def test_values_are_read_by_their_type_and_have_defaults() -> None:
    given = reader(NUMBER=" 5 ", switch="True", choice="B", wait="30 seconds")
    assert given.integer("number", 1) == given.optional_integer("number") == 5
    assert given.milliseconds("number", 1) == 0.005
    assert given.boolean("switch", False)
    assert given.one_of("choice", ("a", "b")) == "b"
    assert given.duration("wait", 1.0) == 30
    assert reader().integer("number", 1) == 1
    assert reader().optional_integer("number") is None
    assert reader().one_of("choice", ("a", "b")) == "a"


def test_an_unknown_name_is_refused_with_a_near_one() -> None:
    with pytest.raises(OptionError, match="option 'nummber': unknown; did you mean 'number'"):
        reader(nummber="5")
    with pytest.raises(OptionError, match="option 'path': nsq has no paths"):
        reader(path="x")


def test_addresses_become_urls() -> None:
    def parse(name: str, value: str) -> tuple[str, ...]:
        found = parse_addresses(OptionReader({name: value}, (name,)))
        return found.nsqd_http + found.nsqd_tcp + found.lookupd

    assert parse("nsqd.http.addresses", "a:1, https://b:2/") == ("http://a:1", "https://b:2")
    assert parse("nsqd.tcp.addresses", "[::1]:4150") == ("[::1]:4150",)
    assert parse("lookupd.http.addresses", "a:4161") == ("http://a:4161",)
    with pytest.raises(OptionError, match=r"option 'nsqd.tcp.addresses': 'http://a:1' is not host:port"):
        parse("nsqd.tcp.addresses", "http://a:1")


def test_names_and_addresses_are_checked_before_the_rest() -> None:
    check_options(LEAST)
    with pytest.raises(OptionError, match=r"option 'nsqd.http.addresses': missing"):
        check_options({})
    with pytest.raises(OptionError, match="option 'foo': unknown"):
        check_options({**LEAST, "foo": "bar"})
