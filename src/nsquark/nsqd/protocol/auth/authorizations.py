"""The answer of an auth server, and which publishes and subscriptions it grants."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nsquark.gotext import compile_pattern

if TYPE_CHECKING:
    from .auth_servers import Credentials

PUBLISH, SUBSCRIBE = "publish", "subscribe"
PERMISSIONS = {PUBLISH, SUBSCRIBE}
MAX_REMEMBERED = 1024
LONGEST_TTL = 365 * 86400
_NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"


class AuthServerNeeded(Exception):
    """The auth servers must be asked before a command can be done.

    They are asked for `who`; without it, again for the client that they were asked for before. Then the step
    `then` is taken; without it, the command is tried again.
    """

    def __init__(self, who: Credentials | None = None, then: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.who = who
        self.then = then


@dataclass(slots=True)
class Authorization:
    """One entry of an answer: compiled RE2 patterns, which are searched for, not matched to the end."""

    topic: Any
    channels: list[Any]
    permissions: set[str]

    def allows(self, permission: str, topic: str, channel: str) -> bool:
        return (
            permission in self.permissions
            and self.topic.search(topic) is not None
            and any(pattern.search(channel) is not None for pattern in self.channels)
        )

    def covers_all(self) -> bool:
        """Whether the entry allows everything on every name, as far as trying many names can tell."""
        names = [*_NAME, _any_name(64), _any_name(50) + "#ephemeral"]
        return all(
            self.allows(permission, name, channel)
            for permission in (PUBLISH, SUBSCRIBE)
            for name in names
            for channel in ("", name)
        )


def _any_name(length: int) -> str:
    return "".join(_NAME[byte % len(_NAME)] for byte in os.urandom(length))


@dataclass(slots=True)
class Authorizations:
    """What a client may do, and for how many seconds the auth server's answer holds."""

    ttl: int
    identity: str
    identity_url: str
    entries: list[Authorization]
    _known: dict[tuple[str, str, str], bool] = field(default_factory=dict)

    def allows(self, permission: str, topic: str, channel: str = "") -> bool:
        """Whether any entry allows it. A publish names no channel: a pattern must match the empty name."""
        what = permission, topic, channel
        allowed = self._known.get(what)
        if allowed is None:
            allowed = any(entry.allows(*what) for entry in self.entries)
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            self._known[what] = allowed
        return allowed

    def allows_somewhere(self, permission: str) -> bool:
        """Whether any entry has this permission, whatever its topics and channels are."""
        return any(permission in entry.permissions for entry in self.entries)

    def allows_all(self) -> bool:
        return any(entry.covers_all() for entry in self.entries)


def parse_answer(body: bytes) -> Authorizations:
    """Raises ValueError for an answer that NSQ does not take."""
    try:
        document = json.loads(body.decode("utf-8", "replace"), object_pairs_hook=_by_lower_key)
    except RecursionError:
        raise ValueError("the answer is too deep") from None
    if not isinstance(document, dict):
        raise ValueError("the answer is no object")
    ttl = _typed(document, "ttl", int, 0)
    if ttl <= 0:
        raise ValueError(f"invalid TTL {ttl} (must be >0)")
    entries = [_parse_entry(entry) for entry in _typed(document, "authorizations", list, [])]
    identity, url = (_typed(document, name, str, "") for name in ("identity", "identity_url"))
    return Authorizations(min(ttl, LONGEST_TTL), identity, url, entries)


def _by_lower_key(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object by its keys in lower case: NSQ takes them in any, as a server in Go may write them."""
    return {key.lower(): value for key, value in pairs}


def _parse_entry(entry: object) -> Authorization:
    if not isinstance(entry, dict):
        raise ValueError("an authorization is no object")
    permissions = _strings(entry, "permissions")
    for permission in permissions:
        if permission not in PERMISSIONS:
            raise ValueError(f"unknown permission {permission}")
    topic = _compile(_typed(entry, "topic", str, ""))
    return Authorization(topic, [_compile(each) for each in _strings(entry, "channels")], set(permissions))


def _typed(document: dict[str, Any], name: str, kind: type, absent: Any) -> Any:
    value = document.get(name)
    if value is None:
        return absent
    if type(value) is not kind:  # bool is an int in Python only
        raise ValueError(f"{name} is not {kind.__name__}")
    return value


def _strings(document: dict[str, Any], name: str) -> list[str]:
    values = _typed(document, name, list, [])
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name} is not a list of strings")
    return list(values)


def _compile(pattern: str) -> Any:
    try:
        return compile_pattern(pattern)
    except ValueError as error:
        raise ValueError(f"unable to compile {pattern!r}: {error}") from None
