"""The archive as a place for objects: anything that pyarrow.fs opens by a URL.

Every method may wait for a network, and for ever: only daemon threads call them. The URL
holds no secret. Credentials come from where the file system's own library looks for them: the environment,
a file of the user, the role of the machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from nsquark.durable import sync_path, write_all
from nsquark.errors import ArchiveAway

PIECE = 1 << 20
TEMPORARY = ".tmp"  # behind the names of files that are being written
SCHEMES = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
_TEMPORARY_NAME = re.compile(r"\.[0-9a-f]{8}" + re.escape(TEMPORARY))
_WITH_FOLDERS = ("local", "hdfs")  # file systems in which the folder of a file must be made
_SECRET = re.compile("secret|key|token|pass|pwd|credential|sig", re.IGNORECASE)


class ObjectStore:
    """The objects below a URL, each by its key: names with slashes between them."""

    def __init__(self, url: str) -> None:
        """Raises ValueError for a URL that no archive has, and where pyarrow is missing."""
        self.url = url
        check_url(url)
        try:
            import pyarrow.fs
        except ImportError as error:
            raise ValueError(f"it needs pyarrow: pip install 'nsquark[archive]' ({error})") from None
        self._failures = (OSError, pyarrow.lib.ArrowException)
        self._lock = threading.Lock()
        self._opened: tuple[Any, str] | None = None

    def _open(self) -> tuple[Any, str]:
        """The file system, and the path of the archive in it. It may ask a network for that."""
        from pyarrow.fs import FileSystem

        with self._lock:
            if self._opened is None:
                files, path = FileSystem.from_uri(self.url)
                self._opened = files, path.rstrip("/")
            return self._opened

    def put(self, key: str, fd: int, start: int, stop: int, crc: int, first: bool = True) -> None:
        """Have an object with the bytes [start, stop) of a file; returns when the store gives them back.

        An object that is there with these bytes stays as it is. If it is not the `first` of its node, a file
        system must have the node's folder: where that is missing, the archive is not mounted. Raises
        ArchiveAway.
        """
        try:
            files, root = self._open()
            if not first:
                _require_folder(files, root, key)
            path = f"{root}/{key}"
            if self._reads_as(files, path, stop - start, crc):
                if files.type_name == "local":  # an earlier process may have been killed before it did this
                    _sync_local(root, path)
                return
            if files.type_name in _WITH_FOLDERS:
                self._write_file(files, root, path, fd, start, stop)
            else:
                _write(files, path, fd, start, stop)
            if not self._reads_as(files, path, stop - start, crc):
                raise ArchiveAway(f"{key} does not read back as it was written")
        except self._failures as error:
            raise _away(error) from None

    @staticmethod
    def _write_file(files: Any, root: str, path: str, fd: int, start: int, stop: int) -> None:
        """Have a file with these bytes, whole from the moment it has its name.

        Two members of a replica group may be at it for a moment, each taking itself for the primary. The
        later one then replaces the file with the same bytes, and never has it shorter: the earlier one may
        have deleted its own copy.
        """
        temporary = f"{path}.{os.urandom(4).hex()}{TEMPORARY}"
        files.create_dir(str(PurePosixPath(path).parent), recursive=True)
        try:
            _write(files, temporary, fd, start, stop)
            if files.type_name == "local":
                sync_path(PurePosixPath(temporary))  # type: ignore[arg-type]
            elif _is_file(files, path):
                files.delete_file(path)  # one that is not whole: HDFS replaces none
            files.move(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                files.delete_file(temporary)
            raise
        if files.type_name == "local":
            _sync_local(root, path)

    def delete(self, key: str) -> None:
        """Have no object of this name; it need not be there. Raises ArchiveAway."""
        try:
            files, root = self._open()
            path = f"{root}/{key}"
            if _is_file(files, path):
                files.delete_file(path)
                if _is_file(files, path):
                    raise ArchiveAway(f"{key} is still there after it was deleted")
            else:
                _require_folder(files, root, key)
        except self._failures as error:
            raise _away(error) from None

    def get(self, key: str, size: int, crc: int, fd: int) -> None:
        """Write the bytes of an object to a file, from where that stands.

        Raises ArchiveAway, and OSError if the file cannot be written.
        """
        found = 0
        for piece in self._pieces(key, size):
            found = zlib.crc32(piece, found)
            write_all(fd, piece)
        if found != crc:
            raise ArchiveAway(f"{key} is damaged: its CRC is {found:08x}, not {crc:08x}")

    def _pieces(self, key: str, size: int) -> Iterator[bytes]:
        """The bytes of an object, which must be so many. Raises ArchiveAway."""
        try:
            files, root = self._open()
            with files.open_input_file(f"{root}/{key}") as stream:
                if stream.size() != size:
                    raise ArchiveAway(f"{key} has {stream.size()} bytes, not {size}")
                while piece := stream.read(PIECE):
                    yield piece
        except self._failures as error:
            raise _away(error) from None

    @staticmethod
    def _reads_as(files: Any, path: str, size: int, crc: int) -> bool:
        """Whether an object is there and has these bytes. All of it is read."""
        from pyarrow.fs import FileType

        info = files.get_file_info(path)
        if info.type != FileType.File or info.size != size:
            return False
        found = 0
        with files.open_input_stream(path, compression=None) as stream:
            while piece := stream.read(PIECE):
                found = zlib.crc32(piece, found)
        return found == crc


def _write(files: Any, path: str, fd: int, start: int, stop: int) -> None:
    with files.open_output_stream(path, compression=None) as stream:
        for piece in read_pieces(fd, start, stop):
            stream.write(piece)


def _is_file(files: Any, path: str) -> bool:
    from pyarrow.fs import FileType

    return bool(files.get_file_info(path).type == FileType.File)


def _require_folder(files: Any, root: str, key: str) -> None:
    """Raises ArchiveAway if a file system has no folder of the node of this object."""
    from pyarrow.fs import FileType

    if files.type_name in _WITH_FOLDERS:
        folder = f"{root}/{key.partition('/')[0]}"
        if files.get_file_info(folder).type != FileType.Directory:
            raise ArchiveAway(f"{folder} is no folder: it was one, so the archive seems not to be mounted")


def check_url(url: str) -> None:
    """Raises ValueError unless this is the URL of an archive, without a secret in it. It is not told."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError("--archive-url is no URL") from None
    if parts.scheme not in SCHEMES:
        raise ValueError(
            f"--archive-url must begin with one of {', '.join(each + '://' for each in SCHEMES)}"
        )
    if parts.scheme == "file" and parts.netloc:
        raise ValueError("--archive-url of a folder begins with file:///, and with the folder's full path")
    query = parse_qsl(parts.query, keep_blank_values=True)
    if ":" in parts.netloc.rpartition("@")[0] or any(
        _SECRET.search(name) or "@" in value for name, value in query
    ):
        raise ValueError("--archive-url must not hold credentials: nsqd shows it, and tells it to readers")
    if not (parts.path.strip("/") or parts.netloc):
        raise ValueError("--archive-url names no folder or bucket")


def read_pieces(fd: int, start: int, stop: int) -> Iterator[bytes]:
    """The bytes [start, stop) of a file. Raises OSError."""
    while start < stop:
        piece = os.pread(fd, min(PIECE, stop - start), start)
        if not piece:
            raise OSError("the segment is shorter than it was")
        start += len(piece)
        yield piece


def _sync_local(root: str, path: str) -> None:
    """Have the disk hold a file, and the folders above it, which may be new. Raises OSError."""
    sync_path(PurePosixPath(path))  # type: ignore[arg-type]
    for folder in PurePosixPath(path).parents:
        if len(str(folder)) >= len(root):
            sync_path(folder)  # type: ignore[arg-type]
        else:  # nsqd may have no right to open these
            with contextlib.suppress(OSError):
                sync_path(folder)  # type: ignore[arg-type]


def _away(error: BaseException) -> ArchiveAway:
    """The same reason for the same failure, whatever the name of a temporary file: it is logged once."""
    if isinstance(error, ArchiveAway):
        return error
    return ArchiveAway(_TEMPORARY_NAME.sub(TEMPORARY, " ".join(str(error).split()))[:500])
