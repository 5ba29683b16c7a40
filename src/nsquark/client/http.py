"""Small clients of the HTTP API: of an nsqd, and of an nsqlookupd. For tools, dashboards and tests.

Each method is one request. `BadStatus` says what the daemon refused and why, `ConnectFailed` that it could
not be asked. A daemon that wants TLS (403 with an `https_port`) is asked again over https.
"""

from __future__ import annotations

import json
import ssl
import struct
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from nsquark.addresses import join_address
from nsquark.errors import ConnectionLost, UsageError
from nsquark.http.client import Answer, BadStatus, request

from .discovery import ACCEPT

_SIZE = struct.Struct(">I")


class _Daemon:
    """What the two have in common."""

    def __init__(
        self,
        address: str,
        *,
        timeout: float = 10.0,
        tls: ssl.SSLContext | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """`address` is host:port or a URL; `tls` verifies an https one (default: the system's roots)."""
        self._base = (address if "://" in address else f"http://{address}").rstrip("/")
        parts = urlsplit(self._base)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"address {address!r} is neither host:port nor an http URL")
        self._timeout = timeout
        self._tls = tls
        self._headers = {"Accept": ACCEPT, **(headers or {})}

    async def _ask(self, method: str, path: str, body: bytes = b"", **query: object) -> Answer:
        given = {name: value for name, value in query.items() if value is not None}
        target = path + ("?" + urlencode(given) if given else "")
        answer = await self._request(method, self._base + target, body)
        if answer.status == 403 and (port := _https_port(answer)):
            host = urlsplit(self._base).hostname or ""
            self._base = f"https://{join_address(host, port)}"
            answer = await self._request(method, self._base + target, body)
        if answer.status != 200:
            raise BadStatus(self._base + path, answer.status, answer.body)
        return answer

    async def _request(self, method: str, url: str, body: bytes) -> Answer:
        return await request(
            method, url, body=body, headers=self._headers, timeout=self._timeout, tls=self._tls
        )

    async def _json(self, path: str, **query: object) -> Any:
        answer = await self._ask("GET", path, b"", **query)
        try:
            document = json.loads(answer.body or b"{}")
        except ValueError:
            raise ConnectionLost(f"{self._base}{path}: the answer is no JSON") from None
        # NSQ before 1.0 wraps its answers
        if answer.headers.get("x-nsq-content-type") is None and isinstance(document, dict):
            return document.get("data", document)
        return document

    async def ping(self) -> None:
        await self._ask("GET", "/ping")

    async def info(self) -> dict[str, Any]:
        document: dict[str, Any] = await self._json("/info")
        return document

    async def create_topic(self, topic: str) -> None:
        await self._ask("POST", "/topic/create", topic=topic)

    async def delete_topic(self, topic: str) -> None:
        await self._ask("POST", "/topic/delete", topic=topic)

    async def create_channel(self, topic: str, channel: str) -> None:
        await self._ask("POST", "/channel/create", topic=topic, channel=channel)

    async def delete_channel(self, topic: str, channel: str) -> None:
        await self._ask("POST", "/channel/delete", topic=topic, channel=channel)


def _https_port(answer: Answer) -> int | None:
    try:
        port = json.loads(answer.body)["https_port"]
    except (ValueError, KeyError, TypeError):
        return None
    return port if isinstance(port, int) and 0 < port < 65536 else None


class NsqdHttp(_Daemon):
    """An nsqd's HTTP API."""

    async def publish(self, topic: str, body: bytes, *, delay: float | None = None) -> None:
        defer = None if delay is None else int(delay * 1000)
        await self._ask("POST", "/pub", body, topic=topic, defer=defer)

    async def publish_many(self, topic: str, bodies: Sequence[bytes]) -> None:
        """All or nothing; a body may contain anything."""
        pieces = [_SIZE.pack(len(bodies))]
        for body in bodies:
            pieces += (_SIZE.pack(len(body)), body)
        await self._ask("POST", "/mpub", b"".join(pieces), topic=topic, binary="true")

    async def stats(
        self,
        *,
        topic: str | None = None,
        channel: str | None = None,
        include_clients: bool = True,
        include_mem: bool = True,
    ) -> dict[str, Any]:
        document: dict[str, Any] = await self._json(
            "/stats",
            format="json",
            topic=topic,
            channel=channel,
            include_clients=str(include_clients).lower(),
            include_mem=str(include_mem).lower(),
        )
        return document

    async def empty_topic(self, topic: str) -> None:
        await self._ask("POST", "/topic/empty", topic=topic)

    async def pause_topic(self, topic: str) -> None:
        await self._ask("POST", "/topic/pause", topic=topic)

    async def unpause_topic(self, topic: str) -> None:
        await self._ask("POST", "/topic/unpause", topic=topic)

    async def empty_channel(self, topic: str, channel: str) -> None:
        await self._ask("POST", "/channel/empty", topic=topic, channel=channel)

    async def pause_channel(self, topic: str, channel: str) -> None:
        await self._ask("POST", "/channel/pause", topic=topic, channel=channel)

    async def unpause_channel(self, topic: str, channel: str) -> None:
        await self._ask("POST", "/channel/unpause", topic=topic, channel=channel)

    async def config(self, option: str) -> Any:
        """The value of an option; text that is no JSON comes as it is."""
        return _value(await self._ask("GET", f"/config/{quote(option, safe='')}"))

    async def set_config(self, option: str, value: object) -> Any:
        body = value if isinstance(value, str) else json.dumps(value)
        return _value(await self._ask("PUT", f"/config/{quote(option, safe='')}", body.encode()))


def _value(answer: Answer) -> Any:
    try:
        return json.loads(answer.body)
    except ValueError:
        return answer.body.decode("utf-8", "replace")


class NsqlookupdHttp(_Daemon):
    """An nsqlookupd's HTTP API."""

    async def topics(self) -> list[str]:
        return list((await self._json("/topics")).get("topics") or ())

    async def channels(self, topic: str) -> list[str]:
        return list((await self._json("/channels", topic=topic)).get("channels") or ())

    async def lookup(self, topic: str) -> dict[str, Any]:
        """`channels` and `producers` of a topic. Raises BadStatus 404 if it is unknown."""
        document: dict[str, Any] = await self._json("/lookup", topic=topic)
        return document

    async def nodes(self) -> list[dict[str, Any]]:
        return list((await self._json("/nodes")).get("producers") or ())

    async def tombstone(self, topic: str, node: str) -> None:
        """Hide the nsqd `node` (host:http_port) from lookups of the topic for a while."""
        await self._ask("POST", "/topic/tombstone", topic=topic, node=node)
