"""A look at the data directory before anything in it is changed: whether this nsqd may serve it.

nsqd does not understand files of another version, and serves no disk queues of Go's nsqd: `nsqd.importing`
makes logs of them before, unless --import=off keeps it from that. Both are refused at the start, with
everything left as it is: to go on would be to lose it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from nsquark.diskqueue import QueueFiles, find_queues
from nsquark.errors import NsquarkError, UnknownVersion
from nsquark.log import Inspected, InspectedJournal, inspect, inspect_journal, names_in
from nsquark.names import from_file_name, is_ephemeral, is_valid_name
from nsquark.nsqd.staged import application as staged_app
from nsquark.nsqd.staged import stage_file

from . import metadata, node
from .metadata import TopicMetadata

DELETED = ".deleted."
STAGED, STATE = "staged", "app.json"
IMPORTING = "nsquark.import"  # the folder of an import that is not complete
_NAMED = 5  # of Go's queues, in the refusal


class DataRefused(NsquarkError):
    """The data directory holds what this nsqd would not serve. Nothing was changed."""


class Found(NamedTuple):
    """The content of a data directory."""

    metadata: dict[str, TopicMetadata]
    topics: dict[str, tuple[Inspected, InspectedJournal]]


def deleted_name(end: int) -> str:
    """What to rename the folder of a topic to whose log ends at the position `end`, so that it is deleted."""
    return f"{DELETED}{os.urandom(8).hex()}.{end}"


def deleted_end(name: str) -> int:
    """Where the log in such a folder ends. 0 if the name does not say: earlier versions left it out."""
    _, _, end = name.removeprefix(DELETED).partition(".")
    return int(end) if end.isascii() and end.isdigit() else 0


def inspect_data(path: Path) -> Found:
    """Everything but the staged files is read as it will be used. Raises DataRefused and BadMetadata."""
    try:
        refuse_queues(path)
        check_node_version(path)
        known = metadata.load(path / metadata.FILE_NAME)
        topics: dict[str, tuple[Inspected, InspectedJournal]] = {}
        folder = path / node.TOPICS
        for entry in sorted(os.listdir(folder)) if folder.is_dir() else ():
            name = from_file_name(entry)
            if not entry.startswith(DELETED) and is_valid_name(name) and not is_ephemeral(name):
                directory = folder / entry
                names = names_in(directory)
                topics[name] = inspect(directory, names), inspect_journal(directory, names)
        _check_staged(path / STAGED)
    except UnknownVersion as error:
        raise DataRefused(str(error)) from None
    except OSError as error:
        raise DataRefused(f"{error.filename or path} cannot be read: {error.strerror or error}") from None
    return Found(known, topics)


def check_node_version(path: Path) -> None:
    """Raises UnknownVersion if another version of nsquark has written the directory, and OSError."""
    _check_json(path / node.FILE_NAME, node.VERSION)


def _check_json(path: Path, version: int) -> None:
    """Refuse a file that says of itself that it has another version. One that does not read says nothing."""
    try:
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return
    found = document.get("version", version) if isinstance(document, dict) else version
    if path.name == node.FILE_NAME and isinstance(document, dict) and "term" in document:
        version = node.TERM_VERSION
    if found != version:
        raise UnknownVersion(str(path), f"has version {found!r}, not {version}")


def _check_staged(folder: Path) -> None:
    if not folder.is_dir():
        return
    for app in sorted(folder.iterdir()):
        if app.name.startswith(DELETED) or not app.is_dir():
            continue
        _check_json(app / STATE, staged_app.VERSION)
        for batch in app.iterdir():
            if batch.name.isdigit() and batch.is_dir():
                for stage in batch.iterdir():
                    stage_file.check_version(stage)


# ---- what Go's nsqd has left


def refuse_queues(path: Path) -> None:
    """Refuse a directory in which Go's nsqd has left messages: they would not be delivered."""
    found = [_told(queue) for queue in find_queues(path) if queue.usable and queue.unread()]
    if not found:
        return
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    raise DataRefused(
        f"{path} holds messages of Go's nsqd, which are not imported: {', '.join(found[:_NAMED])}{more}; "
        "start nsqd with --import=on, or let Go's nsqd deliver them first, or give another --data-path"
    )


def _told(queue: QueueFiles) -> str:
    """A queue with something unread, in a few words."""
    if queue.meta is None:
        lack = "which does not read" if queue.has_meta_file else "which is missing"
        return f"{queue.name} (by {queue.meta_path.name}, {lack}, all of it)"
    depth = queue.meta.depth
    return f"{queue.name} ({depth if depth > 0 else 'some'} unread)"
