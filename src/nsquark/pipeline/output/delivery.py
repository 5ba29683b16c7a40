"""Publishing the rows of a query: exactly once if the nsqds have staged publishing, else at least once."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from nsquark.cli.flags import StartError
from nsquark.errors import NsquarkError
from nsquark.spark.errors import OptionError
from nsquark.spark.sink.application import Application
from nsquark.spark.sink.options import SinkOptions, parse_sink_options

from ..flags.options import AT_LEAST_ONCE, EXACTLY_ONCE, Publishing, sink_options, with_flag_names
from . import durable

logger = logging.getLogger(__name__)

MESSAGES = StructType([StructField("value", BinaryType()), StructField("topic", StringType())])


def choose(options: Publishing) -> dict[str, str]:
    """The options of the sink, after a look at the nsqds if they need it. Raises StartError."""
    given = sink_options(options)
    try:
        if options.publish_delivery == AT_LEAST_ONCE:
            return _checked({**given, "deliveryMode": "atLeastOnce"})
        try:
            exact = _checked({**given, "deliveryMode": "exactlyOnce"})
            _check_staging(parse_sink_options(exact, MESSAGES))
            return exact
        except OptionError as error:  # one of the nsqds is a stock one
            if error.option != "deliveryMode" or options.publish_delivery == EXACTLY_ONCE:
                raise
            logger.info("publishing at least once: %s", with_flag_names(str(error)))
            return _checked({**given, "deliveryMode": "atLeastOnce"})
    except NsquarkError as error:
        raise StartError(with_flag_names(str(error))) from None


def _checked(given: dict[str, str]) -> dict[str, str]:
    parse_sink_options(given, MESSAGES)
    return given


def _check_staging(options: SinkOptions) -> None:
    Application(replace(options, retries=0), "-").check()


def is_exact(sink: dict[str, str]) -> bool:
    return sink["deliveryMode"] == "exactlyOnce"


def new_app_name() -> str:
    return f"nsq_to_spark-{uuid.uuid4().hex}"


def load_app_name(checkpoint: Path) -> str:
    """The application name of the query with this checkpoint, by which nsqd knows its batches."""
    path = checkpoint / "publisher.json"
    try:
        return str(json.loads(path.read_text())["app"])
    except FileNotFoundError:
        app = new_app_name()
        durable.make_folder(checkpoint)
        durable.replace_text(path, json.dumps({"app": app}))
        return app
    except (ValueError, KeyError, TypeError) as error:
        raise StartError(f"--checkpoint: {str(path)!r} cannot be read: {error!r}") from None


def publisher(sink: dict[str, str], app: str) -> Callable[[DataFrame, int], None]:
    """A function for foreachBatch that publishes rows with a column `value`."""

    def publish(rows: DataFrame, batch: int) -> None:
        writer = rows.write.format("nsq").options(**sink).mode("append")
        if is_exact(sink):
            writer = writer.option("txnAppId", app).option("txnVersion", str(batch))
        writer.save()

    return publish
