"""Publishing at least once over blocking sockets: windows, other nsqds, restarts, and refusals."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from nsquark.spark.errors import Unreachable
from nsquark.spark.options import Addresses
from nsquark.spark.sink.options import SinkOptions
from nsquark.spark.sink.publish_connection import PublishRefused
from nsquark.spark.sink.publisher import Publisher
from tests.daemon import mpub
from tests.spark.broker import Broker

NOBODY = "127.0.0.1:1"


def options(**changes: object) -> SinkOptions:
    given: dict[str, object] = {
        "addresses": Addresses(),
        "topic": "t",
        "deferred": False,
        "exactly_once": False,
        "app": "",
        "version": None,
        "body_bytes": 1 << 20,
        "window_bytes": 10_000,
        "retries": 40,
        "retry_interval": 0.05,
        **changes,
    }
    return SinkOptions(**given)  # type: ignore[arg-type]


def test_everything_is_answered_when_it_is_left(broker: Broker) -> None:
    for _ in range(2):  # the second time over the connection of the first
        with Publisher([broker.tcp_address], options()) as publisher:
            for number in range(100):
                publisher.publish(mpub("t", [b"%d" % number + b"x" * 300] * 3), 1)
        assert publisher._unanswered_bytes == 0
    assert broker.log("t")["next"] == 600


def test_another_nsqd_takes_over(broker: Broker, other: Broker) -> None:
    with Publisher([NOBODY, broker.tcp_address, other.tcp_address], options(window_bytes=0)) as publisher:
        publisher.publish(mpub("t", [b"one"]), 1)
        broker.kill()
        publisher.publish(mpub("t", [b"two"]), 1)
    assert other.log("t")["next"] == 1


def test_a_restart_is_waited_out_and_nothing_is_lost(broker: Broker) -> None:
    bodies = [b"%d" % number + b"x" * 500 for number in range(2000)]
    killed = threading.Event()

    def restart() -> None:
        killed.wait()
        broker.kill()
        broker.restart()

    thread = threading.Thread(target=restart)
    thread.start()
    with Publisher([broker.tcp_address], options(window_bytes=100_000)) as publisher:
        for number, body in enumerate(bodies):
            if number == 500:
                killed.set()
            publisher.publish(mpub("t", [body]), 1)
    thread.join()
    told = broker.log("t")
    assert told["next"] >= len(bodies)  # some twice, perhaps
    found = b"".join(path.read_bytes() for path in sorted((broker.data_path / "topics/t").glob("*.log")))
    assert all(b"%dx" % number in found for number in range(2000))


def test_it_gives_up_in_the_end() -> None:
    publisher = Publisher([NOBODY], options(retries=2))
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 cannot be reached"):
        publisher.publish(mpub("t", [b"x"]), 1)


def test_what_nsqd_does_not_take_is_not_sent_again(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", "--max-msg-size=100").start() as broker:
        publisher = Publisher([broker.tcp_address], options(window_bytes=0))
        with pytest.raises(PublishRefused, match=r"E_BAD_MESSAGE MPUB message too big 101 > 100"):
            publisher.publish(mpub("t", [b"x" * 101]), 1)
