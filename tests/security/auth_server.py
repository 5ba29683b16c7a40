"""An auth server that grants what a test has written into it, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


def entry(topic: str = ".*", channels: list[str] | None = None, *permissions: str) -> dict[str, Any]:
    """An authorization; without permissions for both."""
    return {
        "topic": topic,
        "channels": [".*"] if channels is None else channels,
        "permissions": list(permissions) or ["subscribe", "publish"],
    }


@dataclass
class AuthServer:
    """`secrets` maps a secret to what is granted: entries, or bytes as the whole body of the answer."""

    secrets: dict[str, list[dict[str, Any]] | bytes] = field(default_factory=dict)
    ttl: int = 3600
    status: int = 200  # of answers to known secrets; unknown ones get 403
    silent: bool = False  # answers nothing
    tls: ssl.SSLContext | None = None
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)  # method and parameters
    heads: list[str] = field(default_factory=list)
    address: str = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, target, _ = head.split(" ", 2)
            lengths = [line for line in head.split("\r\n") if line.lower().startswith("content-length:")]
            body = await reader.readexactly(int(lengths[0].split(":")[1])) if lengths else b""
            given = json.loads(body) if method == "POST" else parse_qs(urlsplit(target).query, True)
            asked = {name: values[0] for name, values in given.items()}
            self.asked.append((method, asked))
            self.heads.append(head)
            if self.silent:
                await reader.read()
                return
            granted = self.secrets.get(asked["secret"])
            status = self.status if granted is not None else 403
            if not isinstance(granted, bytes):
                answer = {
                    "ttl": self.ttl,
                    "identity": f"who knows {len(asked['secret'])}",
                    "identity_url": "http://who.example/",
                    "authorizations": granted or [],
                }
                granted = json.dumps(answer).encode()
            writer.write(
                b"HTTP/1.1 %d Whatever\r\nContent-Length: %d\r\n\r\n" % (status, len(granted)) + granted
            )
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
