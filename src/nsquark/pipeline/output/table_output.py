"""The table that an archive is written to: Delta, Iceberg, or Parquet files with manifests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nsquark.spark.errors import TableError
from nsquark.spark.tables import DeltaCommits, ExactTable, IcebergCommits, ManifestCommits, listed_files

from ..flags.options import refuse
from ..flags.subcommands import Archive
from ..flags.table_flags import DELTA, ICEBERG, file_options, store_options
from .layout import PARTITIONS, by_date_and_hour, by_hour

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def open_table(options: Archive) -> ExactTable:
    """The table for the batches of the query. Raises StartError."""
    commits: Any
    try:
        if options.format == ICEBERG:
            commits = IcebergCommits(_open_iceberg(options))
        elif options.format == DELTA:
            commits = DeltaCommits(options.output, store_options(options.format_opt))
        else:
            commits = ManifestCommits(options.output)
    except TableError as error:
        raise refuse("table" if options.format == ICEBERG else "output", str(error)) from None
    return ExactTable(commits, PARTITIONS, file_options(options.format_opt))


def partitioned(rows: DataFrame, options: Archive) -> DataFrame:
    """The rows with columns for date and hour, in the types that the table wants."""
    return by_hour(rows) if options.format not in (DELTA, ICEBERG) else by_date_and_hour(rows)


def _open_iceberg(options: Archive) -> Any:
    """The Iceberg table. A new one is partitioned by topic and hour. Raises TableError."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.transforms import HourTransform

    value = pa.string() if options.value_type == "string" else pa.binary()
    columns = {
        "value": value,
        "topic": pa.string(),
        "nsqd": pa.string(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "id": pa.string(),
    }
    try:
        catalog = load_catalog(options.catalog, **store_options(options.format_opt))
        try:
            return catalog.load_table(options.table)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(options.table.rpartition(".")[0])
            schema = pa.schema(list(columns.items()))
            with catalog.create_table_transaction(options.table, schema) as new, new.update_spec() as spec:
                spec.add_identity("topic")
                spec.add_field("timestamp", HourTransform(), "hour")
            return catalog.load_table(options.table)
    except Exception as error:  # catalogs raise errors of many types
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TableError(f"{options.table!r} of catalog {options.catalog!r}: {text}") from None


def archived_files(folder: Path, format: str) -> list[str] | None:
    """The files of an archive that is a table; None for an archive whose files all count."""
    if format == DELTA:
        from deltalake import DeltaTable

        return list(DeltaTable(str(folder)).file_uris())
    if (folder / "_manifests").is_dir():
        return listed_files(str(folder))
    return None
