"""`dedupe` on a real Spark: a message that comes twice is passed on once, even over restarts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.command import rows_of, run
from tests.pipeline.commands.test_replay import bodies
from tests.spark.broker import Broker

pytestmark = pytest.mark.xdist_group("pipeline")


def dedupe(spark: SparkSession, broker: Broker, *flags: str) -> Any:
    where = f"--nsqd-http-address={broker.http_address}"
    return run(spark, "dedupe", where, "--topic=t", "--trigger=once", *flags)


def order(number: int, **more: object) -> bytes:
    return json.dumps({"order": {"id": number}, **more}).encode()


def test_a_field_of_the_body_tells_orders_apart(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    flags = ("--by=$.order.id", "--publish=once", f"--checkpoint={tmp_path / 'c'}")
    broker.publish("t", [order(1), order(2), order(1, again=True), b"no JSON", b"no JSON"])
    assert dedupe(spark, broker, *flags) == 5
    broker.publish("t", [order(2, again=True), order(3)])
    assert dedupe(spark, broker, *flags) == 2
    # as after a crash that came before Spark noted the batch: it is replayed, and known to nsqd
    last = max((tmp_path / "c" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    dedupe(spark, broker, *flags)
    found = bodies(spark, broker, "once")
    assert sorted(json.loads(body)["order"]["id"] for body in found if body != b"no JSON") == [1, 2, 3]
    # what has no such field is no duplicate
    assert found.count(b"no JSON") == 2


def test_equal_bodies_are_one_and_ids_are_never_equal(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.publish("t", [b"a", b"b", b"a"])
    dedupe(spark, broker, "--by=body", f"--output={tmp_path / 'body'}", "--channel=one")
    assert sorted(row["value"] for row in rows_of(tmp_path / "body")) == [b"a", b"b"]
    # every publish has an id of its own: what is deduplicated by it is a message read twice
    dedupe(spark, broker, f"--output={tmp_path / 'id'}", "--channel=two")
    rows = rows_of(tmp_path / "id")
    assert sorted(row["value"] for row in rows) == [b"a", b"a", b"b"]
    assert {row["topic"] for row in rows} == {"t"}
