"""What the tests of producers share."""

from __future__ import annotations

import json
from typing import Any

from nsquark.client import Config, Producer
from nsquark.client.config import Reconnect
from tests.client.scripted import Peer, ScriptedNsqd
from tests.daemon import Nsqd

CONFIG = Config(reconnect=Reconnect(first=0.01, cap=0.05))


def producer_to(*nsqds: ScriptedNsqd, **options: Any) -> Producer:
    return Producer([nsqd.address for nsqd in nsqds], config=CONFIG, **options)


async def topic(nsqd: Nsqd, name: str) -> dict[str, Any]:
    _, answer = await nsqd.http("GET", f"/stats?format=json&topic={name}")
    found: dict[str, Any] = json.loads(answer)["topics"][0]
    return found


def silent(peer: Peer) -> None:
    """Answer nothing."""


def bodies(nsqd: ScriptedNsqd) -> list[bytes]:
    return [
        body
        for peer in nsqd.peers
        for command, body in zip(peer.commands, peer.bodies, strict=True)
        if command.startswith("PUB")
    ]
