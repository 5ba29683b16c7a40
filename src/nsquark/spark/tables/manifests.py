"""Manifests: which files of a folder count. They are for file systems where nothing can be renamed at once.

    OUTPUT/topic=…/date=…/hour=…/000000012-3f2a91c04be7-5d….parquet
    OUTPUT/_manifests/QUERY/000000012-000000012.0.json    the files of batch 12
    OUTPUT/_manifests/QUERY/000000012-000000012.0.ok      empty: the manifest is whole
    OUTPUT/_manifests/QUERY/000000012-3f2a91c04be7.begun  empty: batch 12 is being written

A file counts if a manifest names it. A manifest counts if the empty file beside it exists. No file system
shows an empty file in part, so that file is the commit. When a query has many manifests of a level, they
become one manifest of the next level, which covers the batches of all. A manifest within the range of
another one does not count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import FileSelector, FileSystem, FileType

from ..errors import TableError
from .exact_table import open_filesystem

FOLDER: Final = "_manifests"
VERSION: Final = 1
_NAME = re.compile(r"(\d{9,})-(\d{9,})\.(\d+)\.ok")
_ATTEMPTS: Final = 10


class ManifestName(NamedTuple):
    """The batches that a manifest covers. Names sort so that a manifest comes before those within it."""

    first: int
    last: int
    level: int

    @property
    def stem(self) -> str:
        return f"{self.first:09d}-{self.last:09d}.{self.level}"


def parse_name(name: str) -> ManifestName | None:
    """The manifest that the name of an empty file tells of; None for other files."""
    found = _NAME.fullmatch(name)
    return ManifestName(int(found[1]), int(found[2]), int(found[3])) if found else None


def list_folder(filesystem: Any, folder: str) -> list[Any]:
    """What is in a folder; nothing if there is no such folder."""
    return list(filesystem.get_file_info(FileSelector(folder, allow_not_found=True)))


def list_names(filesystem: Any, folder: str) -> list[ManifestName]:
    """The manifests of one query that are whole."""
    names = [parse_name(info.base_name) for info in list_folder(filesystem, folder)]
    return [name for name in names if name is not None]


def uncovered(names: Sequence[ManifestName]) -> list[ManifestName]:
    """The manifests whose batches no other one covers, in the order of their batches."""
    counting: list[ManifestName] = []
    for name in sorted(names, key=lambda each: (each.first, -each.last, -each.level)):
        if not counting or name.last > counting[-1].last:
            counting.append(name)
    return counting


def load(filesystem: Any, folder: str, name: ManifestName) -> dict[str, Any]:
    """The content of a manifest. Raises FileNotFoundError and TableError."""
    path = f"{folder}/{name.stem}.json"
    with filesystem.open_input_stream(path) as stream:
        data = stream.read()
    try:
        document = json.loads(data)
        if document["version"] != VERSION:
            raise TableError(f"{path!r} is a manifest of version {document['version']}, which is not known")
        return dict(document)
    except (ValueError, KeyError, TypeError) as error:
        raise TableError(f"{path!r} is no manifest: {error}") from None


def listed_files(location: str, filesystem: FileSystem | None = None) -> list[str]:
    """The paths of the files that count, on the file system of `location`. Raises TableError."""
    found, folder = (filesystem, location.rstrip("/")) if filesystem else open_filesystem(location)
    for _ in range(_ATTEMPTS):
        try:
            return [f"{folder}/{file['path']}" for file in _files(found, folder)]
        except FileNotFoundError:  # manifests have become one since they were listed
            continue
    raise TableError(f"{location!r}: its manifests change faster than they can be read")


def _files(filesystem: Any, folder: str) -> Iterator[dict[str, Any]]:
    for query in list_folder(filesystem, f"{folder}/{FOLDER}"):
        if query.type == FileType.Directory:
            for name in uncovered(list_names(filesystem, query.path)):
                yield from load(filesystem, query.path, name)["files"]


def dataset(location: str, filesystem: FileSystem | None = None) -> ds.Dataset:
    """The rows of an archive with manifests, for pyarrow. Raises TableError."""
    found, folder = (filesystem, location.rstrip("/")) if filesystem else open_filesystem(location)
    paths = listed_files(folder, found)
    return ds.dataset(
        paths,
        filesystem=found,
        format="parquet",
        partitioning="hive",
        partition_base_dir=folder,
        **({} if paths else {"schema": pa.schema([])}),
    )
