"""nsqd's HTTP routes, each as every client. The router says which there are."""

from __future__ import annotations

import itertools
import json
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

from nsquark.nsqd.http.routes import router
from tests.nsqd.api import running

from .table import YES, Table
from .world import CHANNEL, TOPIC, NoConnection, Who, World, ask_as, message_of

HANDSHAKE = "no handshake"
_HERE = f"topic={TOPIC}&channel={CHANNEL}"
_MPUB = struct.pack(">ii", 1, 1) + b"x"
_REPORT = json.dumps({"query_id": "q", "state": "running"}).encode()
_NOTHING_STAGED = json.dumps({"partitions": []}).encode()
_COUNTS = ("depth", "in_flight_count", "deferred_count")
_numbers = itertools.count()


@dataclass(slots=True, frozen=True)
class Try:
    """A request that does what the route is for. `shown` is what its row says beside the path."""

    query: str = ""
    body: bytes = b""
    shown: str = ""
    answer: int = 200  # to a client that may
    argument: str = ""  # of a path that takes one

    def path(self, route: str) -> str:
        query = self.query.replace("NEW", str(next(_numbers)))
        return f"{route}{self.argument}" + (f"?{query}" if query else "")


_TOPIC, _CHANNEL = [Try(f"topic={TOPIC}")], [Try(_HERE)]
_THROUGH = [Try(f"topic={TOPIC}"), Try(f"topic={TOPIC}&through={CHANNEL}", shown="through")]
_LOG_READ = [
    Try(f"topic={TOPIC}&from=0"),
    Try(f"topic={TOPIC}&from=0&through={CHANNEL}", shown="through"),
]
_APP = "app=nightly&batch=NEW"
_STAGE = f"/staged/put?app=nightly&batch={1 << 40}&partition=0&attempt=a&seq=0&topic={TOPIC}"
_VERBS = ("create", "delete", "empty", "pause", "unpause")

# What to ask of each route. A route that is not here cannot be tried, and that is an error.
TRIES: dict[tuple[str, str], list[Try]] = {
    **{
        ("GET", path): [Try()]
        for path in ("/ping", "/live", "/ready", "/info", "/stats", "/metrics", "/openapi.yaml", "/staged")
    },
    ("POST", "/health/acknowledge"): [Try()],
    **{("POST", path): [Try(f"topic={TOPIC}", b"x")] for path in ("/pub", "/put", "/mpub", "/mput")},
    **{("POST", f"/topic/{verb}"): _TOPIC for verb in _VERBS},
    **{("POST", f"/channel/{verb}"): _CHANNEL for verb in _VERBS},
    **{(method, f"/{verb}_topic"): _TOPIC for verb in _VERBS for method in ("GET", "POST")},
    **{(method, f"/{verb}_channel"): _CHANNEL for verb in _VERBS for method in ("GET", "POST")},
    ("GET", "/log/range"): _THROUGH,
    ("GET", "/log/read"): _LOG_READ,
    ("GET", "/topic/peek"): _THROUGH,
    ("GET", "/channel/peek"): _CHANNEL,
    ("POST", "/channel/seek"): [Try(f"{_HERE}&to=latest")],
    ("POST", "/channel/commit"): [Try(f"{_HERE}&to=0")],
    ("POST", "/channel/max_attempts"): [Try(f"{_HERE}&to=default")],
    ("POST", "/channel/redeliver"): _CHANNEL,
    ("POST", "/channel/lease"): [Try(f"{_HERE}&owner=me&hold_ms=0")],
    ("GET", "/topic/retention"): _TOPIC,
    ("POST", "/topic/retention"): [Try(f"topic={TOPIC}&bytes=default")],
    ("POST", "/channel/hold_timeout"): [Try(f"{_HERE}&to=default")],
    ("POST", "/channel/report"): [Try(_HERE, _REPORT)],
    ("GET", "/channel/reports"): [Try(_HERE), Try(shown="without a topic")],
    ("POST", "/staged/put"): [Try(f"{_APP}&partition=0&attempt=a&seq=0&topic={TOPIC}", _MPUB)],
    ("POST", "/staged/prepare"): [Try(f"{_APP}&home=a&home_url=http://127.0.0.1:1", _NOTHING_STAGED)],
    ("POST", "/staged/publish"): [Try(_APP, _NOTHING_STAGED)],
    ("POST", "/staged/abort"): [Try(_APP)],
    ("GET", "/config/"): [Try(argument="log_level")],
    ("PUT", "/config/"): [Try(argument="log_level", body=b"debug")],
    **{
        ("GET", f"/debug/pprof/{name}"): [Try()]
        for name in ("", "cmdline", "symbol", "goroutine", "threadcreate", "block")
    },
    ("POST", "/debug/pprof/symbol"): [Try()],
    ("GET", "/debug/pprof/profile"): [Try("seconds=0.01")],
    ("GET", "/debug/pprof/heap"): [Try(answer=409)],  # nothing is traced
    ("GET", "/debug/tracemalloc"): [Try()],
    ("PUT", "/debug/tracemalloc"): [Try("frames=0")],
    ("PUT", "/debug/setblockrate"): [Try("rate=0")],
    ("POST", "/debug/freememory"): [Try()],
}


