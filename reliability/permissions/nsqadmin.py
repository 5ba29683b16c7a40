"""nsqadmin's routes: as anybody, as users that are admins or not, and from a page of another site."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from urllib.parse import urlencode

from nsquark.nsqadmin.admin import Admin
from nsquark.nsqadmin.api.routes import routes as api_routes
from nsquark.nsqadmin.options import parse
from nsquark.nsqadmin.pages import Pages
from tests.daemon import Nsqadmin, Nsqd

from .nsqd_http import NotTried
from .table import YES, Table
from .world import CHANNEL, TOPIC, World, ask, message_of

_HERE = f"topic={TOPIC}&channel={CHANNEL}"
ANSWERS = {"GET /history": 404}  # nothing was sampled
_NEEDS_NAMES = ("/peek", "/dead", "/seek")


@dataclass(slots=True, frozen=True)
class Visitor:
    """A column."""

    column: str
    admin: Nsqadmin
    headers: dict[str, str] = field(default_factory=dict)


def visitors(world: World) -> list[Visitor]:
    guarded = world.guarded_admin
    elsewhere = {"Origin": "http://elsewhere.example"}
    return [
        Visitor("default flags", world.admin),
        Visitor("default flags: from a page of another site", world.admin, elsewhere),
        Visitor("`--admin-user=alice`: no user", guarded),
        Visitor("`--admin-user=alice`: bob", guarded, {"X-Forwarded-User": "bob"}),
        Visitor("`--admin-user=alice`: alice", guarded, {"X-Forwarded-User": "alice"}),
        Visitor("its own secret is wrong", world.refused_admin),
    ]


async def table(world: World) -> Table:
    who = visitors(world)
    result = Table(
        "nsqadmin, HTTP",
        "The nsqadmin with `--admin-user=alice` has an `--allow-config-from-cidr` that the client is outside "
        "of. nsqadmin can do no more than its own secret lets it (`--http-client-secret-file`): where that "
        "is wrong, the cell says how nsqadmin tells of it.",
        [each.column for each in who],
    )
    for method, path in await listed(world):
        result.rows[f"{method} {path}"] = [await _try(world, each, method, path) for each in who]
    return result


async def listed(world: World) -> list[tuple[str, str]]:
    """Every (method, path), out of the tables that nsqadmin itself serves from."""
    options = parse([f"--nsqd-http-address={world.open.http_address}", "--proxy-graphite"])
    admin = Admin(options)
    table = [*api_routes(admin), *Pages(admin.cluster).routes()]
    await admin.close()
    found: list[tuple[str, str]] = []
    for resource in table:
        found += [(method, resource.path) for method in set(resource.handlers) - {"HEAD", "OPTIONS"}]
    return sorted(set(found), key=lambda each: (not each[1].startswith("/api"), each[1], each[0]))


def _filled(path: str, nsqd: Nsqd) -> str:
    values = {
        "{topic}": TOPIC,
        "{channel}": CHANNEL,
        "{node}": nsqd.http_address,
        "{option}": "log_level",
        "{asset:path}": "nsqadmin.css",
    }
    for name, value in values.items():
        path = path.replace(name, value)
    return path


async def _try(world: World, who: Visitor, method: str, path: str) -> str:
    nsqd = world.open if who.admin is world.admin else world.guarded
    for each in (f"/topic/create?topic={TOPIC}", f"/channel/create?{_HERE}"):
        await world.superuser(nsqd).ask("POST", each)
    target = _filled(path, nsqd)
    if path in _NEEDS_NAMES:
        target += f"?{_HERE}"
    body = b""
    if path == "/act":
        target += f"?do=pause&topic={TOPIC}"
    elif path in ("/api/graphite", "/render"):
        target += "?metric=rate&target=x"
    if method == "POST" and path == "/seek":
        body = urlencode({"topic": TOPIC, "channel": CHANNEL, "place": "latest", "confirm": CHANNEL}).encode()
    elif path == "/api/topics" or path.startswith("/api/nodes"):
        body = json.dumps({"topic": TOPIC}).encode()
    elif path.startswith("/api"):
        body = json.dumps({"action": "pause"}).encode()
    elif path.startswith("/config"):
        body = b"debug"
    status, answer, _ = await ask(
        who.admin, method, target, body if method != "GET" else b"", headers=who.headers
    )
    if status == ANSWERS.get(f"{method} {path}", 200):
        return YES
    if status in (403, 502):
        message = message_of(answer).partition(":")[0]
        return f"{status} {message}".strip()
    raise NotTried(f"{method} {path} as {who.column}: {status} {answer[:500]}")
