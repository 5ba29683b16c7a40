"""A disk that is told what a process does, and says what could be left of it if the power failed now.

The rules are those of POSIX, which are harsher than what ext4 and xfs do:

- fsync of a file keeps its content and its size as they were when the fsync began, and not its name.
- fsync of a directory keeps the names that were given and taken in it before.
- Of everything else any part may be kept, in any order: each block of a write, the size without the blocks
  (which then are zeros), each name that was given or taken. A rename is kept as a whole or not at all.
- What an fsync has failed to keep is never sure again, whatever a later fsync says.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import trace
from .trace import Call


@dataclass(slots=True)
class Change:
    """A write, or (without data) a new size."""

    index: int  # of the call
    offset: int
    data: bytes | None
    sure: bool = False  # an fsync has kept it
    doubtful: bool = False  # an fsync of it has failed


@dataclass(slots=True, eq=False)
class File:
    content: bytearray = field(default_factory=bytearray)  # what is sure
    changes: list[Change] = field(default_factory=list)  # behind that, from the first that is not sure
    synced_to: int = 0  # the call at which the last fsync began that has ended

    def sync(self, index: int) -> None:
        self.synced_to = max(self.synced_to, index)
        for change in self.changes:
            if change.index < index and not change.doubtful:
                change.sure = True
        while self.changes and self.changes[0].sure:
            _apply(self.content, self.changes.pop(0))

    def fail(self, index: int) -> None:
        for change in self.changes:
            if change.index < index and not change.sure:
                change.doubtful = True


@dataclass(slots=True, eq=False)
class Folder:
    names: dict[str, File | Folder] = field(default_factory=dict)  # as the process sees them


@dataclass(slots=True)
class Naming:
    """Names that are given and taken in one step: by folder and name, what has it then."""

    index: int
    names: list[tuple[Folder, str, File | Folder | None]]
    sure: bool = False


class Luck:
    """What of the unsure is kept. Each cut has a luck of its own."""

    def __init__(self, choice: random.Random) -> None:
        self._choice = choice
        self.writes = choice.choice(("none", "all", "zeros", "some", "some", "first", "first"))
        self.names = choice.choice(("none", "none", "all", "some", "some", "first", "first"))
        self._block = choice.choice((512, 4096))
        self._share = choice.random()
        self.first = 0  # the call up to which everything is kept, if that is the luck of names or writes

    def set_out(self, since: int, cut: int) -> None:
        """The unsure calls lie between these."""
        self.first = self._choice.randint(min(since, cut), cut)

    def keeps_name(self, index: int) -> bool:
        if self.names == "first":
            return index < self.first
        return self.names == "all" or (self.names == "some" and self._choice.random() < self._share)

    def keep(self, content: bytearray, change: Change) -> None:
        """Apply as much of an unsure change as is kept."""
        way = self.writes
        if way == "first":
            way = "all" if change.index < self.first else "torn" if self._choice.random() < 0.2 else "none"
        elif way == "some":
            way = self._choice.choice(("none", "all", "torn", "torn", "zeros"))
        if way == "none":
            return
        if way == "all" or change.data is None:
            _apply(content, change)
            return
        end = change.offset + len(change.data)
        kept = []
        if way == "torn":
            at = change.offset
            while at < end:
                stop = min((at // self._block + 1) * self._block, end)
                if self._choice.random() < self._share:
                    kept.append((at, stop))
                at = stop
        size = (
            end
            if way == "zeros" or self._choice.random() < 0.5
            else max((each[1] for each in kept), default=0)
        )
        if size > len(content):
            content.extend(bytes(size - len(content)))
        for start, stop in kept:
            content[start:stop] = change.data[start - change.offset : stop - change.offset]


class NoLuck(Luck):
    """Keeps nothing that is not sure."""

    def __init__(self) -> None:
        super().__init__(random.Random(0))
        self.writes = self.names = "none"


def _apply(content: bytearray, change: Change) -> None:
    if change.data is None:
        del content[change.offset :]
        content.extend(bytes(change.offset - len(content)))
        return
    if change.offset > len(content):
        content.extend(bytes(change.offset - len(content)))
    content[change.offset : change.offset + len(change.data)] = change.data


class Disk:
    """Follow a process with `see`, and ask for `remains` at any point of its trace."""

    def __init__(self) -> None:
        self.root = Folder()
        self.calls = 0
        self._inodes: dict[int, File | Folder] = {}
        self._namings: list[Naming] = []  # from the first that is not sure
        self._names: dict[Folder, dict[str, File | Folder]] = {self.root: {}}  # those that are sure
        self._syncs: dict[int, tuple[int, File | Folder]] = {}  # under way

    @classmethod
    def holding(cls, path: Path) -> Disk:
        """A disk that surely holds what is in this directory. Its inodes are those of the machine."""
        disk = cls()

        def take(folder: Folder, at: Path) -> None:
            names = disk._names.setdefault(folder, {})
            for each in at.iterdir():
                node = Folder() if each.is_dir() else File(bytearray(each.read_bytes()))
                disk._inodes[each.stat().st_ino] = names[each.name] = folder.names[each.name] = node
                if isinstance(node, Folder):
                    take(node, each)

        disk._inodes[path.stat().st_ino] = disk.root
        take(disk.root, path)
        return disk

    # ---- what the process does

    def see(self, call: Call) -> None:
        """Take note of the next call."""
        index, self.calls = self.calls, self.calls + 1
        kind = call.kind
        if kind in (trace.CREATE, trace.MKDIR):
            node: File | Folder = File() if kind == trace.CREATE else Folder()
            self._inodes[call.inode] = node
            self._name(index, (call.path, node))
        elif kind in (trace.WRITE, trace.TRUNCATE):
            file = self._inodes[call.inode]
            assert isinstance(file, File)
            file.changes.append(Change(index, call.number, call.data if kind == trace.WRITE else None))
        elif kind == trace.RENAME:
            folder, name = self._place(call.path)
            self._name(index, (call.path, None), (call.to, folder.names[name]))
        elif kind == trace.LINK:
            folder, name = self._place(call.path)
            self._name(index, (call.to, folder.names[name]))
        elif kind in (trace.UNLINK, trace.RMDIR):
            self._name(index, (call.path, None))
        elif kind == trace.SYNC_BEGINS:
            self._syncs[call.number] = index, self._node(call)
        elif kind == trace.SYNC_ENDS:
            self._sync(*self._syncs.pop(call.number))
        elif kind == trace.SYNC_FAILS:
            begun, node = self._syncs.pop(call.number)
            if isinstance(node, File):
                node.fail(begun)

    def _node(self, call: Call) -> File | Folder:
        return self.root if not call.path else self._inodes[call.inode]

    def _place(self, path: str) -> tuple[Folder, str]:
        folder = self.root
        *folders, name = path.split("/")
        for each in folders:
            found = folder.names[each]
            assert isinstance(found, Folder)
            folder = found
        return folder, name

    def _name(self, index: int, *given: tuple[str, File | Folder | None]) -> None:
        naming = Naming(index, [])
        for path, node in given:
            folder, name = self._place(path)
            if node is None:
                del folder.names[name]
            else:
                folder.names[name] = node
            naming.names.append((folder, name, node))
        self._namings.append(naming)

    def _sync(self, index: int, node: File | Folder) -> None:
        if isinstance(node, File):
            node.sync(index)
            return
        for naming in self._namings:
            if naming.index < index and any(folder is node for folder, _, _ in naming.names):
                naming.sure = True
        while self._namings and self._namings[0].sure:
            _give(self._names, self._namings.pop(0))

    # ---- what is left

    def remains(self, luck: Luck) -> dict[str, bytes | None]:
        """The directory after a cut just now: by path, the content of a file, or None for a folder."""
        since = min([self.calls, *(each.index for each in self._namings)])
        for node in self._inodes.values():
            if isinstance(node, File) and node.changes:
                since = min(since, node.changes[0].index)
        luck.set_out(since, self.calls)
        names = {folder: dict(given) for folder, given in self._names.items()}
        for naming in self._namings:
            if naming.sure or luck.keeps_name(naming.index):
                _give(names, naming)
        contents: dict[File, bytes] = {}
        result: dict[str, bytes | None] = {}
        for path, node in _walk(names, self.root, ""):
            if isinstance(node, Folder):
                result[path] = None
                continue
            if node not in contents:
                content = bytearray(node.content)
                for change in node.changes:
                    if change.sure:
                        _apply(content, change)
                    else:
                        luck.keep(content, change)
                contents[node] = bytes(content)
            result[path] = contents[node]
        return result

    def sure_files(self) -> Iterator[tuple[str, File]]:
        """The files whose names are sure, with their paths."""
        names = {folder: dict(given) for folder, given in self._names.items()}
        for naming in self._namings:
            if naming.sure:
                _give(names, naming)
        for path, node in _walk(names, self.root, ""):
            if isinstance(node, File):
                yield path, node


def _give(names: dict[Folder, dict[str, File | Folder]], naming: Naming) -> None:
    for folder, name, node in naming.names:
        if node is None:
            names.setdefault(folder, {}).pop(name, None)
        else:
            names.setdefault(folder, {})[name] = node


def _walk(
    names: dict[Folder, dict[str, File | Folder]], folder: Folder, path: str
) -> Iterator[tuple[str, File | Folder]]:
    for name, node in names.get(folder, {}).items():
        yield path + name, node
        if isinstance(node, Folder):
            yield from _walk(names, node, f"{path}{name}/")


def build(remains: dict[str, bytes | None], path: Path) -> None:
    """Make this directory, which must not be there."""
    path.mkdir(parents=True)
    for name, content in remains.items():
        if content is None:
            (path / name).mkdir()
        else:
            (path / name).write_bytes(content)
