"""Commits to an Iceberg table by the package `pyiceberg`, which needs no Java: a commit is a snapshot.

The number of the last batch of a query is a property of the table. It is set in the transaction that adds the
files, and stays when old snapshots expire.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from ..errors import TableError
from .exact_table import Batch, Committed, open_filesystem

_PROPERTY: Final = "nsquark.batch."
_RETRIES: Final = 10


class IcebergCommits:
    """An Iceberg table that exists. The rows of a file must have one value of each partition field."""

    def __init__(self, table: Any) -> None:
        """`table` is a `pyiceberg.table.Table`."""
        self._table = table
        self._location = f"{table.location().rstrip('/')}/data"
        self.filesystem, self.folder = _filesystem_of(table.io, self._location)

    def open(self, schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
        names = [each.name for each in self._table.schema().fields]
        for name in names:
            if name not in schema.names:
                raise TableError(f"the Iceberg table {self._name!r} has a column {name!r}, the rows do not")
        return pa.schema([schema.field(name) for name in names])

    @property
    def _name(self) -> str:
        return ".".join(self._table.name())

    def last(self, query: str) -> Committed | None:
        told = self._table.refresh().properties.get(_PROPERTY + query)
        if told is None:
            return None
        number, _, digest = told.partition(" ")
        return Committed(int(number), digest)

    def begin(self, query: str, name: str) -> None:
        """Nothing to do: `remove_orphan_files` removes files that no snapshot names."""

    def commit(self, batch: Batch) -> None:
        from pyiceberg.exceptions import CommitFailedException

        for attempt in range(_RETRIES):
            there = self.last(batch.query)
            if there is not None and there.number >= batch.number:
                raise TableError(f"another driver has written batch {batch.number} to {self._name!r}")
            try:
                self._add(batch)
                return
            except CommitFailedException:  # another program has changed the table meanwhile
                time.sleep(0.1 * 2**attempt)
            except (OSError, ValueError) as error:
                raise TableError(f"the Iceberg table {self._name!r}: {error}") from None
        raise TableError(f"the Iceberg table {self._name!r} changes faster than a batch can be committed")

    def _add(self, batch: Batch) -> None:
        told = {"nsquark.query": batch.query, "nsquark.batch": str(batch.number)}
        with self._table.transaction() as transaction:
            transaction.set_properties({_PROPERTY + batch.query: f"{batch.number} {batch.digest}"})
            transaction.add_files(
                [f"{self._location}/{file.path}" for file in batch.files],
                snapshot_properties=told,
                check_duplicate_files=False,  # no two files have the same name
            )


def _filesystem_of(io: Any, location: str) -> tuple[Any, str]:
    """The file system with the credentials that the catalog gives, and the path on it."""
    if hasattr(io, "fs_by_scheme"):
        scheme, netloc, path = io.parse_location(location, io.properties)
        return io.fs_by_scheme(scheme, netloc), path
    return open_filesystem(location)
