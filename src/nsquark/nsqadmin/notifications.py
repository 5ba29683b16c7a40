"""Telling an HTTP endpoint of what was done: one POST per action, one at a time, in order.

What cannot be sent is logged and dropped; the endpoint never holds up an action.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import logging
import os
import time

from starlette.requests import Request

from nsquark.errors import NsquarkError
from nsquark.http.client.protocol import without_query
from nsquark.http.client.single_request import request as send
from nsquark.net.addresses import join_address

logger = logging.getLogger(__name__)

MAX_WAITING = 1000
MAX_ANSWER = 1 << 20


class Notifications:
    """Made within a running loop. Does nothing without an endpoint."""

    def __init__(self, endpoint: str, *, connect_timeout: float, timeout: float) -> None:
        self._endpoint = endpoint
        self._connect_timeout = connect_timeout
        self._timeout = timeout
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(MAX_WAITING)
        self._via = os.uname().nodename
        self._sender = asyncio.get_running_loop().create_task(self._send_all()) if endpoint else None

    def tell(self, request: Request, action: str, topic: str, channel: str = "", node: str = "") -> None:
        """Tell of an action such as `pause_channel`, which `request` has asked for."""
        if self._sender is None:
            return
        told: dict[str, object] = {"action": action, "topic": topic}
        for key, value in (("channel", channel), ("node", node)):
            if value:
                told[key] = value
        told["timestamp"] = int(time.time())
        user = basic_user(request.headers.get("authorization", ""))
        if user:
            told["user"] = user
        told["remote_ip"] = join_address(*request.client) if request.client is not None else "@"
        told["user_agent"] = request.headers.get("user-agent", "")
        told["url"] = _url(request)
        told["via"] = self._via
        try:
            self._waiting.put_nowait(json.dumps(told, separators=(",", ":")).encode())
        except asyncio.QueueFull:
            logger.error("a notification of %s is dropped: %d wait already", action, MAX_WAITING)

    async def _send_all(self) -> None:
        while True:
            body = await self._waiting.get()
            try:
                response = await send(
                    "POST",
                    self._endpoint,
                    body=body,
                    headers={"Content-Type": "application/json"},
                    timeout=self._timeout,
                    connect_timeout=self._connect_timeout,
                    max_body=MAX_ANSWER,
                )
                if response.status >= 400:
                    where = without_query(self._endpoint)
                    logger.warning("a notification to %s was answered %d", where, response.status)
            except NsquarkError as error:
                logger.error("failed to send a notification - %s", error)
            finally:
                self._waiting.task_done()

    async def close(self) -> None:
        """Send what waits, for a second at most."""
        if self._sender is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._waiting.join()
        self._sender.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sender
        self._sender = None


def basic_user(authorization: str) -> str:
    """The user of a Basic `Authorization`; empty without one. The password is not checked."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        text = base64.b64decode(credentials.strip(), validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return ""
    user, colon, _ = text.partition(":")
    return user if colon else ""


def _url(request: Request) -> str:
    scheme = "https" if request.headers.get("x-scheme") == "https" else "http"
    path = request.scope.get("raw_path", b"").decode("latin-1")
    query = request.scope["query_string"].decode("latin-1")
    return f"{scheme}://{request.headers.get('host', '')}{path}" + (f"?{query}" if query else "")
