"""How far an import has come, on the disk: an import that was interrupted goes on from there.

    nsquark.import/
      state.json         phase, what is done, and a checkpoint of the topic that is being built
      topics/orders/     a log and a journal that are built

The phase is `building` until every topic is built and on the disk, and `complete` from then on. Until it is
complete, nothing of Go's nsqd has been touched. From then on its files are of no use: the import moves the
topics to their place and deletes the files, however often it is interrupted.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nsquark.durable import replace_file, sync_path
from nsquark.nsqd.storage.inspection import IMPORTING, DataRefused

from .plan import FileMark, ImportPlan

FOLDER = IMPORTING
STATE, TOPICS = "state.json", "topics"
VERSION = 1


@dataclass(slots=True)
class Checkpoint:
    """How far a topic is built. Everything it speaks of is on the disk."""

    topic: str
    segment: int  # the first position of the newest segment
    segment_size: int
    journal_size: int
    numbers: dict[str, int]  # of the channels, in the journal
    places: dict[str, list[int]]  # by queue: the file and offset of its next message
    merging: bool
    ranges: int  # that the journal has
    with_attempts: dict[str, int]  # messages of each channel whose attempts are kept
    line: int | None  # where the topic's own queue begins; None: the channels' queues are not done
    old_line: int | None  # the same of the topic that nsquark had before, if its own queue was not empty
    messages: int = 0
    copies: int = 0  # messages of channels' queues, which may share one in the log


@dataclass(slots=True)
class Imported:
    """What has come of one topic."""

    topic: str
    messages: int  # in the log
    copies: int  # in the queues of the channels and of the topic


@dataclass(slots=True)
class ImportState:
    complete: bool = False
    originals: dict[str, FileMark] = field(default_factory=dict)
    existing: dict[str, list[list[int | str]]] = field(default_factory=dict)  # files of topics of nsquark
    metadata: str = ""  # the name of the file with the topics and channels
    done: list[Imported] = field(default_factory=list)
    checkpoint: Checkpoint | None = None

    def fits(self, plan: ImportPlan) -> bool:
        """Whether the directory is still the one that this import was begun with."""
        return (
            self.originals == plan.originals
            and self.existing == plan.marks_of_topics()
            and self.metadata == plan.metadata_path.name
        )


def load(data_path: Path) -> ImportState | None:
    """None if no import was begun. Raises DataRefused if what it has left does not read, and OSError."""
    path = data_path / FOLDER / STATE
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        known = json.loads(text)
        if known["version"] != VERSION:
            raise DataRefused(f"{path} has version {known['version']!r}, not {VERSION}")
        checkpoint = known["checkpoint"]
        return ImportState(
            known["complete"],
            known["originals"],
            known["existing"],
            known["metadata"],
            [Imported(**each) for each in known["done"]],
            None if checkpoint is None else Checkpoint(**checkpoint),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataRefused(f"{path} does not read ({error!r}): move {path.parent} elsewhere") from None


def save(data_path: Path, state: ImportState) -> None:
    """The disk holds it when this returns. Raises OSError."""
    path = data_path / FOLDER / STATE
    document = json.dumps({"version": VERSION, **asdict(state)})
    replace_file(path, document.encode(), path.with_name(STATE + ".tmp"), 0o600)


def begin(data_path: Path, plan: ImportPlan) -> ImportState:
    """Begin an import anew; what an earlier one has left is deleted. Raises OSError."""
    remove(data_path)
    (data_path / FOLDER / TOPICS).mkdir(parents=True, mode=0o700)
    state = ImportState(False, plan.originals, plan.marks_of_topics(), plan.metadata_path.name, [], None)
    save(data_path, state)
    sync_path(data_path)
    return state


def remove(data_path: Path) -> None:
    """Delete the folder; the state goes last, so that whatever is left is known to be of an import."""
    folder = data_path / FOLDER
    if not folder.is_dir():
        return
    shutil.rmtree(folder / TOPICS, ignore_errors=True)
    (folder / (STATE + ".tmp")).unlink(missing_ok=True)
    (folder / STATE).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    sync_path(data_path)
