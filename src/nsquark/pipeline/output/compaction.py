"""Merging the small files of a folder into one, while other programs read the folder.

A folder changes as a whole. Spark writes the rows of the small files as one file into the staging area. The
compactor makes a new folder of that file and of links to the files that stay. Then the new folder and the old
one change places in one step of the file system. A program that lists the folder sees either the small files
or the merged one. A program that has listed the folder before the step, and opens a small file after it, gets
the error that there is no such file. It never gets a wrong result.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from . import durable
from .exact_files import ExactFiles, format_suffix, spark_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

# How long after its end an hour or a day may still get messages that nsqd accepted in it.
_GRACE: Final = timedelta(minutes=10)
_GLOB = re.compile(r"[][{}*?\\]")  # Spark takes these in a path for a pattern
_FOLDER = re.compile(r"(?:.*/)?date=(\d{4}-\d{2}-\d{2})(?:/hour=(\d{2}))?")


def choose(sizes: dict[str, int], least: int, large: int) -> list[str]:
    """Which files of a folder to merge: none of `large` bytes or more, and none at all if fewer than `least`.

    A file larger than all smaller ones together waits until they have grown. So a byte is copied about as
    often as the size of its file doubles.
    """
    small = sorted((size, name) for name, size in sizes.items() if size < large)
    while len(small) > 2 and small[-1][0] > sum(size for size, _ in small[:-1]):
        small.pop()
    chosen, total = [], 0
    for size, name in small:
        chosen.append(name)
        total += size
        if total >= large:
            break
    return chosen if len(chosen) >= max(2, least) else []


def is_over(folder: str, now: datetime) -> bool:
    """Whether the hour or day in the name of a folder is over, so that no more messages are expected."""
    found = _FOLDER.fullmatch(folder)
    if found is None:
        return False
    begin = datetime.strptime(f"{found[1]} {found[2] or '00'}", "%Y-%m-%d %H").replace(tzinfo=UTC)
    return now >= begin + timedelta(hours=1 if found[2] else 24) + _GRACE


class Compactor:
    """Merges the files that an ExactFiles has written, between the batches of its query."""

    def __init__(
        self, files: ExactFiles, schema: str | StructType, order: Sequence[str], least: int, large: int
    ) -> None:
        self._files = files
        self._schema = schema
        self._order = order
        self._least = least
        self._large = large
        self._folders: set[str] = set()

    def open(self) -> bool:
        """Find the folders with several files; False if this file system cannot exchange folders."""
        if not durable.can_exchange(self._files.work):
            logger.warning("files are not merged: this file system cannot exchange folders")
            return False
        output = self._files.output
        self._folders = {
            str(Path(folder).relative_to(output)) for folder, _, names in os.walk(output) if len(names) > 1
        }
        return True

    def run(self, spark: SparkSession, touched: Iterable[str], now: datetime) -> bool:
        """Merge files of at most one folder; whether there was anything to merge."""
        self._folders |= set(touched)
        for folder in sorted(self._folders):
            over = is_over(folder, now)
            chosen = choose(self._sizes(folder), 2 if over else self._least, self._large)
            if chosen:
                self._merge(spark, folder, chosen)
                return True
            if over:
                self._folders.discard(folder)
        return False

    def _sizes(self, folder: str) -> dict[str, int]:
        with os.scandir(self._files.output / folder) as entries:
            return {
                entry.name: entry.stat().st_size
                for entry in entries
                if entry.is_file() and not entry.name.startswith((".", "_"))
            }

    def _merge(self, spark: SparkSession, folder: str, names: list[str]) -> None:
        old = self._files.output / folder
        attempt = f"merge-{uuid.uuid4().hex}"
        reader = spark.read.format(self._files.format).schema(self._schema)
        rows = reader.load([_GLOB.sub(r"\\\g<0>", spark_path(old / name)) for name in names])
        merged = self._files.write_staged(
            rows.coalesce(1).sortWithinPartitions(*self._order), f"{attempt}/spark"
        )
        new = self._files.work / "staging" / attempt / "new"
        new.mkdir()
        for path in merged:
            os.replace(path, new / f"merged-{attempt[6:14]}{format_suffix(path.name)}")
        for name in self._sizes(folder).keys() - set(names):
            os.link(old / name, new / name)
        durable.sync(new)
        durable.exchange(new, old)
        durable.sync(old.parent)
        durable.remove_tree(self._files.work / "staging" / attempt)
        logger.info("%s: %d files are one now", folder, len(names))
