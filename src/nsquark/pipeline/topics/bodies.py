"""The schema of a topic's JSON bodies: the one that --schema gives, or the one of a sample of messages.

The schema of a sample is kept with the checkpoint: a query that is started again has the same columns.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from nsquark.cli.flags import StartError

from ..flags.options import connection_options
from ..flags.subcommands import Sql
from ..output import durable
from ..running.failures import one_line

logger = logging.getLogger(__name__)

_CORRUPT = "_corrupt_record"
# The columns that every view has besides the fields of the body.
_META = ("timestamp", "id", "nsqd", "offset", "topic", "value")


def find_schemas(spark: SparkSession, options: Sql) -> dict[str, StructType | None]:
    """The schema of each topic; None for a topic whose bodies are not parsed. Raises StartError."""
    path = Path(options.checkpoint) / "schemas.json"
    kept = json.loads(path.read_text()) if path.is_file() else {}
    found: dict[str, StructType | None] = {}
    for topic in options.topic:
        if topic in options.schema:
            found[topic] = _parse(spark, topic, options.schema[topic])
        elif topic in kept:
            found[topic] = StructType.fromJson(kept[topic]) if kept[topic] else None
        else:
            found[topic] = _sample(spark, topic, options) if options.sample else None
    durable.make_folder(path.parent)
    durable.replace_text(
        path, json.dumps({topic: each.jsonValue() if each else None for topic, each in found.items()})
    )
    return found


def _parse(spark: SparkSession, topic: str, ddl: str) -> StructType:
    try:
        return spark.createDataFrame([], ddl).schema
    except Exception as error:  # Spark raises errors of several types
        raise StartError(f"--schema: {topic}={ddl!r}: {one_line(error)}") from None


def _sample(spark: SparkSession, topic: str, options: Sql) -> StructType | None:
    given = {**connection_options(options), "subscribe": topic}
    try:
        rows = spark.read.format("nsq").options(**given).schema("value STRING").load().limit(options.sample)
        bodies = [row["value"] for row in rows.collect()]
    except Exception as error:  # no such topic, no nsqd, no log
        raise StartError(f"--sample: topic {topic!r} cannot be looked at: {one_line(error)}") from None
    if not bodies:  # a schema without fields would stay with the checkpoint for ever
        raise StartError(f"--sample: topic {topic!r} has no messages to look at: give its --schema")
    schema = spark.read.json(spark.sparkContext.parallelize(bodies)).schema
    fields = [field for field in schema.fields if field.name != _CORRUPT]
    if not fields:
        logger.warning("topic %s: no JSON objects among %d messages; there is _value", topic, len(bodies))
        return None
    found = StructType(fields)
    logger.info("topic %s: %s", topic, found.simpleString())
    return found


def view(rows: DataFrame, schema: StructType | None) -> DataFrame:
    """The fields of the bodies as columns, and the columns of the source with `_` before their names.

    A body that does not fit the schema has nulls in its fields; `_value` has its text.
    """
    meta = [f.col(name).alias(f"_{name}") for name in _META]
    if schema is None:
        return rows.select(*meta)
    return rows.withColumn("_body", f.from_json("value", schema)).select("_body.*", *meta)
