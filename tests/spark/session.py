"""A Spark session for two cores, quiet and quick to start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.interpreter import interpreter

LOCAL_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.log.level": "FATAL",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.checkpointFileManagerClass": LOCAL_CHECKPOINTS,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
CLASSES = Path(sys.prefix) / "spark-classes.jsa"  # see class_archive.py
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Xlog:cds=off,cds+dynamic=off"
QUICK_START = f"{QUICK_JAVA} -XX:SharedArchiveFile={CLASSES}" if CLASSES.exists() else QUICK_JAVA


def new_session(name: str, master: str = "local[2]", folder: Path | None = None, **more: str) -> SparkSession:
    """`folder` is where it may write. With settings for tests unless `name` is bench."""
    os.environ["PYSPARK_PYTHON"] = sys.executable if name == "bench" else interpreter()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(master).appName(name)
    settings = dict(SETTINGS)
    if name != "bench":
        settings["spark.driver.extraJavaOptions"] = settings["spark.executor.extraJavaOptions"] = QUICK_START
    if folder is not None:
        settings["spark.sql.warehouse.dir"] = str(folder / "warehouse")
        settings["spark.local.dir"] = str(folder / "local")
    for key, value in {**settings, **{key.replace("__", "."): value for key, value in more.items()}}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
