"""The files of a table: Spark's tasks write their rows as Parquet files with names that no other file has.

Nothing is renamed, so any file system of `pyarrow.fs` will do. A file counts when a commit names it. A task
that fails, or that Spark runs twice, leaves files that no commit names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem, LocalFileSystem

from nsquark.durable import sync_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A task keeps at most so many files open, and so many bytes of rows that are in no row group yet.
_MAX_OPEN_FILES: Final = 64
_MAX_PENDING_BYTES: Final = 64 << 20
_ROW_GROUP_BYTES: Final = 16 << 20
_FILE_BYTES: Final = 512 << 20  # a larger file is followed by another one
_NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"

# The columns that tell where a message is in a log, for the extent of a batch.
_LOG_COLUMNS: Final = ("topic", "nsqd")
_POSITION_COLUMN: Final = "offset"

Extent = dict[str, list[int]]  # for each log: first position, last position, number of rows


class DataFile(NamedTuple):
    """A file that a task has written."""

    path: str  # relative to the folder of the table
    bytes: int
    rows: int
    partition: dict[str, str | None]
    least: dict[str, Any]  # the smallest value of a column; whole numbers and times only
    greatest: dict[str, Any]
    extent: Extent


@dataclass
class FileWriter:
    """What tasks do with their rows. An instance is sent to the executors."""

    filesystem: FileSystem | None  # None: count the rows and write nothing
    folder: str
    name: str  # the beginning of every file's name
    schema: pa.Schema  # of a file
    partition_by: Sequence[str] = ()
    format_options: dict[str, Any] = field(default_factory=dict)

    def write(self, frame: DataFrame) -> list[DataFile]:
        """Have the rows of a frame written; the files that hold them."""
        reports = frame.mapInArrow(self._write_partition, "file STRING").collect()
        return [DataFile(**json.loads(report["file"])) for report in reports]

    def _write_partition(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = _TaskFiles(self)
        try:
            for batch in batches:
                for partition, rows in _split(pa.Table.from_batches([batch]), self.partition_by):
                    files.add(partition, rows)
            reports = [json.dumps(each._asdict()) for each in files.close()]
        except BaseException:
            files.remove()
            raise
        yield pa.record_batch({"file": pa.array(reports, pa.string())})


class _TaskFiles:
    """The files of one task. A file holds the rows of one partition of the table."""

    def __init__(self, writer: FileWriter) -> None:
        self._writer = writer
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()  # by folder; the last used one is the last
        self._closed: list[DataFile] = []

    def add(self, partition: dict[str, str | None], rows: pa.Table) -> None:
        where = _folder_of(partition)
        file = self._open.pop(where, None)
        if file is None:
            if len(self._open) >= _MAX_OPEN_FILES:
                self._closed.append(self._open.popitem(last=False)[1].close())
            file = _OpenFile(self._writer, partition, where)
        self._open[where] = file
        file.add(rows)
        if file.written_bytes >= _FILE_BYTES:
            self._closed.append(self._open.pop(where).close())
        while sum(each.pending_bytes for each in self._open.values()) > _MAX_PENDING_BYTES:
            max(self._open.values(), key=lambda each: each.pending_bytes).flush()

    def close(self) -> list[DataFile]:
        while self._open:
            where, file = self._open.popitem(last=False)
            try:
                self._closed.append(file.close())
            except BaseException:
                self._open[where] = file
                raise
        return self._closed

    def remove(self) -> None:
        """Remove the files of a task that fails, as far as possible."""
        for file in self._open.values():
            file.remove()
        for closed in self._closed:
            _remove(self._writer, closed.path)


class _OpenFile:
    def __init__(self, writer: FileWriter, partition: dict[str, str | None], where: str) -> None:
        self._writer = writer
        self._partition = partition
        name = f"{writer.name}-{uuid.uuid4().hex[:12]}.parquet"
        self._path = f"{where}/{name}" if where else name
        self._rows: list[pa.Table] = []
        self._count = 0
        self._extent: Extent = {}
        self._stream: Any = None
        self._parquet: Any = None
        self._footer: list[Any] = []
        self.pending_bytes = 0

    @property
    def written_bytes(self) -> int:
        return int(self._stream.tell()) if self._stream is not None else 0

    def add(self, rows: pa.Table) -> None:
        self._count += rows.num_rows
        _widen(self._extent, rows)
        if self._writer.filesystem is None:
            return
        kept = rows.select(self._writer.schema.names).cast(self._writer.schema)
        self._rows.append(kept)
        self.pending_bytes += kept.nbytes
        if self.pending_bytes >= _ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the pending rows as a row group."""
        if not self._rows:
            return
        if self._parquet is None:
            self._stream = open_new(self._writer.filesystem, f"{self._writer.folder}/{self._path}")
            self._parquet = pq.ParquetWriter(
                self._stream,
                self._writer.schema,
                metadata_collector=self._footer,
                **self._writer.format_options,
            )
        rows = pa.concat_tables(self._rows)
        self._parquet.write_table(rows, row_group_size=rows.num_rows)
        self._rows, self.pending_bytes = [], 0

    def close(self) -> DataFile:
        size = 0
        least: dict[str, Any] = {}
        greatest: dict[str, Any] = {}
        if self._writer.filesystem is not None:
            self.flush()
            self._parquet.close()
            size = self._stream.tell()
            self._stream.close()
            sync_local(self._writer.filesystem, self._writer.folder, self._path)
            least, greatest = _bounds(self._footer[0])
        return DataFile(self._path, size, self._count, self._partition, least, greatest, self._extent)

    def remove(self) -> None:
        if self._stream is not None:
            for each in (self._parquet, self._stream):
                with contextlib.suppress(OSError, pa.ArrowException):
                    each.close()
            _remove(self._writer, self._path)


