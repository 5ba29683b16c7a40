"""Files that a killed run has left in the work directory: their messages are finished, so they are moved.

A file that another nsq_to_file has open is locked, and stays where it is.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from itertools import count

from .archive_file import ArchiveFile
from .encoding import Plain
from .errors import doing
from .file_name import FileNames
from .moving import is_moved, move
from .rotation import ArchiveSettings

logger = logging.getLogger(__name__)


def move_leftovers(label: str, names: FileNames, settings: ArchiveSettings) -> None:
    """Move the files with a topic's names to the output directory. Raises DiskError."""
    for name in list(_matching(names, settings)):
        path = os.path.join(settings.work_dir, name)
        with doing("open", path):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # its writer has just moved it
                continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            continue
        os.close(fd)
        _move(label, name, names, settings)


def _matching(names: FileNames, settings: ArchiveSettings) -> Iterator[str]:
    output = os.path.realpath(settings.output_dir)
    for here, directories, files in os.walk(settings.work_dir):
        # Files in an output directory below the work directory are where they belong.
        directories[:] = [
            each for each in directories if os.path.realpath(os.path.join(here, each)) != output
        ]
        for file in files:
            name = os.path.relpath(os.path.join(here, file), settings.work_dir)
            if names.pattern.fullmatch(name):
                yield name


def _move(label: str, name: str, names: FileNames, settings: ArchiveSettings) -> None:
    path = os.path.join(settings.work_dir, name)
    target = os.path.join(settings.output_dir, name)
    with doing("remove", path):
        if not os.path.getsize(path) or is_moved(path, target):
            os.unlink(path)
            return
    if not settings.compressed:
        # Opening it mends a torn last line.
        ArchiveFile(path, Plain(), exclusive=False, cut_torn_json=settings.cut_torn_json).close()
    found = names.pattern.fullmatch(name)
    assert found is not None
    revision = found[1]
    for number in count(int(revision[1:])):
        target = os.path.join(settings.output_dir, name.replace(revision, f"-{number:06d}"))
        try:
            move(path, target)
        except FileExistsError:
            continue
        logger.info("%s moved %s, which an earlier run has left, to %s", label, path, target)
        return
