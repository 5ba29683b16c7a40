"""What a TCP client may do after its AUTH."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nsquark.errors import AuthFailed, AuthFirst, Unauthorized
from nsquark.gotext import quote
from nsquark.http.server.message import pack_json

from .auth_servers import AuthServers, Credentials, NotAnswered
from .authorizations import PUBLISH, SUBSCRIBE, Authorizations, AuthServerNeeded


class ClientAuth:
    """The authorization of one connection. It calls `expire` when the auth server's answer is too old."""

    __slots__ = ("_expired", "_expires", "_servers", "_who", "expire", "held")

    def __init__(self, servers: AuthServers, expire: Callable[[], None]) -> None:
        self._servers = servers
        self._who: Credentials | None = None
        self.held: Authorizations | None = None
        self.expire = expire
        self._expired = False
        self._expires: asyncio.TimerHandle | None = None

    @property
    def authed(self) -> bool:
        return self.held is not None and bool(self.held.entries)

    async def query(self, who: Credentials | None = None) -> None:
        """Ask the auth servers about `who`, or again about the same client as before. Raises AuthFailed."""
        self._who = who or self._who
        assert self._who is not None
        try:
            self.held = await self._servers.query(self._who)
        except NotAnswered:
            raise AuthFailed("AUTH failed") from None
        self._expired = False
        self.close()
        self._expires = asyncio.get_running_loop().call_later(self.held.ttl, self._expire)

    def _expire(self) -> None:
        self._expired = True
        self.expire()

    def close(self) -> None:
        if self._expires is not None:
            self._expires.cancel()

    def check(self, command: str, topic: str, channel: str = "") -> None:
        """Raises ProtocolError if the client may not do it, AuthServerNeeded if the answer is too old."""
        held = self.held
        if held is None or not held.entries:
            raise AuthFirst(f"AUTH required before {command}")
        if self._expired:
            raise AuthServerNeeded
        if not held.allows(SUBSCRIBE if command == "SUB" else PUBLISH, topic, channel):
            raise Unauthorized(f"AUTH failed for {command} on {quote(topic)} {quote(channel)}")

    def pack(self) -> bytes:
        """The answer to AUTH."""
        held = self.held
        assert held is not None
        told = {
            "identity": held.identity,
            "identity_url": held.identity_url,
            "permission_count": len(held.entries),
        }
        return pack_json(told).encode("utf-8", "backslashreplace")
