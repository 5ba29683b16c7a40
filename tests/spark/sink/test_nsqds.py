"""The nsqds of a sink, by each kind of address."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsquark.spark.errors import RequestRefused, Unreachable
from nsquark.spark.options import Addresses
from nsquark.spark.sink.nsqds import find_http_urls, find_tcp_addresses
from tests.daemon import Nsqlookupd
from tests.spark.broker import Broker

NOBODY = "127.0.0.1:1"


def test_nsqds_are_found_by_what_is_given(broker: Broker, tmp_path: Path) -> None:
    here, nowhere = f"http://{broker.http_address}", f"http://{NOBODY}"
    assert find_http_urls(Addresses(nsqd_http=(nowhere, here))) == (sorted([here, nowhere]), [])
    urls, problems = find_http_urls(Addresses(nsqd_tcp=(NOBODY, broker.tcp_address)))
    assert urls == [here]
    assert len(problems) == 1
    assert NOBODY in problems[0]
    assert find_tcp_addresses(Addresses(nsqd_tcp=("a:1", "b:2"))) == ["a:1", "b:2"]
    assert find_tcp_addresses(Addresses(nsqd_http=(f"http://{broker.http_address}", f"http://{NOBODY}"))) == [
        broker.tcp_address
    ]
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        find_tcp_addresses(Addresses(nsqd_http=(f"http://{NOBODY}",)))
    with Nsqlookupd().start() as lookupd:
        addresses = Addresses(lookupd=(f"http://{lookupd.http_address}",))
        with pytest.raises(Unreachable, match="no nsqd is known"):
            find_tcp_addresses(addresses)
        flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
        with Broker(tmp_path / "registered", flag).start() as registered:
            registered.wait_for_line(r"LOOKUPD\(.*\): peer is")
            assert find_tcp_addresses(addresses) == [registered.tcp_address]
            assert find_http_urls(addresses) == ([f"http://{registered.http_address}"], [])


def test_a_daemon_that_is_no_lookupd_is_named(broker: Broker) -> None:
    url = f"http://{broker.http_address}"
    with pytest.raises(RequestRefused, match=f"{url}/nodes: 404"):
        find_tcp_addresses(Addresses(lookupd=(url,)))
