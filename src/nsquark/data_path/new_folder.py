"""A folder that is there as a whole or not at all: what backups and exports write to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nsquark.durable import sync_path
from nsquark.errors import NsquarkError
from nsquark.nsqd.storage.inspection import IMPORTING, refuse_queues

from .check import require_data_path

PARTIAL = ".partial"


@contextmanager
def new_folder(data_path: Path, target: Path, what: str, failed: type[NsquarkError]) -> Iterator[Path]:
    """A folder to write a copy (`what`) of `data_path` to. It becomes `target` when the block ends well.

    The block has the disk hold what it writes. Raises `failed`, NotADataPath, OSError, and DataRefused for
    messages of Go's nsqd that are not imported yet: a copy would not have them. `target` does not exist then.
    """
    require_data_path(data_path)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise failed(f"{target} exists already")
    if data_path.resolve() in (target.resolve(), *target.resolve().parents):
        raise failed(f"{target} lies within {data_path}")
    if (data_path / IMPORTING).exists():
        raise failed(f"{data_path / IMPORTING} is there: start nsqd once, so that its import is complete")
    refuse_queues(data_path)
    partial = target.with_name(target.name + PARTIAL)
    if partial.exists():
        raise failed(f"{partial} is there: another {what} is running or was interrupted; delete it first")
    partial.mkdir(parents=True, mode=0o700)
    try:
        yield partial
        os.replace(partial, target)
        sync_path(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
