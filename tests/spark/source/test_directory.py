"""Finding nsqds: through nsqlookupds, over TLS, with a secret."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsquark.spark.errors import NoSuchTopic, Unreachable
from nsquark.spark.options import OptionReader, parse_addresses
from nsquark.spark.source.directory import Directory
from nsquark.spark.source.logs import find_logs
from nsquark.spark.source.options import parse_subscription
from tests.daemon import Nsqlookupd
from tests.security.certificates import Authority
from tests.spark.broker import Broker, ask, numbered


def directory(**options: str) -> Directory:
    given = OptionReader(options, tuple(options))
    return Directory(parse_addresses(given), parse_subscription(given))


def wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


@pytest.fixture
def lookupd() -> Iterator[Nsqlookupd]:
    with Nsqlookupd().start() as running:
        yield running


@pytest.fixture
def registered(tmp_path: Path, lookupd: Nsqlookupd) -> Iterator[Broker]:
    flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
    with Broker(tmp_path / "data", flag).start() as running:
        for topic in ("t1", "t2", "u"):
            running.publish(topic, numbered(3))
            wait(lambda topic=topic: _knows(lookupd, topic))  # type: ignore[misc]
        yield running


def _knows(lookupd: Nsqlookupd, topic: str) -> bool:
    status, answer = ask(lookupd.http_address, "GET", f"/lookup?topic={topic}")
    return status == 200 and b'"producers":[{' in answer


def test_nsqds_are_found_by_topic_and_by_pattern(lookupd: Nsqlookupd, registered: Broker) -> None:
    where = {"lookupd.http.addresses": lookupd.http_address}
    (log,) = find_logs(directory(**where, subscribe="t1"))
    assert (log.topic, log.node.name, log.next) == ("t1", f"127.0.0.1:{registered.tcp_port}", 3)
    assert [log.topic for log in find_logs(directory(**where, subscribePattern="t.*"))] == ["t1", "t2"]
    assert [log.topic for log in find_logs(directory(**where, subscribe="u,t*"))] == ["t1", "t2", "u"]
    with pytest.raises(NoSuchTopic, match=f"no topic 'x' at http://{lookupd.http_address}"):
        find_logs(directory(**where, subscribe="x"))


def test_a_lookupd_that_is_away_says_what_it_said_last(lookupd: Nsqlookupd, registered: Broker) -> None:
    with Nsqlookupd().start() as other:
        both = {"lookupd.http.addresses": f"{lookupd.http_address},{other.http_address}"}
        found = directory(**both, subscribe="t1")
        assert len(find_logs(found)) == 1
        lookupd.kill()
        assert len(find_logs(found)) == 1
    with pytest.raises(Unreachable, match=f"http://{lookupd.http_address} cannot be reached"):
        find_logs(directory(**both, subscribe="t1"))


def test_an_nsqd_that_requires_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("nsqd")
    flags = (f"--tls-cert={certificate}", f"--tls-key={key}", "--tls-required", "--https-address=127.0.0.1:0")
    with Broker(tmp_path / "data", *flags).start() as broker:
        where: dict[str, Any] = {"nsqd.http.addresses": broker.http_address, "subscribe": "t"}
        with pytest.raises(Unreachable, match="certificate"):
            find_logs(directory(**where))
        trusted = directory(**where, **{"tls.caFile": str(tmp_path / "ca.pem")})
        with pytest.raises(NoSuchTopic):
            find_logs(trusted)
        (node,) = trusted.nodes("t")
        assert node.url.startswith("https://")
        with pytest.raises(NoSuchTopic):
            find_logs(directory(**where, **{"tls.insecureSkipVerify": "true"}))
