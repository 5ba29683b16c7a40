"""An nsqd in this process, and requests to its HTTP port."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nsquark.nsqd.broker import Broker
from nsquark.nsqd.options import Options
from nsquark.nsqd.server import Server
from tests.daemon import Client as V2Client
from tests.http.served import Answer, get, post
from tests.http.served import Client as HttpClient


class Api:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.http: HttpClient
        self._clients: list[V2Client] = []

    async def get(self, path: str) -> Answer:
        return await self.http.ask(get(path))

    async def post(self, path: str, body: bytes = b"", method: str = "POST") -> Answer:
        return await self.http.ask(post(path, body, method=method))

    async def put(self, path: str, body: bytes) -> Answer:
        return await self.post(path, body, method="PUT")

    async def done(self, path: str, body: bytes = b"") -> None:
        """A POST that must succeed."""
        answer = await self.post(path, body)
        assert answer.status == 200, (path, answer)

    async def stats(self, query: str = "") -> Any:
        answer = await self.get(f"/stats?format=json{query}")
        assert answer.status == 200
        return json.loads(answer.body)

    async def topic(self, name: str) -> Any:
        (topic,) = (await self.stats(f"&topic={name}"))["topics"]
        return topic

    async def client(self) -> V2Client:
        """A TCP client, closed at the end."""
        client = await V2Client.connect(f"127.0.0.1:{self.broker.tcp_port}")
        self._clients.append(client)
        return client

    def close(self) -> None:
        self.http.close()
        for client in self._clients:
            client.close()


@asynccontextmanager
async def running(data_path: Path, **changes: object) -> AsyncIterator[Api]:
    """An nsqd with these options on ports of its own, stopped at the end."""
    options = Options(data_path=str(data_path), tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")
    for name, value in changes.items():
        setattr(options, name, value)
    server = Server(options)
    await server.start()
    api = Api(server.broker)
    api.http = await HttpClient.connect(server.broker.http_port)
    try:
        yield api
    finally:
        api.close()
        await server.stop()
