"""Publishing what a query has made: exactly once where nsqd can, else at least once."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from nsquark.errors import NsquarkError
from nsquark.flags import StartError
from nsquark.spark.errors import OptionError
from nsquark.spark.sink.application import Application
from nsquark.spark.sink.options import SinkOptions, parse_sink_options

from . import durable
from .options import AT_LEAST_ONCE, EXACTLY_ONCE, Publishing, in_flags, sink_options

logger = logging.getLogger(__name__)

MESSAGES = StructType([StructField("value", BinaryType()), StructField("topic", StringType())])


def choose(options: Publishing) -> dict[str, str]:
    """The sink's options. Looks at the nsqd, unless it need not. Raises StartError."""
    given = sink_options(options)
    try:
        if options.publish_delivery == AT_LEAST_ONCE:
            return _checked({**given, "deliveryMode": "atLeastOnce"})
        try:
            exact = _checked({**given, "deliveryMode": "exactlyOnce"})
            _look(parse_sink_options(exact, MESSAGES))
            return exact
        except OptionError as error:  # one of them is Go's
            if error.option != "deliveryMode" or options.publish_delivery == EXACTLY_ONCE:
                raise
            logger.info("publishing at least once: %s", in_flags(str(error)))
            return _checked({**given, "deliveryMode": "atLeastOnce"})
    except NsquarkError as error:
        raise StartError(in_flags(str(error))) from None


def _checked(given: dict[str, str]) -> dict[str, str]:
    parse_sink_options(given, MESSAGES)
    return given


def _look(options: SinkOptions) -> None:
    Application(replace(options, retries=0), "-").check()


def is_exact(sink: dict[str, str]) -> bool:
    return sink["deliveryMode"] == "exactlyOnce"


def new_app() -> str:
    return f"nsq_to_spark-{uuid.uuid4().hex}"


def app_of(checkpoint: Path) -> str:
    """The name by which nsqd knows the batches of whoever has this checkpoint."""
    path = checkpoint / "publisher.json"
    try:
        return str(json.loads(path.read_text())["app"])
    except FileNotFoundError:
        app = new_app()
        durable.make_folder(checkpoint)
        durable.replace_text(path, json.dumps({"app": app}))
        return app
    except (ValueError, KeyError, TypeError) as error:
        raise StartError(f"--checkpoint: {str(path)!r} cannot be read: {error!r}") from None


def publisher(sink: dict[str, str], app: str) -> Callable[[DataFrame, int], None]:
    """Publishes a batch of rows with a column `value`."""

    def publish(rows: DataFrame, batch: int) -> None:
        writer = rows.write.format("nsq").options(**sink).mode("append")
        if is_exact(sink):
            writer = writer.option("txnAppId", app).option("txnVersion", str(batch))
        writer.save()

    return publish
