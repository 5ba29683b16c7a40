"""The batches of a query as plain files: a program that lists the folder sees no row twice.

Spark writes a batch into a staging folder within the checkpoint, which no reader looks at. Then a plan is
synced to `batch.json`: which staged file gets which name in the output. With the plan the batch is decided,
and its files are renamed into place. After a crash the next start does the renames that are missing, before
anything else. A batch without a plan is thrown away and written again. So every file with a final name is a
whole file of a decided batch. A batch that Spark replays finds its plan, and has nothing to do.

    CHECKPOINT/files/batch.json     the plan of the last batch
    CHECKPOINT/files/staging/…      what Spark writes, a folder for each attempt
    OUTPUT/.last_batch              the number of the last batch, to tell a checkpoint that was set back
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nsquark.cli.flags import StartError
from nsquark.gotext import format_os_error
from nsquark.spark.errors import OldCheckpoint

from . import durable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Spark's names: part-00000-<uuid>.c000.snappy.parquet, part-00000-<uuid>-c000.json
_SUFFIX = re.compile(r"part-.*?[.-]c\d{3}(\..+)")


class Plan(NamedTuple):
    """The files of a batch: the name of each in its staging folder, and its name in the output."""

    name: str  # of this query, different from that of any other query that wrote to the output
    batch: int
    staged: str  # the staging folder
    moves: list[list[str]]


class ExactFiles:
    """The output folder of one query."""

    def __init__(
        self,
        output: Path,
        checkpoint: Path,
        format: str,
        partitions: Sequence[str] = (),
        format_options: Mapping[str, str] | None = None,
    ) -> None:
        self.output = output
        self.format = format
        self.work = checkpoint / "files"
        self._staging = self.work / "staging"
        self._plan_path = self.work / "batch.json"
        self._last_path = output / ".last_batch"
        self._partitions = list(partitions)
        self._options = dict(format_options or {})
        self._lock = -1
        self._plan: Plan | None = None

    def open(self) -> None:
        """Lock the output, and finish the batch that a crash has interrupted. Raises StartError."""
        try:
            durable.make_folder(self.output)
            durable.make_folder(self.work)
            self._lock_output()
            if self.output.stat().st_dev != self.work.stat().st_dev:
                raise StartError(
                    f"--checkpoint: {str(self.work.parent)!r} is not on the file system of --output, "
                    "so files cannot be moved from one to the other at once"
                )
            self._plan = self._load_plan()
            if self._plan is not None:
                self._check_age(self._plan)
                self._carry_out(self._plan)
            durable.remove_tree(self._staging)
        except OSError as error:
            self.close()
            raise StartError(f"--output: {str(self.output)!r}: {format_os_error(error)}") from None
        except StartError:
            self.close()
            raise

    def close(self) -> None:
        """Unlock the output."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _lock_output(self) -> None:
        self._lock = os.open(self.output, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError(f"--output: another process writes to {str(self.output)!r}") from None

    def write(self, frame: DataFrame, batch: int) -> list[str]:
        """Write a batch, unless it is written; the folders of the output that have got files of it."""
        plan = self._plan
        if plan is not None and batch < plan.batch:
            raise OldCheckpoint(
                f"batch {batch} was written long ago, the last one was {plan.batch}: "
                f"the checkpoint is older than the files in {str(self.output)!r}"
            )
        if plan is None or batch > plan.batch:
            plan = self._stage(frame, batch, plan.name if plan is not None else uuid.uuid4().hex[:8])
        self._carry_out(plan)
        durable.remove_tree(self._staging)
        return sorted({os.path.dirname(final) for _, final in plan.moves})

    def write_staged(self, frame: DataFrame, name: str, partitions: Sequence[str] = ()) -> list[Path]:
        """Let Spark write into a folder of the staging area; the files that hold rows. They are synced."""
        folder = self._staging / name
        writer = frame.write.format(self.format).options(**self._options)
        if partitions:
            writer = writer.partitionBy(*partitions)
        writer.save(spark_path(folder))
        files = [
            path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.name.startswith((".", "_")) and not self._is_empty(path)
        ]
        for path in files:
            durable.sync(path)
        return files

    def _is_empty(self, path: Path) -> bool:
        """Whether a file has no rows. Spark writes such a file for a batch without rows."""
        if self.format == "parquet":
            import pyarrow.parquet as pq

            return bool(pq.read_metadata(path).num_rows == 0)
        return path.stat().st_size == 0

    def _stage(self, frame: DataFrame, batch: int, name: str) -> Plan:
        attempt = uuid.uuid4().hex
        folder = self._staging / attempt
        moves = []
        for number, path in enumerate(self.write_staged(frame, attempt, self._partitions)):
            where = path.relative_to(folder)
            final = where.with_name(f"{batch:09d}-{name}-{number:04d}{format_suffix(path.name)}")
            moves.append([str(where), str(final)])
        plan = Plan(name, batch, attempt, moves)
        durable.replace_text(self._plan_path, json.dumps(plan._asdict()))
        self._plan = plan
        return plan

    def _check_age(self, plan: Plan) -> None:
        """Refuse a checkpoint that was set back as a whole, such as one from a backup. Raises StartError."""
        try:
            last = json.loads(self._last_path.read_text())
            age = last["batch"] - plan.batch if last["name"] == plan.name else 0
        except FileNotFoundError:
            return
        except (ValueError, TypeError, KeyError) as error:
            raise StartError(f"--output: {str(self._last_path)!r} cannot be read: {error!r}") from None
        if age > 0:
            raise StartError(
                f"--checkpoint: {str(self.work.parent)!r} is {age} batches older than the files in "
                f"{str(self.output)!r}, and would write their messages again"
            )

    def _carry_out(self, plan: Plan) -> None:
        durable.replace_text(self._last_path, json.dumps({"name": plan.name, "batch": plan.batch}))
        folders = set()
        for staged, final in plan.moves:
            target = self.output / final
            durable.make_folder(target.parent)
            # A file that is not in the staging folder was renamed before, and may have been merged since.
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._staging / plan.staged / staged, target)
                folders.add(target.parent)
        for folder in folders:
            durable.sync(folder)

    def _load_plan(self) -> Plan | None:
        try:
            document: dict[str, Any] = json.loads(self._plan_path.read_text())
            return Plan(**document)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise StartError(f"--checkpoint: {str(self._plan_path)!r} cannot be read: {error}") from None


def spark_path(path: Path) -> str:
    """A path as Spark wants it. The scheme is needed, since Spark may have another default file system."""
    return f"file://{path}"


def format_suffix(name: str) -> str:
    """The end of a file's name that tells its format: `.snappy.parquet`."""
    found = _SUFFIX.fullmatch(name)
    return found[1] if found else "".join(Path(name).suffixes)
