"""Members of a replica group that do what a test tells them."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from nsquark.client import Config, Producer
from nsquark.client.config import Reconnect
from nsquark.client.producer.group import group_publisher
from tests.client.scripted import Peer, ScriptedNsqd
from tests.daemon import until

CONFIG = Config(reconnect=Reconnect(first=0.01, cap=0.02))


class Member(ScriptedNsqd):
    """Its port is bound from the beginning; connections are refused until it leads."""

    def __init__(self, identified: dict[str, object] | None = None) -> None:
        super().__init__(identified)
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Member:
        return self

    async def lead(self) -> None:
        self._server = await asyncio.start_server(self._accept, sock=self.socket)

    async def stop_listening(self) -> None:
        """Refuse connections from now on; those that are there stay."""
        assert self._server is not None
        self._server.close()

    async def stop(self) -> None:
        await super().stop()
        self.socket.close()

    def publishes(self) -> list[bytes]:
        """The bodies of the PUBs that came, in order."""
        return [
            body
            for peer in self.peers
            for command, body in zip(peer.commands, peer.bodies, strict=True)
            if command.startswith("PUB")
        ]

    async def has(self, *bodies: bytes) -> None:
        """Return when these PUBs have come, and no others."""
        await until(lambda: len(self.publishes()) >= len(bodies))
        assert self.publishes() == list(bodies)


def producer_to(*members: Member, **options: Any) -> Producer:
    options.setdefault("config", CONFIG)
    return Producer([member.address for member in members], mode="group", **options)


def refuse(peer: Peer, reason: bytes = b"replica group: 1 of 2 copies") -> None:
    peer.fail(b"E_PUB_FAILED PUB failed " + reason)


def quick_to_doubt(monkeypatch: Any) -> None:
    """A primary counts as silent at once."""
    monkeypatch.setattr(group_publisher, "_SILENT", 0.05)
