"""The files of a query: written batch by batch, and merged in between."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from .compaction import Compactor
from .exact_files import ExactFiles
from .running import Stop
from .subcommands import MergedFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class FileOutput:
    """`with FileOutput(...) as output`: the folder is ours meanwhile."""

    def __init__(
        self,
        options: MergedFiles,
        checkpoint: str,
        schema: str | StructType,
        partitions: Sequence[str],
        order: Sequence[str],
        stop: Stop,
    ) -> None:
        """`schema` is that of a file, without what is in its path; merged rows are sorted by `order`."""
        self._files = ExactFiles(
            Path(options.output), Path(checkpoint), options.format, partitions, options.format_opt
        )
        self._compactor: Compactor | None = None
        if options.compact:
            self._compactor = Compactor(
                self._files, schema, order, options.compact_min_files, options.compact_file_size
            )
        self._stop = stop

    def __enter__(self) -> FileOutput:
        self._files.open()
        if self._compactor is not None and not self._compactor.open():
            self._compactor = None
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def write(self, rows: DataFrame, batch: int) -> None:
        """For foreachBatch."""
        touched = self._files.write(rows, batch)
        if self._compactor is not None and not self._stop:
            self._compactor.run(rows.sparkSession, touched, datetime.now(UTC))

    def merge_all(self, spark: SparkSession) -> None:
        """What there is to merge, after the last batch of a run that ends by itself."""
        if self._compactor is not None:
            while not self._stop and self._compactor.run(spark, (), datetime.now(UTC)):
                pass
