"""The layout of an archive: folders by topic, date and hour in UTC, and the columns of a file."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

PARTITIONS: Final = ("topic", "date", "hour")
# The order of the rows in a merged file.
ORDER: Final = ("nsqd", "offset")


def columns(value_type: str = "BINARY") -> str:
    """The columns of a file. The partition columns are in its path."""
    return f"value {value_type}, nsqd STRING, offset BIGINT, timestamp TIMESTAMP, id STRING"


def by_hour(rows: DataFrame) -> DataFrame:
    """The rows with date and hour as texts, for the names of folders."""
    return rows.withColumns(
        {"date": f.date_format("timestamp", "yyyy-MM-dd"), "hour": f.date_format("timestamp", "HH")}
    )


def by_date_and_hour(rows: DataFrame) -> DataFrame:
    """The same for tables, whose partition columns have types."""
    return rows.withColumns({"date": f.to_date("timestamp"), "hour": f.hour("timestamp")})
