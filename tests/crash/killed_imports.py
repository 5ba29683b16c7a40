"""Imports that end at a system call: `python -m tests.crash.killed_imports FOLDER kill|power-cut PART PARTS`.

For the n-th call that changes the disk, for every n of this part: a process imports a directory of Go's nsqd
and is killed there, in the middle of the call if that is a write. Another process goes on, and what every
channel gets is compared. A power cut also takes what no fsync has brought to the disk: bytes, and the names
of files in a folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nsquark.nsqd.importing import topic_import
from nsquark.nsqd.importing.takeover import Takeover
from tests.diskqueue.queues import record, write_queue
from tests.nsqd.importing.go_directory import (
    Contents,
    contents,
    files_of_go,
    fill,
    in_order,
    state_of,
)

CALLS = (
    "open", "write", "fsync", "fdatasync", "rename", "replace", "unlink", "truncate", "ftruncate", "mkdir",
    "rmdir", "link",
)  # fmt: skip


class Disk:
    """Stands between a process and its calls: counts them, ends the process, and forgets what is unsynced."""

    def __init__(self, last: int, cuts_power: bool, backups: Path) -> None:
        self.calls = 0
        self._last = last
        self._cuts_power = cuts_power
        self._backups = backups
        self._real = {name: getattr(os, name) for name in CALLS}
        self._synced_sizes: dict[str, int] = {}  # of files with bytes that are not synced
        self._undo: list[tuple[str, Callable[[], None]]] = []  # by folder: what its fsync makes final
        for name in CALLS:
            setattr(os, name, getattr(self, f"_{name}", self._counted(name)))

    def _counted(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._count()
            return self._real[name](*args, **kwargs)

        return call

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self._last:
            self._end()

    def _end(self) -> None:
        if self._cuts_power:
            for name, real in self._real.items():
                setattr(os, name, real)
            for path, size in self._synced_sizes.items():
                if os.path.exists(path):
                    os.truncate(path, size)
            for _, undo in reversed(self._undo):
                undo()
        os.kill(os.getpid(), signal.SIGKILL)

    # ---- the calls that a power cut may undo

    def _open(self, path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_CREAT and not os.path.exists(path):
            self._count()
            self._undo.append((_folder(path), lambda: _without_error(self._real["unlink"], path)))
        fd: int = self._real["open"](path, flags, *args, **kwargs)
        return fd

    def _write(self, fd: int, data: Any) -> int:
        path = os.readlink(f"/proc/self/fd/{fd}")
        self._synced_sizes.setdefault(path, os.fstat(fd).st_size)
        if self.calls + 1 == self._last:
            self._real["write"](fd, memoryview(data)[: len(data) // 2])
        self._count()
        written: int = self._real["write"](fd, data)
        return written

    def _fsync(self, fd: int) -> None:
        self._count()
        path = os.readlink(f"/proc/self/fd/{fd}")
        self._synced_sizes.pop(path, None)
        self._undo = [each for each in self._undo if each[0] != path]

    _fdatasync = _fsync  # only the test pulls the plug

    def _replace(self, source: Any, target: Any) -> None:
        self._count()
        backup = self._backup(target)
        self._real["replace"](source, target)
        old, new = os.path.realpath(source), os.path.realpath(target)
        if old in self._synced_sizes:
            self._synced_sizes[new] = self._synced_sizes.pop(old)

        def undo() -> None:
            _without_error(os.rename, target, source)
            if backup is not None:
                os.rename(backup, target)

        self._undo.append((_folder(target), undo))

    _rename = _replace

    def _unlink(self, path: Any, **kwargs: Any) -> None:
        self._count()
        backup = None if kwargs.get("dir_fd") is not None else self._backup(path)
        self._real["unlink"](path, **kwargs)
        if backup is not None:
            self._undo.append((_folder(path), lambda: _without_error(os.rename, backup, path)))

    def _backup(self, path: Any) -> Path | None:
        if not self._cuts_power or not os.path.isfile(path):
            return None
        backup = self._backups / str(self.calls)
        self._real["link"](path, backup)
        return backup


def _folder(path: Any) -> str:
    return os.path.dirname(os.path.realpath(path))


def _without_error(call: Callable[..., object], *args: Any) -> None:
    with contextlib.suppress(OSError):
        call(*args)


def import_in_child(path: Path, last: int, cuts_power: bool, backups: Path) -> tuple[int, int]:
    """Import in a process that ends at the call `last` (0: never): (its status, how many calls it made)."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        disk = Disk(last, cuts_power, backups)
        done = Takeover(path, 1, 1500, 1 << 20).run()
        disk._real["write"](send, b"%d" % disk.calls)
        os._exit(0 if done else 3)
    os.close(send)
    _, status = os.waitpid(child, 0)
    calls = int(os.read(receive, 20) or b"0")
    os.close(receive)
    return os.waitstatus_to_exitcode(status), calls


def prepare(path: Path) -> Contents:
    """A directory of Go's nsqd, beside what nsquark has of one of its topics."""
    path.mkdir()
    write_queue(path, "orders:mail", [record(each) for each in range(900, 903)])
    write_queue(path, "orders:old", [record(each) for each in range(900, 902)])
    Takeover(path, 1, 1500, 1 << 20).run()
    expected = fill(path, most=24)
    for channel in ("mail", "old"):
        expected.setdefault(f"orders:{channel}", expected["orders:idle"].copy())
    expected["orders:mail"] += [(b"message %d" % each, 0) for each in range(900, 903)]
    expected["orders:old"] += [(b"message %d" % each, 0) for each in range(900, 902)]
    damaged = path / "orders:audit.diskqueue.000001.dat"
    damaged.write_bytes(damaged.read_bytes() + b"no message at all")
    return in_order(expected)


def main(folder: Path, kind: str, part: int, parts: int) -> None:
    topic_import.BATCH, topic_import.CHECKPOINT = 300, 900
    expected = prepare(folder / "original")
    before = files_of_go(folder / "original")
    number, calls = part, 0
    while not calls or number <= calls:
        path, backups = folder / f"{number}", folder / f"{number}.backups"
        shutil.copytree(folder / "original", path)
        backups.mkdir()
        number += parts
        status, calls = import_in_child(path, number - parts + 1, kind == "power-cut", backups)
        if status == 0:
            break  # it was done before that call
        assert status == -signal.SIGKILL, status
        folder_of_import = path / "nsquark.import" / "state.json"
        if folder_of_import.exists() and not state_of(path)["complete"]:
            assert [each for each in files_of_go(path) if ".bad" not in each] == before
        status, _ = import_in_child(path, 0, False, backups)
        assert status == 0, (number - parts + 1, status)
        found = in_order(contents(path))
        assert found == expected, (number - parts + 1, found, expected)
        kept = [each for each in files_of_go(path) if not each.endswith(".bad")]
        assert not kept, (number - parts + 1, kept)
        assert not (path / "nsquark.import").exists(), number - parts + 1
        shutil.rmtree(path)
        shutil.rmtree(backups)
        calls = 0
    assert number > parts + part, "no call was killed"
    print(f"{kind}: every {parts}th call up to {number - parts}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
