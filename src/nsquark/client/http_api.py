"""Clients of the HTTP APIs of nsqd and of nsqlookupd, for tools, dashboards and tests.

Each method is one request. `BadStatus` tells which status the daemon answered with and why, `ConnectFailed`
that no connection came about. A daemon that requires TLS is asked again over https.
"""

from __future__ import annotations

import json
import ssl
from base64 import b64decode
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote, urlencode

from nsquark.errors import UsageError
from nsquark.http.client.protocol import ClientResponse, nsq_headers, parse_json, parse_url
from nsquark.http.client.single_request import ask
from nsquark.wire.commands import pack_size

Place = Literal["earliest", "latest"] | int | datetime
"""A place in a topic's log: one of its ends, a position, or a time."""


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

    async def _ask(
        self, method: str, path: str, body: bytes = b"", patience: float = 0.0, **query: object
    ) -> ClientResponse:
        """`patience` is how long the answer may take beyond the usual timeout."""
        given = {name: value for name, value in query.items() if value is not None}
        target = path + ("?" + urlencode(given) if given else "")
        url, response = await ask(
            method,
            self._base + target,
            body=body,
            headers=self._headers,
            timeout=self._timeout + patience,
            tls=lambda: self._tls,
        )
        self._base = url.removesuffix(target)  # the daemon may have sent this client to its https port
        return response

    async def _json(self, path: str, patience: float = 0.0, **query: object) -> Any:
        response = await self._ask("GET", path, b"", patience, **query)
        document = parse_json(self._base + path, response.body or b"{}")
        # NSQ before 1.0 wraps its answers.
        if response.headers.get("x-nsq-content-type") is None and isinstance(document, dict):
            return document.get("data", document)
        return document

    async def _post(self, path: str, patience: float = 0.0, **query: object) -> dict[str, Any]:
        response = await self._ask("POST", path, b"", patience, **query)
        document: dict[str, Any] = parse_json(self._base + path, response.body)
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

    # ---- the log

    async def range(
        self,
        topic: str,
        *,
        channel: str | None = None,
        commit: int | None = None,
        at: datetime | None = None,
        wait: float | None = None,
        start: int | None = None,
        epoch: str | None = None,
    ) -> dict[str, Any]:
        """Where a topic's log begins and ends: `node`, `epoch`, `first`, `next`, `synced`, `bytes`.

        With `channel`, also where the channel is, after everything before `commit` was finished; with `at`,
        the `position` of the first message at or after a time. With `wait`, the answer comes when there is a
        message at or behind `start` (without it: a new one), or after so many seconds, at most 60.
        """
        document: dict[str, Any] = await self._json(
            "/log/range",
            patience=wait or 0.0,
            topic=topic,
            channel=channel,
            commit=commit,
            timestamp_ms=None if at is None else _timestamp_ms(at),
            wait_ms=None if wait is None else int(wait * 1000),
            epoch=epoch,
            **{"from": start},
        )
        return document

    async def seek(self, topic: str, channel: str, to: Place, *, epoch: str | None = None) -> dict[str, Any]:
        """Move a channel to `"earliest"`, `"latest"`, a position or a time. Returns where it is now."""
        return await self._post(
            "/channel/seek", 0.0, topic=topic, channel=channel, epoch=epoch, **_place("to", to)
        )

    async def commit(self, topic: str, channel: str, to: int, *, epoch: str | None = None) -> dict[str, Any]:
        """Finish everything of a channel before a position. It never goes back, so it may be repeated."""
        return await self._post("/channel/commit", topic=topic, channel=channel, to=to, epoch=epoch)

    async def peek(
        self,
        topic: str,
        channel: str | None = None,
        *,
        state: Literal["ready", "requeued", "in_flight", "deferred"] | None = None,
        start: int | None = None,
        limit: int | None = None,
        max_bytes: int | None = None,
    ) -> list[dict[str, Any]]:
        """Messages that are not consumed by it. `body` is bytes, the other keys are those of the HTTP API.

        Of a topic: those from position `start` on, or the newest. Of a channel: those in one `state`.
        """
        if channel is None:
            if state is not None:
                raise UsageError(f"state {state!r} is of a channel's messages, and there is no channel")
            document = await self._json(
                "/topic/peek", 0.0, topic=topic, limit=limit, max_bytes=max_bytes, **{"from": start}
            )
        else:
            if start is not None:
                raise UsageError(f"start {start!r} is for peeking into a topic, not into a channel")
            document = await self._json(
                "/channel/peek", topic=topic, channel=channel, state=state, limit=limit, max_bytes=max_bytes
            )
        return [_with_body(message) for message in document["messages"]]

    # ---- dead letters

    async def max_attempts(self, topic: str, channel: str, to: int | None) -> int:
        """Let a channel deliver a message at most `to` times; 0 is no limit, None what nsqd's flag says.

        Returns the limit that holds now.
        """
        limit = "default" if to is None else to
        answer = await self._post("/channel/max_attempts", topic=topic, channel=channel, to=limit)
        return int(answer["max_attempts"])

    async def redeliver(
        self, topic: str, channel: str, *, limit: int | None = None, id: str | int | None = None
    ) -> dict[str, Any]:
        """Send the dead letters of a channel back to it: all, `limit` at most, or one by its id or position.

        The answer tells how many were `redelivered`, and how many `skipped` as they are no letters of it.
        """
        return await self._post(
            "/channel/redeliver", patience=600.0, topic=topic, channel=channel, limit=limit, id=id
        )

    # ---- replicas

    async def replica(self) -> dict[str, Any]:
        """The node's replica group: its primary, and how far each member is (`GET /replica`)."""
        document: dict[str, Any] = await self._json("/replica")
        return document

    # ---- settings

    async def config(self, option: str) -> Any:
        """The value of an option; text that is no JSON comes as it is."""
        return _value(await self._ask("GET", f"/config/{quote(option, safe='')}"))

    async def set_config(self, option: str, value: object) -> Any:
        body = value if isinstance(value, str) else json.dumps(value)
        return _value(await self._ask("PUT", f"/config/{quote(option, safe='')}", body.encode()))


def _timestamp_ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)


def _place(name: str, to: Place) -> dict[str, object]:
    """The parameter for a place in a log. A time without a zone is local time, as everywhere in Python."""
    return {"timestamp_ms": _timestamp_ms(to)} if isinstance(to, datetime) else {name: to}


def _with_body(message: dict[str, Any]) -> dict[str, Any]:
    body = message.pop("body_base64", None)
    message["body"] = b64decode(body) if body is not None else message["body"].encode()
    return message


def _value(response: ClientResponse) -> Any:
    try:
        return json.loads(response.body)
    except (ValueError, RecursionError):
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
