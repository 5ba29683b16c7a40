"""Archives that are tables: the flags that write them, and what programs without Spark read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from nsquark.spark.tables import dataset

KINDS = ("manifest", "delta", "iceberg")


def flags_of(kind: str, folder: Path) -> list[str]:
    """The flags of `archive` for a table in a folder."""
    checkpoint = f"--checkpoint={folder / f'{kind}.checkpoint'}"
    if kind == "manifest":
        return ["--manifest", f"--output={folder / kind}", checkpoint]
    if kind == "delta":
        return ["--format=delta", f"--output={folder / kind}", checkpoint]
    catalog = [f"--format-opt={name}={value}" for name, value in _catalog(folder).items()]
    return ["--format=iceberg", "--table=queue.orders", *catalog, checkpoint]


def _catalog(folder: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }


def open_iceberg(folder: Path) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog("default", **_catalog(folder)).load_table("queue.orders")


def rows_in(kind: str, folder: Path) -> list[dict[str, Any]]:
    """The rows of a table; none if nothing is committed."""
    table: pa.Table
    if kind == "manifest":
        table = dataset(str(folder / kind)).to_table()
    elif kind == "delta":
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(str(folder / kind)):
            return []
        table = DeltaTable(str(folder / kind)).to_pyarrow_table()
    else:
        table = open_iceberg(folder).scan().to_arrow()
    return list(table.to_pylist())
