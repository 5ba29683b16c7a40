"""One nsqd's staged publishing: puts, publishing once, and an nsqd that cannot be asked for a while."""

from __future__ import annotations

from contextlib import closing

import pytest

from nsquark.spark.errors import OptionError, RequestRefused, Unreachable
from nsquark.spark.http import Access
from nsquark.spark.sink.staging_client import (
    Home,
    StagedPart,
    StagedPartMissing,
    StagingClient,
    TaskAttempt,
    retry_unreachable,
)
from tests.daemon import Nsqlookupd
from tests.spark.broker import Broker, mpub_body


def client(broker: Broker | Nsqlookupd) -> StagingClient:
    return StagingClient(f"http://{broker.http_address}", Access())


def test_what_an_attempt_has_put_is_published_once(broker: Broker) -> None:
    nsqd = client(broker)
    attempt = TaskAttempt(nsqd, nsqd.state("app"), "app", 0, 0)
    assert not attempt.batch_is_known
    for body in (b"a", b"b"):
        attempt.put("t", 0, mpub_body([body]), 1)
    part = attempt.finish()
    assert (part.messages, part.url) == (2, nsqd.url)
    assert not nsqd.publish("app", 0, [part], "note")["known"]
    assert nsqd.publish("app", 0, [part])["known"]
    assert broker.log("t")["next"] == 2
    assert nsqd.state("app").last_batch == 0
    assert TaskAttempt(nsqd, nsqd.state("app"), "app", 0, 1).batch_is_known


def test_puts_without_an_answer_are_put_again_at_an_nsqd_that_was_killed(broker: Broker) -> None:
    nsqd = StagingClient(f"http://{broker.http_address}", Access(), retries=3, retry_interval=0.05)
    with closing(TaskAttempt(nsqd, nsqd.state("app"), "app", 0, 0, window_bytes=1 << 20)) as attempt:
        for number in range(6):
            if number == 3:
                broker.kill()
                broker.restart()
            attempt.put("t", 0, mpub_body([b"%d" % number]), 1)
        part = attempt.finish()
    assert part.messages == 6
    assert nsqd.publish("app", 0, [part])["messages"] == 6
    assert broker.log("t")["next"] == 6


def test_puts_beyond_the_window_wait_for_answers(broker: Broker) -> None:
    nsqd = client(broker)
    body = mpub_body([b"x" * 1000])
    late = TaskAttempt(nsqd, nsqd.state("app"), "app", 0, 0, window_bytes=len(body))
    with closing(late):
        late.put("t", 0, body, 1)
        published = TaskAttempt(nsqd, nsqd.state("app"), "app", 0, 1)
        published.put("t", 0, body, 1)
        nsqd.publish("app", 0, [published.finish()])
        late.put("t", 0, body, 1)
        late.put("t", 0, body, 1)  # the answer to the second put has come
        assert late.batch_is_known


def test_a_put_that_is_refused_raises_at_the_end(broker: Broker) -> None:
    nsqd = client(broker)
    with closing(TaskAttempt(nsqd, nsqd.state("app"), "app", 0, 0, window_bytes=1 << 20)) as attempt:
        attempt.put("no topic", 0, mpub_body([b"x"]), 1)
        with pytest.raises(RequestRefused, match="INVALID_TOPIC"):
            attempt.finish()


def test_the_home_is_remembered(broker: Broker) -> None:
    nsqd = client(broker)
    home = Home(nsqd.state("app").node, nsqd.url)
    nsqd.prepare("app", 0, home)
    assert nsqd.state("app").home == home


def test_a_part_that_is_gone_is_told(broker: Broker) -> None:
    with pytest.raises(StagedPartMissing, match="does not have all of batch 3 of 'app' any more"):
        client(broker).publish("app", 3, [StagedPart("app", 3, 0, "attempt", 5)])


def test_a_daemon_without_staged_publishing_is_named() -> None:
    with Nsqlookupd().start() as lookupd, pytest.raises(OptionError, match="has no staged publishing"):
        client(lookupd).state("app")


def test_a_daemon_that_is_away_is_asked_again() -> None:
    calls = []

    def work() -> str:
        calls.append(len(calls))
        if len(calls) < 3:
            raise Unreachable("away")
        return "done"

    assert retry_unreachable(2, 0.0, work) == "done"
    calls.clear()
    with pytest.raises(Unreachable):
        retry_unreachable(1, 0.0, work)
