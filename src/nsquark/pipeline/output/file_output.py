"""The files of a query: a batch is written, and small files are merged between batches."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ..flags.subcommands import MergedFiles
from ..running.queries import StopSignal
from .compaction import Compactor
from .exact_files import ExactFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class FileOutput:
    """Use it as `with FileOutput(...) as output`: no other process writes to the folder meanwhile."""

    def __init__(
        self,
        options: MergedFiles,
        checkpoint: str,
        schema: str | StructType,
        partitions: Sequence[str],
        order: Sequence[str],
        stop: StopSignal,
    ) -> None:
        """`schema` is that of a file, without the partition columns. Merged rows are sorted by `order`."""
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
        """Write a batch, and merge files of at most one folder. For foreachBatch."""
        touched = self._files.write(rows, batch)
        if self._compactor is not None and not self._stop:
            self._compactor.run(rows.sparkSession, touched, datetime.now(UTC))

    def merge_all(self, spark: SparkSession) -> None:
        """Merge all files that are due, after the last batch of a query that ends by itself."""
        if self._compactor is not None:
            while not self._stop and self._compactor.run(spark, (), datetime.now(UTC)):
                pass
