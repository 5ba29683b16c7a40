"""Using a session from a thread other than the main one.

Spark looks for the data source of a `write` in the active session of the thread that calls, and only there. A
thread of Python has a thread of its own in the JVM, and that thread has no active session until a call sets
one. The thread that made the session has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def use_session(spark: SparkSession) -> None:
    """Make `spark` the active session of this thread, so that it may write to `format("nsq")`.

    Once in a thread is enough. The data sources of a session are found in that session alone.
    """
    # Of PySpark's public methods this one sets the active session, and the others do not.
    spark.createDataFrame([], "value STRING")
