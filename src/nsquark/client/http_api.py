"""Clients of the HTTP APIs of nsqd and of nsqlookupd, for tools, dashboards and tests.

Each method is one request. `BadStatus` tells which status the daemon answered with and why, `ConnectFailed`
that no connection came about. A daemon that requires TLS is asked again over https.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

from nsquark.errors import UsageError
from nsquark.http.client import ask
from nsquark.http.client_protocol import ClientResponse, nsq_headers, parse_json, parse_url
from nsquark.wire.commands import pack_size


class _DaemonHttp:
    """The requests that nsqd and nsqlookupd both answer."""

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
        try:
            parse_url(self._base)
        except UsageError:
            raise UsageError(f"address {address!r} is neither host:port nor an http URL") from None
        self._timeout = timeout
        self._tls = tls
        self._headers = {**nsq_headers(), **(headers or {})}

    async def _ask(self, method: str, path: str, body: bytes = b"", **query: object) -> ClientResponse:
        given = {name: value for name, value in query.items() if value is not None}
        target = path + ("?" + urlencode(given) if given else "")
        url, response = await ask(
            method,
            self._base + target,
            body=body,
            headers=self._headers,
            timeout=self._timeout,
            tls=lambda: self._tls,
        )
        self._base = url.removesuffix(target)  # the daemon may have sent this client to its https port
        return response

    async def _json(self, path: str, **query: object) -> Any:
        response = await self._ask("GET", path, b"", **query)
        document = parse_json(self._base + path, response.body or b"{}")
        # NSQ before 1.0 wraps its answers.
        if response.headers.get("x-nsq-content-type") is None and isinstance(document, dict):
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


class NsqdHttp(_DaemonHttp):
    """An nsqd's HTTP API."""

    async def publish(self, topic: str, body: bytes, *, delay: float | None = None) -> None:
        defer = None if delay is None else int(delay * 1000)
        await self._ask("POST", "/pub", body, topic=topic, defer=defer)

    async def publish_many(self, topic: str, bodies: Sequence[bytes]) -> None:
        """All or nothing; a body may contain anything."""
        pieces = [pack_size(len(bodies))]
        for body in bodies:
            pieces += (pack_size(len(body)), body)
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


def _value(response: ClientResponse) -> Any:
    try:
        return json.loads(response.body)
    except ValueError:
        return response.body.decode("utf-8", "replace")


class NsqlookupdHttp(_DaemonHttp):
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
