"""A follower as a process sees it: HTTP with a few routes, no TCP port, until it is stopped or promoted."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from nsquark.http import HttpError, HttpServer, Request, Response, Router, plain_text, v1_json
from nsquark.net.listeners import listen, serve, shown
from nsquark.nsqd.options import Options

from ..changes.access import ReplicaAccess
from .follower import Follower
from .promotion import IN_SYNC

logger = logging.getLogger(__name__)

FAMILIES = (
    ("term", "The term of the primary that is followed."),
    ("written", "The last sequence that is written."),
    ("synced", "The last sequence that is on the disk."),
    ("lag", "Frames that the primary has sent and that are not written."),
    ("connected", "1 while the stream is open."),
)


def router(follower: Follower, access: ReplicaAccess, promoted: asyncio.Event) -> Router:
    """All routes of a follower. A promotion sets `promoted`."""

    def ping(_request: Request) -> Response:
        return plain_text(200, "OK")

    def tell(_request: Request) -> Response:
        return v1_json(
            {
                "state": follower.state,
                "node": follower.node,
                "term": follower.term,
                "primary": f"{follower.primary.host}:{follower.primary.port}",
                "connected": follower.connected,
                "written": follower.written,
                "synced": follower.synced,
                "lag": follower.lag,
                "problem": follower.problem,
            }
        )

    def metrics(_request: Request) -> Response:
        lines: list[str] = []
        for name, text in FAMILIES:
            full = f"nsqd_replica_{name}"
            value = int(getattr(follower, name))
            lines += [f"# HELP {full} {text}", f"# TYPE {full} gauge", f"{full} {value}"]
        lines += ["# TYPE nsqd_replica_in_sync gauge", f"nsqd_replica_in_sync {follower.state == IN_SYNC:d}"]
        body = "\n".join(lines).encode() + b"\n"
        return Response(200, body, (("Content-Type", "text/plain; version=0.0.4; charset=utf-8"),))

    def promote(request: Request) -> Response:
        access.check(request)
        if follower.state != IN_SYNC:
            raise HttpError(409, "NOT_IN_SYNC")
        promoted.set()
        return v1_json({"state": "promoted", "term": follower.term + 1})

    table = Router()
    table.add("GET", "/ping", ping)
    table.add("GET", "/replica", tell)
    table.add("GET", "/metrics", metrics)
    table.add("POST", "/replica/promote", promote)
    return table


async def follow(options: Options, stop: asyncio.Event) -> bool:
    """Keep a warm copy until `stop` is set; returns whether the copy was promoted. Raises StartError."""
    access, follower = ReplicaAccess(options), Follower(options)
    promoted = asyncio.Event()
    http = HttpServer(router(follower, access, promoted))
    servers = []
    if options.http_address:
        sock = listen("nsqd", options.http_address, unix=True)
        logger.info("HTTP: listening on %s", shown(sock))
        servers.append(await serve(http.protocol, sock))
    tasks = [asyncio.create_task(each) for each in (follower.run(), stop.wait(), promoted.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for server in servers:
            server.close()
        http.close()
        await asyncio.sleep(0)
    return promoted.is_set()
