"""Access to the HTTP API: only with TLS (`--tls-required`), only with a secret (`--http-auth`).

In NSQ every client that reaches the HTTP port may do anything, with or without an auth server. With
`--http-auth` a request brings the secret of an AUTH as `Authorization: Bearer <secret>`, and the answer of
the auth servers counts as for a TCP client. The route's `access` says what the answer must allow:

| `access` | needs |
|---|---|
| `anybody` | nothing |
| `known` | a secret with any authorization |
| `publish` | `publish` on the topic |
| `application` | `publish` on any topic; the handler asks `request.grants` about the application's topics |
| `subscribe` | `subscribe` on the topic and the channel; without a channel, on one without a name |
| `read` | the same; the name of the channel may also come as `through`, and then it need not exist |
| `subscribe or everything` | as `subscribe` if a topic is named, otherwise as below |
| anything else | an entry that allows everything on every topic and channel |
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING

from nsquark.http import (
    JSON_TYPE,
    Answer,
    Handler,
    HttpError,
    OneAnswer,
    PendingResponse,
    Request,
    Response,
    Router,
    v1_body,
)
from nsquark.net.layered_transport import Layers
from nsquark.nsqd.protocol.auth.authorizations import PUBLISH, SUBSCRIBE, Authorizations

if TYPE_CHECKING:
    from nsquark.nsqd.protocol.auth.auth_servers import AuthServers, Credentials

ANYBODY, KNOWN, APPLICATION = "anybody", "known", "application"
READ, SUBSCRIBE_OR_EVERYTHING = "read", "subscribe or everything"
MAX_REMEMBERED = 4096
REFUSED_FOR = 1.0  # seconds in which the same secret is not asked for again
_CHALLENGE = (("WWW-Authenticate", "Bearer"),)


def tls_required(https_port: int) -> Router:
    """The router of the plain listener where TLS is required: it answers every request alike, as NSQ does."""
    body = f'{{"message": "TLS_REQUIRED", "https_port": {https_port}}}'
    return OneAnswer(v1_body(body.encode(), JSON_TYPE, 403))


class HttpGuard:
    """Wraps the handlers of a router. Remembers answers for their ttl, by a hash of the credentials."""

    def __init__(self, servers: AuthServers) -> None:
        self._servers = servers
        # The key is random, so the time of a lookup does not tell a client how much of a secret was right.
        self._key = os.urandom(32)
        self._remembered: OrderedDict[bytes, tuple[float, Authorizations | None]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Authorizations | None]] = {}

    def __call__(self, access: str, handler: Handler) -> Handler:
        if access == ANYBODY:
            return handler

        def guarded(request: Request) -> Answer:
            who = _credentials(request)
            key = self._hash(who)
            until, held = self._remembered.get(key, (0.0, None))
            if time.monotonic() < until:
                _check(held, access, request)
                return handler(request)
            # Joined or begun here and now: a coroutine starts later, when the answer may be there already.
            asking = self._asking.get(key)
            if asking is None:
                asking = self._asking[key] = asyncio.create_task(self._query(who, key))
            return _answer(asking, access, handler, request)

        return guarded

    def _hash(self, who: Credentials) -> bytes:
        digest = blake2b(key=self._key)
        for part in (who.secret, who.remote_ip.encode(), who.common_name.encode(), b"%d" % who.tls):
            digest.update(b"%d:" % len(part) + part)
        return digest.digest()

    async def _query(self, who: Credentials, key: bytes) -> Authorizations | None:
        from nsquark.nsqd.protocol.auth.auth_servers import NotAnswered

        held = None
        try:
            held = await self._servers.query(who)
        except NotAnswered:
            pass
        finally:
            del self._asking[key]
        while len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        self._remembered[key] = (time.monotonic() + (held.ttl if held is not None else REFUSED_FOR), held)
        self._remembered.move_to_end(key)
        return held


async def _answer(
    asking: asyncio.Task[Authorizations | None], access: str, handler: Handler, request: Request
) -> Response:
    _check(await asyncio.shield(asking), access, request)
    return await _response(handler(request), request)


def _credentials(request: Request) -> Credentials:
    from nsquark.nsqd.protocol.auth.auth_servers import Credentials

    scheme, _, secret = (request.header("Authorization") or "").partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret:
        raise HttpError(401, "AUTH_FIRST", headers=_CHALLENGE)
    transport = request.http_connection.transport if request.http_connection is not None else None
    peer = transport.get_extra_info("peername") if transport is not None else None
    tls = transport.tls if isinstance(transport, Layers) else None
    return Credentials(
        secret.encode("latin-1"),
        str(peer[0]) if isinstance(peer, tuple) else "",
        tls is not None,
        tls.common_name if tls is not None else "",
    )


def _check(held: Authorizations | None, access: str, request: Request) -> None:
    if held is None or not held.entries:
        raise HttpError(401, "AUTH_FAILED", headers=_CHALLENGE)
    request.grants = held
    if access == KNOWN:
        return
    if access == APPLICATION:
        allowed = held.allows_somewhere(PUBLISH)
    elif access == PUBLISH:
        allowed = held.allows(PUBLISH, _topic(request))
    elif access == SUBSCRIBE or (access == SUBSCRIBE_OR_EVERYTHING and "topic" in request.query):
        allowed = held.allows(SUBSCRIBE, _topic(request), request.query.get("channel", ""))
    elif access == READ:
        # A client that may subscribe to a channel may move it over the whole log, so it may read the log.
        given = [request.query[name] for name in ("channel", "through") if name in request.query]
        allowed = all(held.allows(SUBSCRIBE, _topic(request), name) for name in given or [""])
    else:
        allowed = held.allows_all()
    if not allowed:
        raise HttpError(403, "UNAUTHORIZED")


def _topic(request: Request) -> str:
    topic = request.query.get("topic")
    if topic is None:
        raise HttpError(400, "MISSING_ARG_TOPIC")
    return topic


async def _response(answer: Answer, request: Request) -> Response:
    """The response of a handler, which may come at once, later or from a coroutine."""
    if isinstance(answer, PendingResponse):
        later = _Later()
        return answer.attach(later, request) or await later.response
    return answer if isinstance(answer, Response) else await answer


class _Later:
    def __init__(self) -> None:
        self.response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def answer(self, request: Request, response: Response) -> None:
        if not self.response.done():
            self.response.set_result(response)
