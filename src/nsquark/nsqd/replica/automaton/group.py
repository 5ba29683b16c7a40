"""What a replica group keeps in etcd, as values: the primary, the lasting state, the members.

`group_keys.py` says under which keys they lie. A value that comes from etcd is checked here: etcd is shared
with operators and other programs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nsquark.errors import NsquarkError

MAX_VALUE = 65536  # bytes of one value in etcd
MAX_MEMBERS = 16  # of an isr; a group has two or three members
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_INCARNATION = re.compile(r"[A-Za-z0-9._-]{1,64}@[0-9a-f]{1,32}")

Progress = tuple[tuple[int, int], ...]  # how far a directory goes: (term, length) pairs, compared in order


class BadGroup(NsquarkError):
    """A value of the group in etcd is not what nsqd writes there."""


def check_name(name: str) -> str:
    """The name of a member or a group. Raises BadGroup for a name that no key can hold."""
    if not _NAME.fullmatch(name):
        raise BadGroup(f"{name!r} is no name for a member of a replica group: use A-Z a-z 0-9 . _ -")
    return name


def member_of(incarnation: str) -> str:
    """The name of the member that an incarnation belongs to."""
    return incarnation.partition("@")[0]


@dataclass(frozen=True, slots=True)
class GroupState:
    """`g/state`, which lasts. `primary` is the incarnation that acquired `term`, also after its lease."""

    node: int  # the id of the node that all members are
    term: int
    primary: str
    isr: tuple[str, ...]  # incarnations, sorted

    def pack(self) -> bytes:
        return _pack({"node": self.node, "term": self.term, "primary": self.primary, "isr": sorted(self.isr)})

    @classmethod
    def parse(cls, value: bytes) -> GroupState:
        found = _parse("state", value)
        isr = found.get("isr")
        if not isinstance(isr, list) or not 0 < len(isr) <= MAX_MEMBERS:
            raise BadGroup(f"the group's state has no isr: {value[:200]!r}")
        return cls(
            _number(found, "node"),
            _number(found, "term"),
            check_incarnation(found.get("primary")),
            tuple(sorted({check_incarnation(each) for each in isr})),
        )


@dataclass(frozen=True, slots=True)
class PrimaryKey:
    """`g/primary`, which ends with the lease of the primary's session."""

    incarnation: str
    term: int
    addresses: Mapping[str, str] = field(default_factory=dict)

    def pack(self) -> bytes:
        return _pack({"incarnation": self.incarnation, "term": self.term, "addresses": dict(self.addresses)})

    @classmethod
    def parse(cls, value: bytes) -> PrimaryKey:
        found = _parse("primary", value)
        return cls(check_incarnation(found.get("incarnation")), _number(found, "term"), _addresses(found))


@dataclass(frozen=True, slots=True)
class MemberKey:
    """`g/members/<name>`, which ends with the lease of the member's session."""

    incarnation: str
    settled: bool
    progress: Progress = ()
    addresses: Mapping[str, str] = field(default_factory=dict)

    def pack(self) -> bytes:
        return _pack(
            {
                "incarnation": self.incarnation,
                "settled": self.settled,
                "progress": [list(pair) for pair in self.progress],
                "addresses": dict(self.addresses),
            }
        )

    @classmethod
    def parse(cls, value: bytes) -> MemberKey:
        found = _parse("member", value)
        settled, progress = found.get("settled"), found.get("progress", [])
        if type(settled) is not bool or not isinstance(progress, list):
            raise BadGroup(f"a member of the group is not readable: {value[:200]!r}")
        pairs = []
        for pair in progress:
            if not isinstance(pair, list) or len(pair) != 2 or any(type(part) is not int for part in pair):
                raise BadGroup(f"a member's progress is not readable: {value[:200]!r}")
            pairs.append((pair[0], pair[1]))
        return cls(check_incarnation(found.get("incarnation")), settled, tuple(pairs), _addresses(found))


@dataclass(frozen=True, slots=True)
class GroupView:
    """All keys of the group at one revision of etcd. A revision of 0 means that the key is not there."""

    revision: int = 0
    state: GroupState | None = None
    state_revision: int = 0
    primary: PrimaryKey | None = None
    primary_revision: int = 0
    members: Mapping[str, MemberKey] = field(default_factory=dict)
    member_revisions: Mapping[str, int] = field(default_factory=dict)
    member_leases: Mapping[str, int] = field(default_factory=dict)


def _pack(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _parse(what: str, value: bytes) -> dict[str, Any]:
    if len(value) > MAX_VALUE:
        raise BadGroup(f"the group's {what} in etcd has {len(value)} bytes, more than {MAX_VALUE}")
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadGroup(f"the group's {what} in etcd is no JSON object: {value[:200]!r}")
    return found


def _number(found: Mapping[str, Any], name: str) -> int:
    number = found.get(name)
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise BadGroup(f"{name} in the group's keys is {number!r}, not a number from 0 on")
    return number


def check_incarnation(text: object) -> str:
    """Raises BadGroup for what cannot be the incarnation of a member."""
    if not isinstance(text, str) or not _INCARNATION.fullmatch(text):
        raise BadGroup(f"{str(text)[:100]!r} is no incarnation of a member, such as 'a@1f'")
    return text


def _addresses(found: Mapping[str, Any]) -> dict[str, str]:
    addresses = found.get("addresses", {})
    if not isinstance(addresses, dict) or not all(isinstance(each, str) for each in addresses.values()):
        raise BadGroup("addresses in the group's keys are no JSON object of texts")
    return addresses
