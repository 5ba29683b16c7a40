"""What a member of a replica group keeps beside its data.

That is: which incarnation it is, and whether its files are settled.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nsquark.cli.flags import StartError
from nsquark.durable import replace_file
from nsquark.log.file_names import parse_stem
from nsquark.net.machine import boot_id
from nsquark.nsqd.options import Options
from nsquark.nsqd.storage import node as node_file
from nsquark.nsqd.storage.inspection import DataRefused, refuse_queues

from ..automaton.group import BadGroup, Progress, check_name, member_of
from ..automaton.incarnation import StoredMember, incarnation_at_start
from ..automaton.states import Directory
from ..changes.manifest import list_files
from ..copy.warm_copy import STATE

FILE_NAME = "nsquark.member"
VERSION = 1
_GET_GENERATION = 0x80087601  # FS_IOC_GETVERSION


@dataclass(slots=True)
class MemberFile:
    """The file, as it is on the disk. A change is on the disk when its call returns, or raises OSError."""

    path: Path
    group: str
    term: int  # the highest term that the directory has seen
    stored: StoredMember
    has_group: bool = False  # it has led or followed before: its group is older than this process

    @classmethod
    def open(cls, options: Options) -> MemberFile:
        """Read the file, or begin one, and decide on the incarnation. Raises StartError."""
        directory = Path(options.data_path or ".")
        path = directory / FILE_NAME
        try:
            group, name = check_name(options.replica_group), check_name(options.replica_member)
        except BadGroup as error:
            raise StartError(str(error)) from None
        if (directory / STATE).exists():
            raise StartError(
                f"{directory} is a copy of --replica-of; promote it first, or use an empty directory"
            )
        try:
            refuse_queues(directory)
        except DataRefused as error:
            raise StartError(f"{error}. Take them over without --replica-group first") from None
        except OSError as error:
            raise StartError(f"{directory} cannot be read - {error}") from None
        term, stored, copied = _read(path, group, name)
        boot = boot_id()
        incarnation = incarnation_at_start(name, stored, boot, os.urandom(8).hex(), copied)
        kept = stored is not None and stored.incarnation == incarnation
        synced_only = options.replica_ack == "synced" and (
            not kept or (stored is not None and stored.synced_only)
        )
        # A copy of the directory of a running process is not one that a killed process could have left.
        settled = stored is None or (stored.settled and (stored.clean or not copied))
        belongs = stored is not None and stored.belongs and not copied
        lost_power = stored is not None and not stored.clean and (copied or stored.boot_id != boot)
        torn = stored is not None and (stored.torn or lost_power)
        found = cls(
            path,
            group,
            max(term, _term_of(directory, settled)),
            StoredMember(
                *(incarnation, boot, False, synced_only, settled),
                *(stored.doubtful if stored else (), torn, belongs),
            ),
            term > 0,
        )
        try:
            found.write()
        except OSError as error:
            raise StartError(f"{path} cannot be written - {error}") from None
        return found

    def directory(self) -> Directory:
        stored = self.stored
        return Directory(stored.incarnation, stored.settled, self.term, stored.belongs)

    def belong(self) -> None:
        """Note that the group begins with this directory."""
        self.stored = replace(self.stored, belongs=True)
        self.write()

    def settle(self, settled: bool, term: int = 0) -> None:
        """Note whether the directory is one to lead from. If it is, its doubtful files were stored anew."""
        stored = self.stored
        self.stored = replace(
            stored,
            clean=False,
            settled=settled,
            doubtful=() if settled else stored.doubtful,
            torn=stored.torn and not settled,
            belongs=settled or stored.belongs,
        )
        self.term = max(self.term, term)
        self.write()

    def doubt(self, paths: Iterable[str]) -> None:
        """Note that an fsync has failed, and which files it was for."""
        self.stored = replace(
            self.stored, clean=False, doubtful=tuple(sorted({*self.stored.doubtful, *paths}))
        )
        self.write()

    def distrust(self, paths: Iterable[str]) -> None:
        """Be a new incarnation from the next start on, whose directory is to be fetched where it is in doubt.

        Etcd's isr has the old incarnation, so that it does not count this directory any more.
        """
        name = member_of(self.stored.incarnation)
        self.stored = replace(self.stored, incarnation=f"{name}@{os.urandom(8).hex()}", settled=False)
        self.doubt(paths)

    def stop_cleanly(self) -> None:
        """Everything is synced, and the process ends."""
        self.stored = replace(self.stored, clean=True)
        self.write()

    def write(self) -> None:
        temporary = self.path.with_name(FILE_NAME + ".tmp")
        temporary.touch(0o600)  # it gets the file's name, and keeps its place
        document = {"group": self.group, "term": self.term, "version": VERSION, **asdict(self.stored)}
        document["place"] = place_of(temporary)
        replace_file(self.path, json.dumps(document).encode(), temporary, 0o600)


def refuse_members_directory(directory: Path) -> None:
    """A group may have gone on without this directory, so no other nsqd serves it. Raises StartError."""
    path = directory / FILE_NAME
    if path.exists():
        raise StartError(
            f"{directory} belongs to a member of a replica group; start with --replica-group, or delete"
            f" {FILE_NAME} to serve what is there alone"
        )


def progress_of(directory: Path) -> Progress:
    """How many bytes of logs there are of each term. For a thread. Raises OSError."""
    found: dict[int, int] = {}
    for path, size in list_files(directory).items():
        stem = parse_stem(path.rpartition("/")[2].removesuffix(".log")) if path.endswith(".log") else None
        if stem is not None:
            found[stem[1]] = found.get(stem[1], 0) + size
    return tuple(sorted(found.items(), reverse=True))


def place_of(path: Path) -> str:
    """Which file this is, whatever its name: the file system and the inode. Raises OSError.

    A file of another place is a copy. The number of the device is no part of it, since a boot may change it.
    XFS tells that number as the id of the file system; the generation of the inode, a random number, stands
    for it there.
    """
    with open(path, "rb") as file:
        status, system = os.fstat(file.fileno()), os.statvfs(file.fileno()).f_fsid
        if system == _encoded(status.st_dev):
            with contextlib.suppress(OSError):  # the file system knows no generations
                told = fcntl.ioctl(file.fileno(), _GET_GENERATION, bytes(8))
                return f"generation {int.from_bytes(told[:4], sys.byteorder):x}:{status.st_ino}"
    return f"{system:x}:{status.st_ino}"


def _encoded(device: int) -> int:
    """The number of a device as the system's kernel writes it."""
    major, minor = os.major(device), os.minor(device)
    return minor & 0xFF | major << 8 | (minor & ~0xFF) << 12


