"""The error that ends nsq_to_file, and how an error of the system becomes one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nsquark.cli.flags import StartError
from nsquark.errors import NsquarkError
from nsquark.gotext import format_os_error


class DiskError(NsquarkError):
    """A file could not be opened, written, synced, closed or moved."""

    def __init__(self, text: str, errno: int | None = None) -> None:
        super().__init__(text)
        self.errno = errno


class Fatal(StartError):
    """nsq_to_file cannot go on: a FATAL line in the form of its log, exit code 1."""

    def __init__(self, text: str, log_prefix: str) -> None:
        super().__init__(text)
        self.log_prefix = log_prefix

    def for_stderr(self, log_prefix: str, now: float) -> str:
        return super().for_stderr(self.log_prefix, now)


@contextmanager
def doing(work: str, path: str) -> Iterator[None]:
    """Turn an OSError into a DiskError that says what failed, and on which file."""
    try:
        yield
    except FileExistsError:
        raise  # callers look for it
    except OSError as error:
        raise DiskError(f"{work} {path}: {format_os_error(error)}", error.errno) from error
