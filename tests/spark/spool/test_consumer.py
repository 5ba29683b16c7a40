"""The consumer of a spool: a message is on disk before it is finished, and a failure is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsquark.spark.source.directory import Directory
from nsquark.spark.source.options import parse_stream_options
from nsquark.spark.spool import consumer as consumer_module
from nsquark.spark.spool.consumer import SpoolConsumer
from nsquark.spark.spool.folder import Spool
from tests.spark.broker import Broker, numbered


def consuming(broker: Broker, spool: Spool) -> SpoolConsumer:
    given = {"nsqd.http.addresses": broker.http_address, "subscribe": "t", "channel": "c"}
    options = parse_stream_options(given)
    return SpoolConsumer(options, Directory(options.addresses, options.subscription), spool)


def wait_for(consumer: SpoolConsumer, spool: Spool, end: int) -> None:
    with consumer.changed:
        assert consumer.changed.wait_for(lambda: spool.end >= end or consumer.failure, 30)


def test_messages_are_spooled_and_finished(broker: Broker, tmp_path: Path) -> None:
    broker.publish("t", numbered(10))
    spool = Spool(tmp_path / "spool")
    consumer = consuming(broker, spool)
    consumer.start()
    wait_for(consumer, spool, 10)
    consumer.stop()
    spool.close()
    assert consumer.failure is None
    assert spool.end == 10
    assert broker.depth("t", "c") == 0


def test_consuming_pauses_while_spark_is_far_behind(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "_MAX_AHEAD", 10)
    broker.publish("t", numbered(10))
    spool = Spool(tmp_path / "spool")
    consumer = consuming(broker, spool)
    consumer.start()
    wait_for(consumer, spool, 10)
    broker.publish("t", numbered(5, 10))
    spool.acknowledge(10)
    wait_for(consumer, spool, 15)
    consumer.stop()
    spool.close()
    assert spool.end == 15


def test_a_failure_is_reported(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.publish("t", numbered(1))
    spool = Spool(tmp_path / "spool")

    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(spool, "add", fail)
    consumer = consuming(broker, spool)
    consumer.start()
    wait_for(consumer, spool, 1)
    consumer.stop()
    spool.close()
    assert isinstance(consumer.failure, OSError)
