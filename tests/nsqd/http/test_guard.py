"""Requests with the same secret at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import cast

from nsquark.http import Request, Response, Router, v1_text
from nsquark.nsqd.http.guard import HttpGuard
from nsquark.nsqd.options import Options
from nsquark.nsqd.protocol.auth.auth_servers import AuthServers
from nsquark.nsqd.protocol.certificates import Certificates
from tests.security.auth_server import AuthServer, entry

OK = v1_text("OK")


async def test_who_comes_while_it_is_asked_waits_for_that_answer() -> None:
    """However late the second one gets to run: even when the answer has come meanwhile."""
    async with AuthServer({"secret": [entry()]}) as server:
        options = Options()
        options.auth_http_address = [server.address]
        guard = HttpGuard(AuthServers(options, Certificates(options)))
        handler = guard("publish", lambda _request: OK)
        target = Router().resolve(b"POST", b"/pub?topic=events")

        def ask() -> Awaitable[Response]:
            request = Request(None, target, {b"Authorization": b"Bearer secret"})
            return cast(Awaitable[Response], handler(request))

        early, late = ask(), ask()
        async with asyncio.timeout(20):
            assert await early is OK
            assert await late is OK
        assert ask() is OK  # remembered: no need to wait
        assert len(server.asked) == 1