def _read(path: Path, group: str, name: str) -> tuple[int, StoredMember | None, bool]:
    """The term, the rest, and whether the file is a copy of the one that a member wrote."""
    try:
        known = json.loads(path.read_bytes())
        if known["version"] != VERSION:
            raise StartError(f"{path} has version {known['version']!r}, not {VERSION}")
        stored = StoredMember(
            str(known["incarnation"]),
            str(known["boot_id"]),
            known["clean"] is True,
            known["synced_only"] is True,
            known["settled"] is True,
            tuple(map(str, known["doubtful"])),
            known.get("torn", False) is True,
            known.get("belongs", int(known["term"]) > 0) is True,
        )
        whose = str(known["group"]), member_of(stored.incarnation)
        if whose != (group, name):
            raise StartError(f"{path} is of member {whose[1]} of group {whose[0]}, not of {name} of {group}")
        return int(known["term"]), stored, known["place"] != place_of(path)
    except FileNotFoundError:
        return 0, None, False
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StartError(f"{path} does not read - {error!r}") from None


def _term_of(directory: Path, settled: bool) -> int:
    """The term of the node's file; 0 without one. Raises StartError.

    Where a catch-up broke off, the file may be half of one.
    """
    try:
        return node_file.parse((directory / node_file.FILE_NAME).read_bytes())[3]
    except FileNotFoundError:
        return 0
    except (OSError, *node_file.UNREADABLE) as error:
        if not settled and not isinstance(error, OSError):
            return 0
        raise StartError(f"{directory / node_file.FILE_NAME} does not read - {error!r}") from None
