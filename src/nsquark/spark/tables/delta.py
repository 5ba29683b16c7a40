"""Commits to a Delta table by the package `deltalake`, without Java: a commit is a version of the table.

A version that adds files also has the number of the batch, as the transaction of an application (`txn`). The
application is the query. Delta's own writer for Spark keeps the options `txnAppId` and `txnVersion` there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
from pyarrow.fs import LocalFileSystem

from nsquark.durable import sync_path

from ..errors import TableError
from .data_files import DataFile
from .exact_table import Batch, Committed, open_filesystem

_METADATA: Final = "nsquark"
_VERSIONS_LOOKED_AT: Final = 100


class OpenTable(Protocol):
    """The part of `deltalake.DeltaTable` that commits need."""

    def schema(self) -> Any: ...
    def metadata(self) -> Any: ...
    def version(self) -> int: ...
    def history(self, limit: int | None = None) -> list[dict[str, Any]]: ...
    def transaction_version(self, app_id: str) -> int | None: ...
    def update_incremental(self) -> None: ...
    def create_write_transaction(
        self,
        actions: list[Any],
        mode: str,
        schema: Any,
        partition_by: list[str] | str | None = None,
        *,
        commit_properties: Any = None,
    ) -> None: ...


class DeltaCommits:
    """A Delta table in a folder."""

    def __init__(self, location: str, storage_options: Mapping[str, str] | None = None) -> None:
        """`storage_options` are those of `deltalake`, for the log of the table."""
        self.filesystem, self.folder = open_filesystem(location)
        self._location = location
        self._storage_options = dict(storage_options or {})
        self._table: OpenTable
        self._schema: Any = None  # of the rows, as Arrow has it
        self._partition_by: list[str] = []

    def open(self, schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        self._schema, self._partition_by = schema, list(partition_by)
        try:
            DeltaTable.create(
                self._location, schema, "ignore", self._partition_by, storage_options=self._storage_options
            )
            self._table = DeltaTable(self._location, storage_options=self._storage_options)
        except (DeltaError, OSError, ValueError) as error:
            raise TableError(f"the Delta table {self._location!r} cannot be opened: {error}") from None
        self._check_columns()
        return pa.schema([each for each in schema if each.name not in partition_by])

    def _check_columns(self) -> None:
        from deltalake import Schema

        there = {each.name: each.type for each in self._table.schema().fields}
        for each in Schema.from_arrow(self._schema).fields:
            if each.name not in there:
                raise TableError(f"the Delta table {self._location!r} has no column {each.name!r}")
            if there[each.name] != each.type:
                raise TableError(
                    f"the Delta table {self._location!r}: column {each.name!r} is {there[each.name]}, "
                    f"and the rows have {each.type}"
                )
        partitions = self._table.metadata().partition_columns
        if partitions != self._partition_by:
            raise TableError(
                f"the Delta table {self._location!r} is partitioned by {', '.join(partitions) or 'nothing'}, "
                f"and not by {', '.join(self._partition_by) or 'nothing'}"
            )

    def last(self, query: str) -> Committed | None:
        number = self._table.transaction_version(query)
        if number is None:
            return None
        for version in self._table.history(_VERSIONS_LOOKED_AT):
            told = version.get(_METADATA)
            if isinstance(told, dict) and told.get("query") == query and told.get("batch") == number:
                return Committed(number, str(told.get("digest", "")))
        return Committed(number, "")

    def begin(self, query: str, name: str) -> None:
        """Nothing to do: `VACUUM` removes files that no version names."""

    def commit(self, batch: Batch) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError

        try:
            self._table.update_incremental()
            there = self._table.transaction_version(batch.query)
            if there is not None and there >= batch.number:
                raise TableError(f"another driver has written batch {batch.number} to {self._location!r}")
            told = {"query": batch.query, "batch": batch.number, "digest": batch.digest}
            self._table.create_write_transaction(
                [self._add_action(file) for file in batch.files],
                "append",
                self._schema,
                partition_by=self._partition_by,
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(batch.query, batch.number)],
                    custom_metadata={_METADATA: told},
                ),
            )
            self._table.update_incremental()
        except (DeltaError, OSError) as error:
            raise TableError(f"the Delta table {self._location!r}: {error}") from None
        self._sync_log()

    def _add_action(self, file: DataFile) -> Any:
        from deltalake.transaction import AddAction

        statistics = {
            "numRecords": file.rows,
            "minValues": {name: self._bound(name, value, 0) for name, value in file.least.items()},
            "maxValues": {name: self._bound(name, value, 999) for name, value in file.greatest.items()},
        }
        return AddAction(
            path=file.path,
            size=file.bytes,
            partition_values=file.partition,
            modification_time=int(time.time() * 1000),
            data_change=True,
            stats=json.dumps(statistics),
        )

    def _bound(self, column: str, value: int, more: int) -> int | str:
        """A bound in the JSON of Delta. Its times have milliseconds; `more` microseconds round one up."""
        if not pa.types.is_timestamp(self._schema.field(column).type):
            return value
        ms = (value + more) // 1000
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ms // 1000)) + f".{ms % 1000:03d}Z"

    def _sync_log(self) -> None:
        """Have the disk hold the version, if the table is on this machine."""
        if isinstance(self.filesystem, LocalFileSystem):
            log = Path(self.folder, "_delta_log")
            for path in (log / f"{self._table.version():020d}.json", log):
                if path.exists():
                    sync_path(path)
