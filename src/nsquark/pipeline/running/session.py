"""Finding, configuring and starting Spark for a command."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsquark.cli.flags import StartError

from ..flags.options import Common
from ..shipping import ship, use_python_of_executors
from .failures import one_line
from .jvm import deaf_to_sigterm
from .quiet import StderrFilter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCAL_CHECKPOINTS: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


def require_spark() -> None:
    """Raises StartError if Spark cannot be started here."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        raise StartError("PySpark is not installed: pip install 'nsquark[spark]'")
    home = os.environ.get("JAVA_HOME")
    if not (Path(home, "bin", "java").exists() if home else shutil.which("java")):
        where = f"in JAVA_HOME={home}" if home else "on the PATH"
        raise StartError(f"there is no java {where}, and Spark needs Java 17 or newer")


def start(options: Common, name: str, stderr: StderrFilter) -> SparkSession:
    """Start the one Spark session of this process. Raises StartError."""
    from pyspark.sql import SparkSession

    chosen = settings(options) | _python_settings(options)
    builder = SparkSession.builder.master(options.master).appName(f"nsq_to_spark {name}")
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        with stderr.in_place_of_stderr(), deaf_to_sigterm():
            return builder.getOrCreate()
    except Exception as error:  # of Py4J, of Spark, or of a JVM that did not start
        raise StartError(f"Spark did not start with --master {options.master!r}: {one_line(error)}") from None


def _python_settings(options: Common) -> dict[str, str]:
    """Choose the Python of Spark's workers, which must find this package: settings, and the environment."""
    if options.ship:
        return ship(Path(options.ship), options.conf, os.environ)
    shipped = use_python_of_executors(options.conf, os.environ)
    # On this machine, and on any machine with the same installation, they find it with this interpreter.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return shipped


def settings(options: Common) -> dict[str, str]:
    """Spark's settings. Those of the command line override those of this function."""
    log4j = Path(__file__).with_name("log4j2.properties").as_uri()
    chosen = {
        "spark.log.level": options.spark_log_level.upper(),
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # not INT96, which few readers know
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if options.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        chosen |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
            "spark.sql.streaming.checkpointFileManagerClass": _LOCAL_CHECKPOINTS,
        }
    chosen |= options.conf
    java = chosen.get("spark.driver.extraJavaOptions", "")
    if "log4j2.configurationFile" not in java:
        chosen["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={log4j} {java}".strip()
    return chosen
