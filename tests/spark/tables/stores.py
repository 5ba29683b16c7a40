"""A file system where nothing can be renamed, and where the process can die at any call."""

from __future__ import annotations

from typing import Any

from pyarrow.fs import FileSelector, FileSystemHandler, LocalFileSystem, PyFileSystem


class Crash(BaseException):
    """The end of the process, as far as the code under test is concerned."""


class ObjectStore(FileSystemHandler):
    """The local disk as an object store has it: files are created, read, listed and deleted, never moved.

    `calls_left` counts the calls that change something. When none is left, the process dies.
    """

    def __init__(self, calls_left: int = -1) -> None:
        self.calls_left = calls_left
        self._disk = LocalFileSystem()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStore)

    def __hash__(self) -> int:
        return 0

    def __reduce__(self) -> Any:
        return ObjectStore, ()  # tasks on executors do not die with the driver

    def _change(self) -> None:
        if self.calls_left == 0:
            raise Crash
        self.calls_left -= 1

    def get_type_name(self) -> str:
        return "object-store"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        return self._disk.get_file_info(paths)

    def get_file_info_selector(self, selector: FileSelector) -> Any:
        return self._disk.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._disk.create_dir(path, recursive=recursive)

    def delete_file(self, path: str) -> None:
        self._change()
        self._disk.delete_file(path)

    def open_input_stream(self, path: str) -> Any:
        return self._disk.open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        return self._disk.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self._change()
        return self._disk.open_output_stream(path)

    def _refuse(self, *_: Any) -> Any:
        raise NotImplementedError("an object store cannot do this")

    move = copy_file = open_append_stream = _refuse
    delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse


def object_store(calls_left: int = -1) -> PyFileSystem:
    return PyFileSystem(ObjectStore(calls_left))
