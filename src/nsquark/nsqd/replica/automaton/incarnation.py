"""When a member that starts is still the one that etcd counts as in sync.

An incarnation names a directory that has every byte its member ever acknowledged. A member that may have lost
some begins a new incarnation, so that etcd's isr, which has the old one, does not count it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .group import check_name, member_of


@dataclass(frozen=True, slots=True)
class StoredMember:
    """What a member keeps beside its data, written and synced before the first byte is acknowledged."""

    incarnation: str
    boot_id: str  # of the kernel under which the bytes were written
    clean: bool  # whether the process stopped after it had synced everything
    synced_only: bool  # whether this incarnation has acknowledged synced bytes alone
    settled: bool = True  # False while a catch-up changes the files
    doubtful: tuple[str, ...] = ()  # files whose fsync has failed, and that were not written anew since
    torn: bool = False  # power was lost since a catch-up: what was not synced may have holes
    belongs: bool = True  # the directory was filled in the group: it is not new, and no copy of another one


def incarnation_at_start(
    name: str, stored: StoredMember | None, boot_id: str, unique: str, copied: bool = False
) -> str:
    """The incarnation of member `name`, which starts. `unique` is hexadecimal and was never used before.

    A process that dies leaves its bytes to the kernel, so the same boot keeps the incarnation. A power loss
    takes what was not synced; a clean stop leaves nothing unsynced. Of a file whose fsync has failed, nothing
    is sure to be on the disk. A directory that was `copied` is not the one
    that acknowledged, which may go on.
    """
    check_name(name)
    if stored is not None and member_of(stored.incarnation) == name and not copied:
        same_boot = stored.boot_id == boot_id and boot_id != ""
        if same_boot or ((stored.clean or stored.synced_only) and not stored.doubtful):
            return stored.incarnation
    return f"{name}@{unique}"
