"""`sql` on a real Spark: topics as views, results to a topic, to files and to the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from nsquark.cli.flags import StartError
from tests.pipeline.command import rows_of, run
from tests.pipeline.commands.test_replay import bodies
from tests.spark.broker import Broker

pytestmark = pytest.mark.xdist_group("pipeline")


def sql(spark: SparkSession, broker: Broker, tmp_path: Path, text: str, *flags: str) -> Any:
    file = tmp_path / "query.sql"
    file.write_text(text)
    where = (f"--nsqd-http-address={broker.http_address}", f"--file={file}")
    return run(spark, "sql", *where, "--trigger=once", *flags)


def publish_orders(broker: Broker) -> None:
    orders = [{"id": number, "customer": f"c{number % 2}", "sum": number / 2} for number in range(10)]
    broker.publish("orders", [json.dumps(each).encode() for each in orders])


def test_a_join_with_a_given_and_a_sampled_schema_goes_to_a_topic(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    publish_orders(broker)
    broker.publish("the-customers", [b'{"name": "c0", "city": "Ulm"}', b'{"name": "c1", "city": "Bonn"}'])
    text = """
    -- those that count;
    CREATE OR REPLACE TEMPORARY VIEW large AS SELECT * FROM orders WHERE sum >= 3;
    SELECT large.id, city FROM large JOIN `the-customers` ON large.customer = `the-customers`.name
    """
    topics = ("--topic=orders", "--topic=the-customers")
    read = sql(
        spark, broker, tmp_path, text, *topics, "--schema=orders=id INT, customer STRING, sum DOUBLE",
        "--publish=large-orders",
    )  # fmt: skip
    assert read == 12
    found = [json.loads(body) for body in bodies(spark, broker, "large-orders")]
    assert sorted((each["id"], each["city"]) for each in found) == [
        (6, "Ulm"), (7, "Bonn"), (8, "Ulm"), (9, "Bonn"),
    ]  # fmt: skip


def test_a_sampled_schema_is_kept_for_the_next_start(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    publish_orders(broker)
    flags = ("--topic=orders", f"--output={tmp_path / 'out'}")
    text = "SELECT id, _offset, _topic, hour(_timestamp) AS hour FROM orders WHERE customer = 'c1'"
    sql(spark, broker, tmp_path, text, *flags)
    broker.publish("orders", [b'{"customer": "c1"}', b"no JSON"])
    sql(spark, broker, tmp_path, text, *flags)
    rows = rows_of(tmp_path / "out")
    assert sorted((row["id"] is None, row["id"], row["_offset"]) for row in rows[:5]) == [
        (False, number, number) for number in (1, 3, 5, 7, 9)
    ]
    assert [(row["id"], row["_offset"], row["_topic"]) for row in rows[5:]] == [(None, 10, "orders")]


def test_counts_are_shown_on_the_terminal(
    spark: SparkSession, broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_orders(broker)
    text = "SELECT customer, count(*) AS n FROM orders GROUP BY customer"
    sql(spark, broker, tmp_path, text, "--topic=orders", "--output-mode=complete")
    shown = capsys.readouterr().out
    assert "|c0      |5  |" in shown
    assert "|c1      |5  |" in shown


@pytest.mark.parametrize(
    ("text", "flags", "line"),
    [
        ("SELECT nosuch FROM orders", (), r"^--file: .*nosuch"),
        ("SELECT * FROM nosuch", (), r"^--file: .*`nosuch`"),
        ("-- nothing", (), r"^--file: .* has no statement"),
        ("SELECT 1", (), r"^--file: .*the last statement is no query over a topic"),
        ("SELECT 1", ("--schema=orders=id WHOLE",), r"^--schema: orders='id WHOLE'"),
        (
            "SELECT 1",
            ("--topic=empty",),
            r"^--sample: topic 'empty' has no messages to look at: give its --sch",
        ),
        ("SELECT 1", ("--topic=nosuch",), r"^--sample: topic 'nosuch' cannot be looked at: .*nosuch"),
    ],
)
def test_a_mistake_is_one_line(
    spark: SparkSession, broker: Broker, tmp_path: Path, text: str, flags: tuple[str, ...], line: str
) -> None:
    publish_orders(broker)
    broker.ask("POST", "/topic/create?topic=empty")
    with pytest.raises(StartError, match=line) as caught:
        sql(spark, broker, tmp_path, text, "--topic=orders", *flags)
    assert "\n" not in str(caught.value)
