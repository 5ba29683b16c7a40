"""The replica group of a node, as its `/stats` tells it in short and its `/replica` in full."""

from __future__ import annotations

from dataclasses import dataclass, field

from .document import Document, as_document, boolean, documents, integer, text, texts


@dataclass(frozen=True, slots=True)
class ReplicaMember:
    """One member of a group. Its lag in frames is None where the node that was asked does not know it."""

    name: str
    role: str
    in_sync: bool
    written: int | None
    synced: int | None
    lag: int | None
    http_address: str


@dataclass(frozen=True, slots=True)
class Replica:
    """What a node says of its group. `lag` is the largest of a member that is in sync."""

    group: str
    member: str
    state: str
    term: int
    in_sync: list[str]
    lag: int | None
    primary: str = ""
    min_copies: int = 0
    refusing: str = ""
    problem: str = ""
    members: list[ReplicaMember] = field(default_factory=list)

    @property
    def alone(self) -> bool:
        """Whether what is stored now has a single copy."""
        return len(self.in_sync) < 2

    @property
    def tag(self) -> str:
        """How the node's role looks: good, warn or bad."""
        if self.state == "primary":
            return "warn" if self.alone or self.refusing else "good"
        return "" if self.state == "in-sync" else "warn"


def parse_replica(document: Document) -> Replica | None:
    """The `replica` of a `/stats`, or a `/replica`; None of a node that is in no group."""
    group = text(document, "group")
    if not group:
        return None
    in_sync = texts(document, "isr")
    state, member = text(document, "state"), text(document, "member")
    told = document.get("primary")
    primary = text(told, "member") if isinstance(told, dict) else ""
    members = list(map(_member, documents(document, "members")))
    lags = [each.lag for each in members if each.lag is not None and each.name in in_sync]
    return Replica(
        group,
        member,
        state,
        integer(document, "term"),
        in_sync,
        max(lags, default=None) if members else _largest(document.get("lag"), in_sync),
        primary,
        integer(document, "min_copies"),
        text(document, "refusing"),
        text(document, "problem") or text(document, "etcd"),
        sorted(members, key=lambda each: each.name),
    )


def _member(document: Document) -> ReplicaMember:
    return ReplicaMember(
        text(document, "member"),
        text(document, "role"),
        boolean(document, "in_sync"),
        _number(document, "written"),
        _number(document, "synced"),
        _number(document, "lag"),
        text(document, "http_address"),
    )


def _largest(lags: object, in_sync: list[str]) -> int | None:
    """The largest lag of a member in sync, of what `/stats` tells by name."""
    told = as_document(lags)
    return max((integer(told, name) for name in told if name in in_sync), default=None)


def _number(document: Document, key: str) -> int | None:
    return integer(document, key) if type(document.get(key)) is int else None
