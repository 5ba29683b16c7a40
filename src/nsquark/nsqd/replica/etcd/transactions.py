"""Etcd's transactions as values: what `client.py` sends, and what a simulated etcd carries out.

A transaction compares, and then either writes, or reads everything below a prefix, so that a refusal says
why.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ModifiedAt:
    """The key was last changed at `revision`; 0 for a key that is not there."""

    key: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class LeasedBy:
    """The key is there, and ends with `lease`."""

    key: bytes
    lease: int


@dataclass(frozen=True, slots=True)
class Put:
    key: bytes
    value: bytes
    lease: int = 0  # 0 for a key that lasts


@dataclass(frozen=True, slots=True)
class Delete:
    key: bytes


@dataclass(frozen=True, slots=True)
class Transaction:
    compare: tuple[ModifiedAt | LeasedBy, ...]
    writes: tuple[Put | Delete, ...]
    prefix: bytes  # what is read where the comparison fails


@dataclass(frozen=True, slots=True)
class KeyValue:
    key: bytes
    value: bytes
    revision: int  # of its last change
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """`revision` is etcd's when it answered. `found` is what a refusal or a range read."""

    succeeded: bool
    revision: int
    found: tuple[KeyValue, ...] = field(default=())