def open_new(filesystem: Any, path: str) -> Any:
    """A stream to a new file. Object stores have no folders; other file systems want them to exist."""
    try:
        return filesystem.open_output_stream(path)
    except FileNotFoundError:
        filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        return filesystem.open_output_stream(path)


def _remove(writer: FileWriter, path: str) -> None:
    if writer.filesystem is not None:
        with contextlib.suppress(OSError):
            writer.filesystem.delete_file(f"{writer.folder}/{path}")


def sync_local(filesystem: Any, folder: str, path: str) -> None:
    """Have the disk hold a file and its folders, if it is on this machine. Elsewhere it is safe."""
    if isinstance(filesystem, LocalFileSystem):
        sync_path(Path(folder, path))
        for above in Path(path).parents:
            sync_path(Path(folder, above))


def _split(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """The rows of each partition of the table."""
    if not rows.num_rows:
        return
    if not columns:
        yield {}, rows
        return
    found = rows.group_by(list(columns)).aggregate([]).to_pylist()
    for values in found:
        partition = {name: None if values[name] is None else str(values[name]) for name in columns}
        if len(found) == 1:
            yield partition, rows
            return
        mask = None
        for name in columns:
            value = values[name]
            same = pc.is_null(rows[name]) if value is None else pc.equal(rows[name], value)
            mask = same if mask is None else pc.and_kleene(mask, same)
        yield partition, rows.filter(mask)


def _folder_of(partition: dict[str, str | None]) -> str:
    """The folder of a partition, as Hive and Spark name it: `topic=orders/date=2024-05-01`."""
    return "/".join(
        f"{quote(name, safe='')}={_NULL_FOLDER if value is None else quote(value, safe='')}"
        for name, value in partition.items()
    )


def _widen(extent: Extent, rows: pa.Table) -> None:
    """Add rows to an extent. Rows that do not come from a log are only counted."""
    if not {*_LOG_COLUMNS, _POSITION_COLUMN} <= set(rows.column_names):
        counted = extent.setdefault("", [0, 0, 0])
        counted[2] += rows.num_rows
        return
    wanted = [(_POSITION_COLUMN, each) for each in ("min", "max", "count")]
    for log in rows.group_by(list(_LOG_COLUMNS)).aggregate(wanted).to_pylist():
        name = " ".join(str(log[column]) for column in _LOG_COLUMNS)
        first, last, count = (log[f"{_POSITION_COLUMN}_{each}"] or 0 for each in ("min", "max", "count"))
        before = extent.get(name, [first, last, 0])
        extent[name] = [min(before[0], first), max(before[1], last), before[2] + count]


def digest_of(files: Iterable[DataFile]) -> str:
    """The rows of a batch in a few letters: two batches with other messages have other digests."""
    whole: Extent = {}
    for file in files:
        for name, (first, last, count) in file.extent.items():
            before = whole.get(name, [first, last, 0])
            whole[name] = [min(before[0], first), max(before[1], last), before[2] + count]
    return hashlib.sha256(json.dumps(sorted(whole.items())).encode()).hexdigest()[:16]


def _bounds(footer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The smallest and greatest values of whole numbers and times; a time is in microseconds."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for index in range(footer.num_columns):
        groups = [footer.row_group(each).column(index) for each in range(footer.num_row_groups)]
        found = [each.statistics for each in groups]
        if not all(each is not None and each.has_min_max for each in found):
            continue
        low, high = min(each.min for each in found), max(each.max for each in found)
        if isinstance(low, datetime):
            low, high = (round(each.timestamp() * 1_000_000) for each in (low, high))
        if isinstance(low, int) and not isinstance(low, bool):
            name = groups[0].path_in_schema
            least[name], greatest[name] = low, high
    return least, greatest
