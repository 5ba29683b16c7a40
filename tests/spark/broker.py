"""nsqd as these tests talk to it: without an event loop, since Spark has none."""

from __future__ import annotations

import http.client
import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.daemon import Nsqd


def ask(address: str, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def mpub_body(bodies: Iterable[bytes]) -> bytes:
    sized = [struct.pack(">I", len(body)) + body for body in bodies]
    return struct.pack(">I", len(sized)) + b"".join(sized)


class Broker(Nsqd):
    def __init__(self, data_path: Path, *flags: str) -> None:
        super().__init__(data_path, "--broadcast-address=127.0.0.1", *flags)

    def start(self, *flags: str) -> Broker:
        super().start(*flags)
        return self

    def ask(self, method: str, path: str, body: bytes = b"") -> Any:
        """The JSON of an answer that must be 200; None for nothing."""
        status, answer = ask(self.http_address, method, path, body)
        assert status == 200, (path, status, answer)
        return json.loads(answer) if answer[:1] in (b"{", b"[") else None

    def publish(self, topic: str, bodies: Iterable[bytes]) -> None:
        self.ask("POST", f"/mpub?topic={topic}&binary=true", mpub_body(bodies))

    def log(self, topic: str, channel: str = "") -> dict[str, Any]:
        told: dict[str, Any] = self.ask(
            "GET", f"/log/range?topic={topic}" + (f"&channel={channel}" if channel else "")
        )
        return told

    def depth(self, topic: str, channel: str) -> int:
        return int(self.log(topic, channel)["channel"]["depth"])


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"message %d" % number for number in range(first, first + count)]
