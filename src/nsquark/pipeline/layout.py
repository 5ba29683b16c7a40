"""How messages lie in files: by topic, date and hour in UTC, and which columns a file has."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

PARTITIONS: Final = ("topic", "date", "hour")
# Within a file, where files are merged.
ORDER: Final = ("nsqd", "offset")


def columns(value_type: str = "BINARY") -> str:
    """What is in a file; the rest is in its path."""
    return f"value {value_type}, nsqd STRING, offset BIGINT, timestamp TIMESTAMP, id STRING"


def by_hour(rows: DataFrame) -> DataFrame:
    return rows.withColumns(
        {"date": f.date_format("timestamp", "yyyy-MM-dd"), "hour": f.date_format("timestamp", "HH")}
    )
