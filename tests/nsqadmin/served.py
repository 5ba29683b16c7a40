"""An nsqadmin in the test's own loop, on a port of its own; and a small cluster of real daemons."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nsquark.http.client.single_request import request
from nsquark.nsqadmin import options as nsqadmin_options
from nsquark.nsqadmin.server import Server
from tests.daemon import PATIENCE, Nsqd, Nsqlookupd, until


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Admin:
    """`get`, `post` and the like speak to nsqadmin at `address`."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def ask(self, method: str, path: str, body: object = b"", **headers: str) -> Answer:
        """A body that is no bytes is sent as JSON. Header names have `_` for `-`."""
        response = await request(
            method,
            f"http://{self.address}{path}",
            body=body if isinstance(body, bytes) else json.dumps(body).encode(),
            headers={name.replace("_", "-"): value for name, value in headers.items()},
            timeout=PATIENCE,
        )
        return Answer(response.status, response.body, response.headers)

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.ask("GET", path, **headers)

    async def json(self, path: str) -> Any:
        """What a GET is answered with, which is a 200."""
        answer = await self.get(path)
        assert answer.status == 200, (path, answer)
        return answer.json

    async def done(self, method: str, path: str, body: object = b"") -> None:
        """Do what must succeed everywhere."""
        answer = await self.ask(method, path, body)
        assert (answer.status, answer.json) == (200, {"message": ""}), answer


@asynccontextmanager
async def serving(*flags: str) -> AsyncIterator[Admin]:
    options = nsqadmin_options.parse(["--http-address=127.0.0.1:0", *flags])
    nsqadmin_options.validate(options)
    server = Server(options)
    await server.start()
    try:
        yield Admin(f"127.0.0.1:{server.http_port}")
    finally:
        await server.stop()


@dataclass
class Cluster:
    """Two nsqlookupds, and three nsqds of which the last is registered with the first nsqlookupd alone."""

    lookupds: list[Nsqlookupd]
    nsqds: list[Nsqd]

    @property
    def flags(self) -> list[str]:
        return [f"--lookupd-http-address={lookupd.http_address}" for lookupd in self.lookupds]

    @property
    def nsqd_flags(self) -> list[str]:
        return [f"--nsqd-http-address={nsqd.http_address}" for nsqd in self.nsqds]

    async def registered(self, topic: str, count: int, channel: str = "") -> None:
        """Wait until the first nsqlookupd knows so many producers of a topic, and the channel."""

        async def is_registered() -> bool:
            status, answer = await self.lookupds[0].http("GET", f"/lookup?topic={topic}")
            told = json.loads(answer)
            known = not channel or channel in told.get("channels", ())
            return status == 200 and len(told["producers"]) == count and known

        await until(is_registered)

    async def fill(self) -> None:
        """`orders` with the channel `archive` on the first two nsqds, `solo` on the third."""
        for number, nsqd in enumerate(self.nsqds[:2]):
            await nsqd.post("/topic/create?topic=orders")
            await nsqd.post("/channel/create?topic=orders&channel=archive")
            for _ in range(3 + number):
                await nsqd.post("/pub?topic=orders", b"message")
        await self.nsqds[2].post("/topic/create?topic=solo")
        await self.registered("orders", 2, "archive")
        await self.registered("solo", 1)


@contextmanager
def cluster(path: Path, *nsqd_flags: str) -> Iterator[Cluster]:
    with ExitStack() as stack:
        lookupds = [stack.enter_context(Nsqlookupd().start()) for _ in range(2)]
        nsqds = []
        for number, known_to in enumerate((lookupds, lookupds, lookupds[:1])):
            nsqd = Nsqd(
                path / f"nsqd{number + 1}",
                "--broadcast-address=127.0.0.1",
                *(f"--lookupd-tcp-address={lookupd.tcp_address}" for lookupd in known_to),
                *nsqd_flags,
            )
            nsqds.append(stack.enter_context(nsqd.start()))
        yield Cluster(lookupds, nsqds)


def free_address() -> str:
    """An address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"
