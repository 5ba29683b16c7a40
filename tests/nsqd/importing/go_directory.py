"""A data directory as Go's nsqd leaves it, and what an import has made of one."""

from __future__ import annotations

import json
from pathlib import Path

from nsquark.data_path.unfinished import UnfinishedMessages
from nsquark.names import from_file_name
from nsquark.nsqd.importing.takeover import Takeover
from nsquark.nsqd.storage.metadata import load
from tests.diskqueue.queues import record, write_metadata, write_queue

Contents = dict[str, list[tuple[bytes, int]]]  # by queue: body and attempts of each message, in order


def fill(path: Path, per_file: int = 400, most: int = 60) -> Contents:
    """A topic with two channels that share some messages, one without messages, and a queue of its own.

    Another topic has no channel. Returns what every channel must be delivered once.
    """
    path.mkdir(exist_ok=True)
    third = most // 3
    mail = [(each, 2 if each % 10 == 0 else 0) for each in range(most)]
    audit = [(each, 0) for each in range(third, most)] + [(each, 7) for each in range(5)]  # requeued
    own = [(each, 0) for each in range(most, most + third)]
    queues = {"orders:mail": mail, "orders:audit": audit, "orders": own, "lonely": own[:7]}
    for name, messages in queues.items():
        records = [record(number, attempts=attempts) for number, attempts in messages]
        write_queue(path, name, records, per_file, read=3)
    write_queue(path, "orders:done", [record(each) for each in range(4)], read=4)
    write_metadata(path, {"orders": ["mail", "audit", "idle", "done"], "lonely": [], "empty": ["c"]})
    left: Contents = {
        name: [(b"message %d" % number, attempts) for number, attempts in messages[3:]]
        for name, messages in queues.items()
    }
    own_left = left.pop("orders")
    for channel in ("mail", "audit", "idle", "done"):
        left[f"orders:{channel}"] = left.get(f"orders:{channel}", []) + own_left
    return left


def take_over(path: Path, node_id: int = 1) -> bool:
    return Takeover(path, node_id, 1 << 20, 1 << 20).run()


def contents(path: Path) -> Contents:
    """What the logs and journals of a data directory still owe."""
    known = load(path / "nsqd.dat")
    found: Contents = {}
    for directory in sorted((path / "topics").glob("[!.]*")):
        name = from_file_name(directory.name)
        topic = known.get(name)
        channels, paused = (list(topic.channels), topic.paused) if topic is not None else ([], False)
        for message, attempts, _ in UnfinishedMessages(directory, channels, paused):
            for channel, count in attempts.items():
                queue = f"{name}:{channel}" if channel else name
                found.setdefault(queue, []).append((message.body, count))
    return found


def in_order(found: Contents) -> Contents:
    """Nothing is said of the order: that of requeued messages is another one."""
    return {name: sorted(messages) for name, messages in found.items()}


def files_of_go(path: Path) -> list[str]:
    return sorted(each.name for each in path.glob("*.diskqueue.*"))


def is_whole_import(path: Path) -> bool:
    """Whether an import has come to its end: nothing of it, and nothing of Go's nsqd, is left."""
    return not (path / "nsquark.import").exists() and not files_of_go(path)


def state_of(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((path / "nsquark.import" / "state.json").read_text())
    return found
