"""A replica group of real nsqds with a real etcd, for the tests of its clients and tools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.nsqd.replica.etcd_process import etcd, why_not
from tests.nsqd.replica.processes import Member

needs_etcd = pytest.mark.skipif(bool(why_not()), reason=why_not())


class Group:
    """The group `g`. `start` adds a member."""

    def __init__(self, root: Path, endpoint: str) -> None:
        self._root = root
        self._endpoint = endpoint
        self.members: list[Member] = []

    def start(self, name: str, *flags: str) -> Member:
        member = Member(self._root, name, self._endpoint, *flags)
        self.members.append(member)
        return member

    def pair(self, *flags: str) -> tuple[Member, Member]:
        """A primary and a standby in sync."""
        a = self.start("a", "--replica-bootstrap", *flags)
        a.serves()
        b = self.start("b", *flags)
        b.is_in_sync()
        return a, b

    @property
    def tcp_addresses(self) -> list[str]:
        return [member.tcp_address for member in self.members]


@contextmanager
def replica_group(root: Path) -> Iterator[Group]:
    with etcd(root / "etcd") as endpoint:
        group = Group(root, endpoint)
        try:
            yield group
        finally:
            for member in group.members:
                member.kill()
