"""Commits by manifest: the last step is to create an empty file. See `manifests` for the files."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType

from ..errors import TableError
from .data_files import open_new, sync_local
from .exact_table import Batch, Committed, open_filesystem
from .manifests import FOLDER, VERSION, ManifestName, list_folder, list_names, load, uncovered

logger = logging.getLogger(__name__)

FANOUT: Final = 100  # so many manifests of a level become one of the next level
# When a batch that was begun is taken for dead. An older driver may still be about to commit it until then.
_DEAD_AFTER: Final = timedelta(days=1)
_BEGUN: Final = ".begun"


class ManifestCommits:
    """A folder of Parquet files on any file system of `pyarrow.fs`."""

    def __init__(self, location: str, filesystem: FileSystem | None = None) -> None:
        """With a file system, `location` is a path on it. Without one, it is a URI or an absolute path."""
        if filesystem is None:
            self.filesystem, self.folder = open_filesystem(location)
        else:
            self.filesystem, self.folder = filesystem, location.rstrip("/")
        self._names: list[ManifestName] = []
        self._begun = ""

    def open(self, schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
        return pa.schema([each for each in schema if each.name not in partition_by])

    def last(self, query: str) -> Committed | None:
        there = list_names(self.filesystem, self._folder_of(query))
        self._names = uncovered(there)
        for name in set(there) - set(self._names):  # a crash came while they became one
            self._delete_manifest(query, name)
        self._remove_dead_batches(query, datetime.now(UTC))
        if not self._names:
            return None
        document = load(self.filesystem, self._folder_of(query), self._names[-1])
        return Committed(self._names[-1].last, document["digest"])

    def begin(self, query: str, name: str) -> None:
        self._begun = f"{self._folder_of(query)}/{name}{_BEGUN}"
        self._create(self._begun, b"")

    def commit(self, batch: Batch) -> None:
        name = ManifestName(batch.number, batch.number, 0)
        marker = f"{self._folder_of(batch.query)}/{name.stem}.ok"
        if self.filesystem.get_file_info(marker).type != FileType.NotFound:
            raise TableError(f"{marker!r} exists: another driver has written batch {batch.number}")
        files = [{"path": each.path, "bytes": each.bytes, "rows": each.rows} for each in batch.files]
        self._write(batch.query, name, {"digest": batch.digest, "files": files})
        self._names.append(name)
        self._delete(self._begun)
        self._merge(batch.query, 0)

    def _merge(self, query: str, level: int) -> None:
        """Let the manifests of a level become one of the next level, if there are enough of them."""
        folder = self._folder_of(query)
        small = [name for name in self._names if name.level == level]
        if len(small) < FANOUT:
            return
        documents = [load(self.filesystem, folder, name) for name in small]
        merged = ManifestName(small[0].first, small[-1].last, level + 1)
        files = [file for document in documents for file in document["files"]]
        self._write(query, merged, {"digest": documents[-1]["digest"], "files": files})
        self._names = [name for name in self._names if name not in small] + [merged]
        self._names.sort()
        for name in small:
            self._delete_manifest(query, name)
        self._merge(query, level + 1)

    def _delete_manifest(self, query: str, name: ManifestName) -> None:
        """Delete the empty file first: without it, the manifest does not count."""
        for suffix in ("ok", "json"):
            self._delete(f"{self._folder_of(query)}/{name.stem}.{suffix}")

    def _write(self, query: str, name: ManifestName, content: dict[str, Any]) -> None:
        path = f"{self._folder_of(query)}/{name.stem}"
        document = {"version": VERSION, "query": query, "first": name.first, "last": name.last, **content}
        self._create(f"{path}.json", json.dumps(document, separators=(",", ":")).encode())
        self._create(f"{path}.ok", b"")

    def _create(self, path: str, data: bytes) -> None:
        with open_new(self.filesystem, path) as stream:
            stream.write(data)
        sync_local(self.filesystem, self.folder, path.removeprefix(f"{self.folder}/"))

    def _delete(self, path: str) -> None:
        with contextlib.suppress(OSError):  # the next start, or the next merge, does not need it
            self.filesystem.delete_file(path)

    def _folder_of(self, query: str) -> str:
        return f"{self.folder}/{FOLDER}/{query}"

    def _remove_dead_batches(self, query: str, now: datetime) -> None:
        """Remove the files of batches that were begun long ago and that no commit names."""
        dead = {
            info.base_name.removesuffix(_BEGUN): info.path
            for info in list_folder(self.filesystem, self._folder_of(query))
            if info.base_name.endswith(_BEGUN) and info.mtime is not None and now - info.mtime > _DEAD_AFTER
        }
        if not dead:
            return
        counting = {
            file["path"]
            for name in self._names
            for file in load(self.filesystem, self._folder_of(query), name)["files"]
        }
        removed = 0
        for info in self.filesystem.get_file_info(FileSelector(self.folder, recursive=True)):
            path = info.path.removeprefix(f"{self.folder}/")
            if info.base_name.rpartition("-")[0] in dead and path not in counting:
                self._delete(info.path)
                removed += 1
        for path in dead.values():
            self._delete(path)
        logger.info("%s: removed %d files of batches that were never committed", self.folder, removed)