class NotTried(AssertionError):
    """A route that this table does not know, or one that does not answer as it should."""


async def routes() -> list[tuple[str, str]]:
    """Every route of nsqd, out of its own router."""
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder)) as api:
            return list(router(api.broker).listed())


async def table(world: World) -> Table:
    listed = await routes()
    check_complete(listed)
    result = Table(
        "nsqd, HTTP and HTTPS",
        "Secrets are sent as `Authorization: Bearer`, to an nsqd with `--auth-http-address` and "
        f"`--http-auth`. The secret for `publish` has that permission on the topic `{TOPIC}`, the secret "
        f"for `subscribe` on its channel `{CHANNEL}`. `through` is `through={CHANNEL}` in the query. The "
        "application that stages batches has staged for this topic.",
        [who.column for who in world.clients],
    )
    for method, path in sorted(listed, key=_order):
        for each in TRIES[method, path]:
            place = f"{path}{{opt}}" if each.argument else path
            row = f"{method} {place}" + (f" {each.shown}" if each.shown else "")
            result.rows[row] = [await _try(world, who, method, path, each) for who in world.clients]
    return result


def check_complete(listed: list[tuple[str, str]]) -> None:
    """Raises NotTried if the router and `TRIES` differ."""
    unknown, gone = set(listed) - set(TRIES), set(TRIES) - set(listed)
    if unknown or gone:
        raise NotTried(f"routes without a try: {sorted(unknown)}; tries without a route: {sorted(gone)}")


def _order(route: tuple[str, str]) -> tuple[bool, bool, str, str]:
    """Old names and /debug come last."""
    method, path = route
    return path.startswith("/debug"), "_" in path.split("/")[1], path, method


async def _try(world: World, who: Who, method: str, path: str, each: Try) -> str:
    before = await _prepared(world, who)
    try:
        status, body = await ask_as(who, method, each.path(path), each.body)
    except NoConnection:
        status, body = 0, HANDSHAKE
    refusal = message_of(body) if status in (401, 403) else body if not status else ""
    if not refusal:
        if status != each.answer:
            raise NotTried(f"{method} {path} as {who.column}: {status} {body}")
        return YES
    if before != await _state(world, who):
        raise NotTried(f"{method} {path} as {who.column}: refused with {refusal}, and done nevertheless")
    return f"{status} {refusal}" if status else refusal


async def _prepared(world: World, who: Who) -> str:
    """There is a topic with a channel; the answer is the state of both."""
    state = await _state(world, who)
    if f'"{CHANNEL}"' not in state:
        superuser = world.superuser(who.nsqd)
        await superuser.ask("POST", f"/topic/create?topic={TOPIC}")
        await superuser.ask("POST", f"/channel/create?{_HERE}")
        await superuser.ask("POST", _STAGE, _MPUB)  # the application is one that publishes to this topic
        state = await _state(world, who)
    return state


async def _state(world: World, who: Who) -> str:
    """What a request could have changed, and nothing that changes by itself, such as clients that go."""
    body = await world.superuser(who.nsqd).ask("GET", "/stats?format=json&include_mem=false")
    told = []
    for topic in json.loads(body)["topics"]:
        channels = [
            (each["channel_name"], each["paused"], sum(each[count] for count in _COUNTS))
            for each in topic["channels"]
        ]
        told.append((topic["topic_name"], topic["paused"], topic["message_count"], topic["depth"], channels))
    return json.dumps(told)
