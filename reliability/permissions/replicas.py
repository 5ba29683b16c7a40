"""What nsqds ask each other: followers of a node, and members of a replica group. Each as every client."""

from __future__ import annotations

from typing import Any, cast

from nsquark.http import Router
from nsquark.nsqd.replica.changes.access import HEADER
from nsquark.nsqd.replica.changes.follower_routes import ReplicaApi
from nsquark.nsqd.replica.copy import follower_server
from nsquark.nsqd.replica.member.group_routes import GroupApi
from tests.daemon import Daemon

from .nsqd_http import NotTried
from .table import YES, Table
from .world import World, ask, message_of

# The query of each route that needs one.
_QUERIES = {
    "node: GET /replica/file": "?path=nsquark.dat&from=0&size=1",
    "node: GET /replica/stream": "?stream=another&from=0",
}
# To a client that may, if not 200: there is no such stream, the follower has no primary, the member no etcd.
_ANSWERS = {
    "node: GET /replica/stream": 409,
    "follower: POST /replica/promote": 409,
    "member: POST /replica/handover": 409,
    "member: POST /replica/force": 409,
    **{f"member: GET /replica/{name}": 503 for name in ("primary", "in-sync", "manifest", "file", "stream")},
}


def routes() -> dict[str, list[tuple[str, str]]]:
    """Every route of a follower, of a member that does not serve, and of a node beside its API."""
    nothing = cast(Any, None)
    node = Router()
    ReplicaApi(nothing, nothing, nothing, "").add_to(node)
    return {
        "node": list(node.listed()),
        "follower": list(follower_server.router(nothing, nothing, nothing).listed()),
        "member": list(GroupApi(nothing, nothing).router().listed()),
    }


async def table(world: World) -> Table:
    clients = {
        "no secret": "",
        "wrong secret": world.secrets["wrong"],
        "the secret": world.secrets["replica"],
    }
    result = Table(
        "nsqd, HTTP, between replicas",
        "Nsqds with `--replica-secret-file`, asked with that secret in a header: a *node*, a *follower* "
        "(`--replica-of`) and a *member* of a replica group that serves no clients. A member that serves "
        "has the routes of a node, too. `--http-auth` does not count here, but for `GET /replica`, which any "
        "known secret reads. Without the file, a client on the same machine may do all of it and others get "
        "`403 REPLICA_SECRET_REQUIRED`. A client whose certificate was verified (`require-verify`) needs no "
        "secret.",
        list(clients),
    )
    for name, listed in routes().items():
        for method, path in sorted(listed, key=lambda route: (route[1], route[0])):
            daemon = world.replicas[name]
            row = f"{name}: {method} {path}"
            cells = [await _try(daemon, row, method, path, secret) for secret in clients.values()]
            result.rows[row] = cells
    return result


async def _try(daemon: Daemon, row: str, method: str, path: str, secret: str) -> str:
    headers = {HEADER: secret} if secret else {}
    status, body, _ = await ask(daemon, method, path + _QUERIES.get(row, ""), headers=headers)
    if status == 403:
        return f"403 {message_of(body)}"
    if status != _ANSWERS.get(row, 200):
        raise NotTried(f"{row}: {status} {body}")
    return f"503 {message_of(body)}" if status == 503 else YES
