"""The files of the node itself: nsqd.dat, nsquark.dat, and what applications have staged."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

from nsquark.diskqueue import find_queues
from nsquark.durable import replace_file
from nsquark.errors import UnknownVersion
from nsquark.names import from_file_name
from nsquark.nsqd.staged import application, stage_file
from nsquark.nsqd.storage import metadata, node
from nsquark.nsqd.storage.inspection import DELETED, IMPORTING, STAGED, STATE
from nsquark.nsqd.storage.metadata import BadMetadata, TopicMetadata

from .findings import Aside, Level, Report

_PIECE = 1 << 20


def check_metadata(report: Report) -> dict[str, TopicMetadata] | None:
    """The topics and channels that nsqd.dat names; None if it does not read or is not there."""
    path = report.data_path / metadata.FILE_NAME
    if not path.exists():
        return None
    try:
        return metadata.load(path)
    except BadMetadata as error:
        text = f"{error}; nsqd does not start. Without the file, pauses and max_attempts of channels are lost"
        report.add(Level.ERROR, path, text, lambda aside: aside.move(path))
        return None


def check_go_queues(report: Report) -> None:
    """Tell of messages that Go's nsqd has left, and of an import of them that was interrupted."""
    for queue in find_queues(report.data_path):
        if queue.usable and queue.unread():
            what = f"holds {queue.unread_bytes()} bytes of messages of Go's nsqd"
            text = f"{what}: a start with --import=on takes them over"
            report.add(Level.NOTE, queue.meta_path.with_name(f"{queue.name}.diskqueue.*"), text)
    importing = report.data_path / IMPORTING
    if importing.exists():
        report.add(Level.NOTE, importing, "an import was interrupted: a start goes on with it")


def check_node(report: Report, blocks: int, end: int) -> None:
    """Check nsquark.dat against the logs: no id and no position may ever be given twice.

    `blocks` is behind the last block that a message has its id from; `end` is behind the last position.
    """
    path = report.data_path / node.FILE_NAME
    if not path.exists():
        if end:
            text = "is missing, and there are logs: the node gets another identity"
            report.add(Level.ERROR, path, text, partial(_write_node, path, blocks, end))
        return
    try:
        known = json.loads(path.read_bytes())
        expected = node.TERM_VERSION if "term" in known else node.VERSION
        if known.get("version", expected) != expected:
            report.add(Level.ERROR, path, f"has version {known['version']!r}, not {node.VERSION}")
            return
        _, given, _, _ = node.parse(path.read_bytes())
    except node.UNREADABLE as error:
        text = f"does not read ({error!r}): the node gets another identity"
        report.add(Level.ERROR, path, text, partial(_replace_node, path, blocks, end))
        return
    if given < blocks:
        text = f"says that ids of block {given} are free, and the logs have ids of block {blocks - 1}"
        report.add(
            Level.ERROR, path, text + ": ids would be given twice", partial(_raise_blocks, path, blocks)
        )


def _replace_node(path: Path, blocks: int, end: int, aside: Aside) -> str:
    moved = aside.move(path)
    return f"{moved}; {_write_node(path, blocks, end, aside)}"


def _write_node(path: Path, blocks: int, end: int, aside: Aside) -> str:
    name = os.urandom(16).hex()
    node.write_atomically(path, node.pack(name, blocks, end))
    return f"written anew, behind all ids and positions of the logs, for node {name}"


def _raise_blocks(path: Path, blocks: int, aside: Aside) -> str:
    old = path.read_bytes()
    name, _, floor, term = node.parse(old)
    copy = aside.folder / path.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    replace_file(copy, old, copy.with_name(copy.name + ".tmp"), 0o600)
    node.write_atomically(path, node.pack(name, blocks, floor, term))
    return f"blocks raised to {blocks}; the old file is in {copy}"


def check_staged(report: Report) -> None:
    """Check what applications have put aside for publishing. Raises OSError."""
    folder = report.data_path / STAGED
    for app in sorted(folder.iterdir()) if folder.is_dir() else ():
        if app.name.startswith(DELETED) or not app.is_dir():
            continue
        _check_state(report, app / STATE, from_file_name(app.name))
        for batch in sorted(app.iterdir()):
            if batch.name.isdigit() and batch.is_dir():
                for stage in sorted(batch.iterdir()):
                    _check_stage(report, stage)


def _check_state(report: Report, path: Path, app: str) -> None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    try:
        version = json.loads(data).get("version", application.VERSION)
        if version != application.VERSION:
            report.add(Level.ERROR, path, f"has version {version!r}, not {application.VERSION}")
        else:
            application.parse_state(data)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        text = (
            f"does not read ({error!r}), and nsqd does not start. Without the file it is not known which"
            f" batches of {app} were published: a batch that is published again comes twice"
        )
        report.add(Level.ERROR, path, text, lambda aside: aside.move(path))


def _check_stage(report: Report, path: Path) -> None:
    report.bytes_read += (size := path.stat().st_size)
    if path.name.startswith("."):
        report.add(Level.NOTE, path, "was not finished: a start passes it over")
        return
    offset = 0
    try:
        stage_file.check_version(path)
        while offset < size:
            _, offset = stage_file.read(path, offset, size, _PIECE)
    except UnknownVersion as error:
        report.add(Level.ERROR, path, str(error))
    except stage_file.BadStage:
        text = f"is not whole behind offset {offset}: its batch must be staged again"
        report.add(Level.ERROR, path, text, lambda aside: aside.move(path))
