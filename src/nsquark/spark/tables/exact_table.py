"""The batches of a query in a table: each batch is there once, whatever is killed.

A batch is written in two steps. Spark's tasks write files that are not read yet. Then one commit names these
files, the query and the number of the batch. The commit is a single step of the table: a version of a Delta
table, a snapshot of an Iceberg table, or a manifest. A batch that Spark replays finds its number in the table
and is left out.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
from pyarrow.fs import FileSystem

from ..errors import OldCheckpoint, TableError
from .data_files import DataFile, FileWriter, digest_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Batch(NamedTuple):
    """A batch whose files are written."""

    query: str
    number: int
    digest: str  # of its rows
    files: Sequence[DataFile]


class Committed(NamedTuple):
    """The last batch of a query that is in a table."""

    number: int
    digest: str  # empty if the table does not have it any more


class Commits(Protocol):
    """A kind of table: where its files go, and how a commit is made."""

    filesystem: FileSystem
    folder: str  # on the file system

    def open(self, schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
        """Open the table, or create it for rows of `schema`; the schema of its files. Raises TableError."""
        ...

    def last(self, query: str) -> Committed | None:
        """The last batch of the query that is committed."""
        ...

    def begin(self, query: str, name: str) -> None:
        """Called before tasks write files whose names begin with `name`."""
        ...

    def commit(self, batch: Batch) -> None:
        """Let the files of a batch be part of the table, in one step. Raises TableError if it is there."""
        ...


class ExactTable:
    """A table for `foreachBatch(table.write)`. One query at a time writes batches under one name."""

    def __init__(
        self,
        commits: Commits,
        partition_by: Sequence[str] = (),
        format_options: Mapping[str, Any] | None = None,
        query: str = "",
    ) -> None:
        """`query` is the name under which the table knows the batches: the id of the query unless given."""
        self._commits = commits
        self._partition_by = list(partition_by)
        self._format_options = dict(format_options or {})
        self._query = query
        self._schema: Any = None  # of a file; None until the table is open
        self._last: Committed | None = None

    def write(self, frame: DataFrame, number: int) -> None:
        """Write a batch, unless it is in the table. Raises OldCheckpoint and TableError."""
        query = self._query or query_id(frame)
        if self._schema is None:
            self._schema = self._commits.open(_arrow_schema(frame), self._partition_by)
            self._last = self._commits.last(query)
        last = self._last
        if last is not None and number <= last.number:
            self._check_replay(frame, number, last)
            return
        name = f"{number:09d}-{uuid.uuid4().hex[:12]}"
        self._commits.begin(query, name)
        files = self._writer(self._commits.filesystem, name).write(frame)
        batch = Batch(query, number, digest_of(files), files)
        if files:
            self._commits.commit(batch)
        self._last = Committed(number, batch.digest)

    def _check_replay(self, frame: DataFrame, number: int, last: Committed) -> None:
        """A replayed batch has the rows that were written. Otherwise the checkpoint is not the table's."""
        if number < last.number:
            raise OldCheckpoint(
                f"batch {number} was written long ago, the last one was {last.number}: "
                f"the checkpoint is older than the table in {self._commits.folder!r}"
            )
        if last.digest and digest_of(self._writer(None, "").write(frame)) != last.digest:
            raise OldCheckpoint(
                f"batch {number} is in the table in {self._commits.folder!r} with other rows: "
                "the checkpoint is older than the table"
            )

    def _writer(self, filesystem: FileSystem | None, name: str) -> FileWriter:
        folder = self._commits.folder
        return FileWriter(filesystem, folder, name, self._schema, self._partition_by, self._format_options)


def query_id(frame: DataFrame) -> str:
    """The id of the streaming query whose batch a frame is. It is kept in the checkpoint."""
    try:
        found = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    except Exception:  # a session of Spark Connect has no context
        found = None
    if not found:
        raise TableError("the frame is no batch of a streaming query; give the argument 'query'")
    return str(found)


def _arrow_schema(frame: DataFrame) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema, timezone="UTC")
    return pa.schema([each.with_nullable(True) for each in schema])


def open_filesystem(location: str) -> tuple[FileSystem, str]:
    """The file system of a URI or absolute path, and the path on it. Raises TableError."""
    try:
        filesystem, path = FileSystem.from_uri(location)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise TableError(f"{location!r} cannot be opened: {_first_line(error)}") from None
    return filesystem, path.rstrip("/")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
