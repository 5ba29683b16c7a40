"""Tables of Spark's catalog: CREATE TABLE … USING nsq, SELECT and INSERT, and what Spark leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Row, SparkSession

from tests.spark.broker import Broker, numbered
from tests.spark.test_queries import run, values

pytestmark = pytest.mark.xdist_group("spark")


UNTOLD = r"'nsqd.http.addresses': missing: .* only if it was created without columns"


@pytest.fixture
def tables(spark: SparkSession) -> Iterator[list[str]]:
    """The names of the tables that a test creates; they are dropped after it."""
    names: list[str] = []
    yield names
    for name in names:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def options(broker: Broker, **more: str) -> str:
    given = {"nsqd.http.addresses": broker.http_address, "subscribe": "t", **more}
    return ", ".join(f"`{name}` '{value}'" for name, value in given.items())


def with_options(broker: Broker, **more: str) -> str:
    return options(broker, **more).replace("` '", "` = '")


def test_a_table_is_read_and_written_by_its_name(
    spark: SparkSession, broker: Broker, tables: list[str]
) -> None:
    tables.append("events")
    broker.publish("t", numbered(3))
    spark.sql(
        f"CREATE TABLE events USING nsq OPTIONS ({options(broker, deliveryMode='exactlyOnce')}) "
        "COMMENT 'what happened' TBLPROPERTIES ('team' = 'web', 'minPartitions' = '2')"
    )
    assert values(spark.table("events")) == numbered(3)
    assert spark.sql("SELECT count(*) AS n FROM events WHERE offset > 0").collect() == [Row(n=2)]
    assert spark.table("events").rdd.getNumPartitions() == 2
    spark.sql("INSERT INTO events (value) VALUES (CAST('message 3' AS BINARY))")
    spark.sql("INSERT INTO events (value, topic) VALUES (CAST('message 9' AS BINARY), 'u')")
    spark.sql("INSERT INTO events (value) SELECT CAST('message 4' AS BINARY) FROM events WHERE offset = 0")
    assert values(spark.sql("SELECT * FROM events")) == numbered(5)
    assert broker.log("u")["next"] == 1
    # an option of the query counts before that of the table
    assert values(spark.sql("SELECT * FROM events WITH (subscribe = 'u')")) == [b"message 9"]
    with pytest.raises(PySparkException, match=r"column 'nsqd': is given in \d rows, but nsqd gives"):
        spark.sql("INSERT INTO events SELECT * FROM events")
    with pytest.raises(AnalysisException, match="option 'mode': a topic can be appended to"):
        spark.sql("INSERT OVERWRITE events (value) VALUES (CAST('x' AS BINARY))")


def test_tables_by_the_catalog_with_chosen_columns_and_by_a_view(
    spark: SparkSession, broker: Broker, tables: list[str], tmp_path: Path
) -> None:
    tables += ["made", "other", "declared", "copied"]
    broker.publish("t", numbered(3))
    given = {"nsqd.http.addresses": broker.http_address, "subscribe": "t", "columns": "value STRING, offset"}
    frame = spark.catalog.createTable("made", source="nsq", **given)
    assert frame.schema.simpleString() == "struct<value:string,offset:bigint>"
    assert spark.sql("SELECT * FROM made WHERE offset = 1").collect() == [Row(value="message 1", offset=1)]
    spark.sql("INSERT INTO made (value) VALUES ('message 3')")
    assert spark.sql("SELECT count(*) AS n FROM made WITH (columns = 'offset')").collect() == [Row(n=4)]
    spark.catalog.createTable("other", source="nsq", **{**given, "subscribe": "u"})
    # a stream of the table, with an option of its own
    stream = spark.readStream.option("channel", "c").option("startingOffsets", "earliest").table("made")
    run(stream, tmp_path)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 4
    # Spark does not tell the options of a table with declared columns: the query must.
    spark.sql(f"CREATE TABLE declared (value STRING) USING nsq OPTIONS ({options(broker)})")
    with pytest.raises(AnalysisException, match=UNTOLD):
        spark.sql("SELECT * FROM declared").collect()
    with pytest.raises(AnalysisException, match=UNTOLD):
        # the metadata of the columns that are read must not count for the table that is written
        spark.sql("INSERT INTO declared SELECT value FROM made")
    with pytest.raises(PySparkException, match="column 'offset': is given in 4 rows, but nsqd gives it"):
        spark.sql("INSERT INTO other SELECT * FROM made")
    spark.sql("INSERT INTO other (value) SELECT value FROM made")
    assert (broker.log("t")["next"], broker.log("u")["next"]) == (4, 4)
    found = spark.sql(f"SELECT * FROM declared WITH ({with_options(broker)})")
    assert found.count() == 4
    with pytest.raises(AnalysisException, match=r"'nsqd.http.addresses': missing"):
        spark.sql(f"CREATE TABLE copied USING nsq OPTIONS ({options(broker)}) AS SELECT 'x' AS value")
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW seen (value STRING, topic STRING) "
        f"USING nsq OPTIONS ({options(broker)})"
    )
    assert spark.table("seen").count() == 4


def test_what_a_table_cannot_be_is_told_when_it_is_created(
    spark: SparkSession, broker: Broker, tables: list[str]
) -> None:
    tables.append("refused")
    for more, problem in (
        ({"startingOffset": "latest"}, "option 'startingOffset': unknown; did you mean 'startingOffsets'"),
        ({"auth.secret": "s"}, "option 'auth.secret': a table does not keep it"),
        ({"columns": "key"}, "option 'columns': no column 'key'"),
    ):
        with pytest.raises(AnalysisException, match=problem):
            spark.sql(f"CREATE TABLE refused USING nsq OPTIONS ({options(broker, **more)})")
    with pytest.raises(AnalysisException, match="option 'path': nsq has no paths"):
        spark.sql(f"CREATE TABLE refused USING nsq OPTIONS ({options(broker)}) LOCATION '/nowhere'")
    with pytest.raises(AnalysisException, match=r"option 'nsqd.http.addresses': missing"):
        spark.sql("CREATE TABLE refused USING nsq OPTIONS (subscribe 't')")
