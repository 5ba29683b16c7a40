"""When what the primary wrote is committed, and which members must have it.

W is the isr as etcd last confirmed it, and the members being added. A sequence is committed when the primary
has it and every member of W has acknowledged it in this term. To add a member, the primary first waits for
it, then tells etcd; to remove one, it first has etcd's confirmation, then stops waiting. So W always holds
every member that etcd could let lead.
"""

from __future__ import annotations

from collections.abc import Iterable

from .group import member_of

NOTHING = -1  # acknowledged by a member that has not joined in this term


class CommitRule:
    """The acknowledgements of one term. Sequence 0 is the directory as the primary opened it."""

    def __init__(self, me: str, isr: Iterable[str], revision: int) -> None:
        self.me = me
        self.isr = frozenset(isr)
        self.revision = revision  # of the state in etcd that `isr` is from
        self.local = NOTHING  # what the primary itself has, written or synced
        self.acknowledged: dict[str, int] = {}
        self._being_added: dict[str, int] = {}  # and the revision that its transaction compares with
        self.awaited: frozenset[str] = frozenset()  # W without the primary itself
        self._update()

    def _update(self) -> None:
        self.awaited = self.isr.union(self._being_added) - {self.me}

    @property
    def being_added(self) -> frozenset[str]:
        return frozenset(self._being_added)

    def committed(self) -> int:
        """The last sequence that is committed; NOTHING before the opened directory itself is."""
        least = self.local
        for member in self.awaited:
            sequence = self.acknowledged.get(member, NOTHING)
            if sequence < least:
                least = sequence
        return least

    def acknowledge(self, member: str, sequence: int) -> None:
        """Acknowledgements are cumulative: one that was overtaken changes nothing."""
        if sequence > self.acknowledged.get(member, NOTHING):
            self.acknowledged[member] = sequence

    def add(self, member: str) -> None:
        """Wait for a member from now on, which etcd is told of next."""
        self._being_added[member] = self.revision
        self._update()

    def with_added(self, member: str) -> tuple[str, ...]:
        """The isr that has `member`, in place of older incarnations of it."""
        others = {each for each in self.isr if member_of(each) != member_of(member)}
        return tuple(sorted(others | {member}))

    def confirm(self, isr: Iterable[str], revision: int) -> None:
        """Etcd's isr at `revision`. An older one is ignored.

        A member being added is waited for until etcd has it, or until the state is newer than the one that
        the adding transaction compares with: only then can that transaction no longer take effect.
        """
        if revision <= self.revision:
            return
        self.isr = frozenset(isr)
        self.revision = revision
        for member, compared in list(self._being_added.items()):
            if member in self.isr or compared < revision:
                del self._being_added[member]
        self._update()
