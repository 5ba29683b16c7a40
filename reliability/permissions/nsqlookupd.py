"""nsqlookupd's commands and routes. It knows neither certificates nor secrets."""

from __future__ import annotations

import json
import struct

from nsquark.nsqlookupd.connection import HANDLERS
from scripts.reference.routes import nsqlookupd_routes
from tests.daemon import Client, sized

from .nsqd_http import NotTried
from .table import YES, Table
from .world import CHANNEL, TOPIC, World, ask

_PEER = {"broadcast_address": "h", "hostname": "h", "tcp_port": 1, "http_port": 2, "version": "1.3.0"}
COMMANDS = {
    "IDENTIFY": b"IDENTIFY\n" + sized(json.dumps(_PEER).encode()),
    "PING": b"PING\n",
    "REGISTER": f"REGISTER {TOPIC} {CHANNEL}\n".encode(),
    "UNREGISTER": f"UNREGISTER {TOPIC} {CHANNEL}\n".encode(),
}
_HERE = f"topic={TOPIC}&channel={CHANNEL}"
# The query of each route that needs one.
QUERIES = {
    "GET /lookup": f"topic={TOPIC}",
    "GET /channels": f"topic={TOPIC}",
    "POST /topic/create": f"topic={TOPIC}",
    "POST /topic/delete": f"topic={TOPIC}",
    "POST /topic/tombstone": f"topic={TOPIC}&node=h:2",
    "POST /channel/create": _HERE,
    "POST /channel/delete": _HERE,
    "GET /debug/pprof/profile": "seconds=0.01",
    "PUT /debug/tracemalloc": "frames=0",
    "PUT /debug/setblockrate": "rate=0",
}
ANSWERS = {"GET /debug/pprof/heap": 409}  # nothing is traced


async def commands(world: World) -> Table:
    if set(COMMANDS) != {name.decode() for name in HANDLERS}:
        raise NotTried(f"commands and tries differ: {sorted(COMMANDS)}, {sorted(HANDLERS)}")
    result = Table(
        "nsqlookupd, TCP",
        "nsqlookupd has no TLS and no secrets, as in NSQ: a client that reaches the port may register any "
        "address. Keep its ports where only nsqds, consumers and nsqadmin reach them.",
        ["before IDENTIFY", "after IDENTIFY"],
    )
    for name, command in COMMANDS.items():
        result.rows[name] = [
            await _send(world, b"", command),
            await _send(world, COMMANDS["IDENTIFY"], command),
        ]
    return result


async def _send(world: World, before: bytes, command: bytes) -> str:
    async with await Client.connect(world.nsqlookupd.tcp_address, b"  V1") as client:
        answer = b""
        for each in filter(None, (before, command)):
            client.send(each)
            size = struct.unpack(">i", await client.reader.readexactly(4))[0]
            answer = await client.reader.readexactly(size)
    return answer.split(b" ")[0].decode() if answer.startswith(b"E_") else YES


async def routes(world: World) -> Table:
    result = Table("nsqlookupd, HTTP", "The same holds for its HTTP port.", ["anybody"])
    for route in sorted(nsqlookupd_routes(), key=lambda route: (" /debug/" in route, route.split(" ")[::-1])):
        async with await Client.connect(world.nsqlookupd.tcp_address, b"  V1") as producer:
            for each in (COMMANDS["IDENTIFY"], COMMANDS["REGISTER"]):
                producer.send(each)
                await producer.reader.readexactly(4)
            method, path = route.split(" ")
            status, body, _ = await ask(world.nsqlookupd, method, f"{path}?{QUERIES.get(route, '')}")
        if status != ANSWERS.get(route, 200):
            raise NotTried(f"{route}: {status} {body}")
        result.rows[route] = [YES]
    return result
