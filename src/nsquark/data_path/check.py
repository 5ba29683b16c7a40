"""`nsquark check`: every file of a data directory, read-only. A repair moves aside and never deletes."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from nsquark.errors import NsquarkError
from nsquark.names import from_file_name, is_ephemeral, is_valid_name, to_file_name
from nsquark.nsqd.storage import node
from nsquark.nsqd.storage.inspection import DELETED

from .findings import Aside, Level, Report, TopicSummary
from .journals import check_journal
from .node_files import check_go_queues, check_metadata, check_node, check_staged
from .segments import check_segments

Progress = Callable[[str, int], None]
"""Called with the topic that is next and the bytes of its segments."""


class NotADataPath(NsquarkError):
    """There is nothing to check, or no way to."""


def check(data_path: Path, progress: Progress | None = None) -> Report:
    """Read everything in a data directory and compare it with the rest. Changes nothing.

    Raises NotADataPath, and OSError for a file that cannot be read.
    """
    require_data_path(data_path)
    report = Report(data_path, in_use=_is_locked(data_path))
    if report.in_use:
        text = "an nsqd is using this directory: what it writes just now may show as torn"
        report.add(Level.NOTE, data_path, text)
    check_go_queues(report)
    named = check_metadata(report)
    blocks, end = 0, 0
    for directory in topic_directories(data_path):
        name = from_file_name(directory.name)
        summary = TopicSummary(name, directory)
        if progress is not None:
            progress(name, sum(each.stat().st_size for each in directory.glob("*.log")))
        try:
            log = check_segments(report, summary)
            topic = (named or {}).get(name)
            check_journal(report, summary, log, None if topic is None else set(topic.channels))
        except FileNotFoundError as error:
            if not report.in_use:
                raise
            report.add(Level.NOTE, directory, f"changed while it was read: {error.filename} is gone")
            continue
        report.topics.append(summary)
        blocks, end = max(blocks, log.blocks), max(end, log.end)
    taken_over = any((data_path / each).exists() for each in (node.FILE_NAME, node.TOPICS))
    for name in (named or ()) if taken_over else ():  # else it is Go's nsqd's: it has no files of topics
        if not (data_path / node.TOPICS / to_file_name(name)).is_dir():
            text = f"topic {name}, which nsqd.dat names, has no files"
            report.add(Level.ERROR, data_path / node.TOPICS / to_file_name(name), text)
    check_node(report, blocks, end)
    check_staged(report)
    return report


def repair(report: Report) -> Aside:
    """Do what can be done about the findings of a report, and note in each what that was.

    Raises NotADataPath while an nsqd uses the directory, and OSError.
    """
    lock = os.open(report.data_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise NotADataPath(f"{report.data_path} is in use by an nsqd: stop it before a repair") from None
        aside = Aside(report.data_path, time.strftime("aside-%Y%m%dT%H%M%SZ", time.gmtime()))
        for finding in report.findings:
            if finding.repair is not None:
                finding.repaired = finding.repair(aside)
        return aside
    finally:
        os.close(lock)


def require_data_path(path: Path) -> None:
    """Raises NotADataPath unless nsqd has data there."""
    if not path.is_dir():
        raise NotADataPath(f"{path} is no directory")
    if not any((path / each).exists() for each in ("nsqd.dat", node.FILE_NAME, node.TOPICS)):
        raise NotADataPath(f"{path} holds no data of nsqd: no nsqd.dat, {node.FILE_NAME} or {node.TOPICS}/")


def _is_locked(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def topic_directories(data_path: Path) -> list[Path]:
    folder = data_path / node.TOPICS
    found = []
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        name = from_file_name(entry.name)
        if entry.is_dir() and not entry.name.startswith(DELETED) and is_valid_name(name):
            if not is_ephemeral(name):
                found.append(entry)
    return found
