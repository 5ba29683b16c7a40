"""A look at the data directory before anything in it is changed: whether this nsqd may serve it.

What another version has written is not understood, and what Go's nsqd has left on disk would not be read.
Both are refused at the start, with everything left as it is: to go on would be to lose it.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import NamedTuple

from nsquark.errors import NsquarkError, UnknownVersion
from nsquark.log import Inspected, InspectedJournal, inspect, inspect_journal
from nsquark.names import from_file_name, is_ephemeral, is_valid_name
from nsquark.nsqd.staged import application as staged_app
from nsquark.nsqd.staged import stage_file

from . import metadata, node
from .metadata import TopicMetadata

DELETED = ".deleted."
STAGED, STATE = "staged", "app.json"
_QUEUE = re.compile(r"(?P<name>.+)\.diskqueue\.(?P<part>meta|\d{6,})\.dat")
_META = re.compile(rb"(-?\d+)\n(\d+),(\d+)\n(\d+),(\d+)\n")
_NAMED = 5  # of Go's queues, in the refusal


class DataRefused(NsquarkError):
    """The data directory holds what this nsqd would not serve. Nothing was changed."""


class Found(NamedTuple):
    """What is in a data directory."""

    metadata: dict[str, TopicMetadata]
    topics: dict[str, tuple[Inspected, InspectedJournal]]


def inspect_data(path: Path) -> Found:
    """Everything but the staged files is read as it will be used. Raises DataRefused and BadMetadata."""
    try:
        _refuse_queues(path)
        _check_json(path / node.FILE_NAME, node.VERSION)
        known = metadata.load(path / metadata.FILE_NAME)
        topics: dict[str, tuple[Inspected, InspectedJournal]] = {}
        folder = path / node.TOPICS
        for entry in sorted(os.listdir(folder)) if folder.is_dir() else ():
            name = from_file_name(entry)
            if not entry.startswith(DELETED) and is_valid_name(name) and not is_ephemeral(name):
                topics[name] = inspect(folder / entry), inspect_journal(folder / entry)
        _check_staged(path / STAGED)
    except UnknownVersion as error:
        raise DataRefused(str(error)) from None
    except OSError as error:
        raise DataRefused(f"{error.filename or path} cannot be read: {error.strerror or error}") from None
    return Found(known, topics)


def _check_json(path: Path, version: int) -> None:
    """Refuse a file that says of itself that it has another version. One that does not read says nothing."""
    try:
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return
    found = document.get("version", version) if isinstance(document, dict) else version
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


def _refuse_queues(path: Path) -> None:
    """Refuse a directory in which Go's nsqd has left messages: they would not be delivered."""
    queues: dict[str, dict[str, Path]] = {}
    for entry in os.listdir(path):
        match = _QUEUE.fullmatch(entry)
        if match is not None:
            queues.setdefault(match["name"], {})[match["part"]] = path / entry
    found = [told for name, parts in sorted(queues.items()) if (told := _unread(name, parts))]
    if not found:
        return
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    ours = [each for each in (node.FILE_NAME, node.TOPICS) if (path / each).exists()]
    beside = f", beside nsquark's own {' and '.join(ours)}" if ours else ""
    raise DataRefused(
        f"{path} holds messages of Go's nsqd, which nsquark does not read: "
        f"{', '.join(found[:_NAMED])}{more}{beside}; let Go's nsqd deliver or empty them first, "
        "or move *.diskqueue.* elsewhere, or give another --data-path"
    )


def _unread(name: str, parts: dict[str, Path]) -> str:
    """What of a disk queue has not been read, in a few words; nothing if all of it has."""
    data = {int(part): path for part, path in parts.items() if part != "meta"}
    meta = parts.get("meta")
    if meta is None:
        sizes = sum(os.stat(each).st_size for each in data.values())
        return f"{data[min(data)].name} (without {name}.diskqueue.meta.dat)" if sizes else ""
    match = _META.fullmatch(meta.read_bytes())
    if match is None:
        return f"{meta.name} (which does not read)"
    depth, read_file, read_at, write_file, write_at = map(int, match.groups())
    # Behind where the metadata say that the writer was, there is what it wrote before it crashed.
    sizes = sum(os.stat(each).st_size for number, each in data.items() if number >= write_file)
    if depth > 0 or (read_file, read_at) != (write_file, write_at) or sizes > write_at:
        return f"{meta.name} ({depth if depth > 0 else 'some'} unread)"
    return ""
