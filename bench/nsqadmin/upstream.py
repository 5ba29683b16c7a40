"""A cluster that is not there: one process plays 100 nsqds and an nsqlookupd, with answers made beforehand.

    python bench/nsqadmin/upstream.py --port 24151 --nsqds 100 --topics 5000 --channels 4 --copies 4

It listens on one port of all loopback addresses. At 127.0.0.1 it is the nsqlookupd, at 127.1.0.N nsqd N.
"""

import argparse
import asyncio
import json
from typing import Any
from urllib.parse import parse_qs

import uvloop

HEAD = (
    "HTTP/1.1 {status}\r\nContent-Type: application/json; charset=utf-8\r\n"
    "X-Nsq-Content-Type: nsq; version=1.0\r\n"
)
ASKED = 17  # the number of the topic that `scale.py` asks for: a dead nsqd has it
NO_LATENCY = '"e2e_processing_latency":{"count":0,"percentiles":null}'
STATS = '{"version":"1.3.0","health":"OK","start_time":1794772429,"topics":[%s],"producers":null}'


def topic_name(number: int) -> str:
    return f"topic-{number:05d}"


def packed(body: str, status: str = "200 OK") -> bytes:
    data = body.encode()
    return (HEAD.format(status=status) + f"Content-Length: {len(data)}\r\n\r\n").encode() + data


def client(number: int) -> dict[str, Any]:
    return {
        "client_id": f"worker{number}",
        "hostname": f"worker{number}.example.com",
        "version": "V2",
        "remote_address": f"10.0.0.31:{number}",
        "state": 3,
        "ready_count": 2,
        "in_flight_count": 2,
        "message_count": number,
        "finish_count": number,
        "requeue_count": 0,
        "connect_ts": 1794772429,
        "sample_rate": 0,
        "deflate": False,
        "snappy": False,
        "user_agent": "bench/1.0",
        "tls": False,
        "tls_cipher_suite": "",
        "tls_version": "",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": False,
    }


def channel(number: int, *, clients: bool) -> str:
    told = {
        "channel_name": f"channel-{number}",
        "depth": number * 17,
        "backend_depth": number * 3,
        "in_flight_count": number,
        "deferred_count": 0,
        "message_count": number * 1000,
        "requeue_count": 5,
        "timeout_count": 1,
        "client_count": 2,
        "clients": [client(number), client(number + 1)] if clients else None,
        "paused": False,
    }
    return json.dumps(told, separators=(",", ":"))[:-1] + f",{NO_LATENCY}}}"


def topic(number: int, channels: list[str]) -> str:
    return (
        f'{{"topic_name":"{topic_name(number)}","channels":[{",".join(channels)}],"depth":{number},'
        f'"backend_depth":0,"message_count":{number * 10},"message_bytes":0,"paused":false,{NO_LATENCY}}}'
    )


class Cluster:
    """The answers of every daemon."""

    def __init__(self, port: int, nsqds: int, topics: int, channels: int, copies: int, dead: int) -> None:
        self.port = port
        self.nsqds = nsqds
        self.topics = topics
        self.copies = copies
        first = self.producers(ASKED)[0]
        self.dead = {(first + each) % nsqds for each in range(dead)}
        lists = {
            clients: [channel(each, clients=clients) for each in range(channels)] for clients in (True, False)
        }
        self.of_node: list[list[int]] = [[] for _ in range(nsqds)]
        for number in range(topics):
            for node in self.producers(number):
                self.of_node[node].append(number)
        self.stats = {
            (node, clients): packed(
                STATS % ",".join(topic(number, lists[clients]) for number in self.of_node[node])
            )
            for node in range(nsqds)
            for clients in (True, False)
        }
        self._lists = lists
        self.all_topics = packed(json.dumps({"topics": [topic_name(number) for number in range(topics)]}))
        self.nodes = packed(
            json.dumps({"producers": [self.producer(node, topics=True) for node in range(nsqds)]})
        )

    def producers(self, number: int) -> list[int]:
        return [(number * 7 + copy * 13) % self.nsqds for copy in range(self.copies)]

    def producer(self, node: int, *, topics: bool) -> dict[str, Any]:
        told: dict[str, Any] = {
            "remote_address": f"127.1.0.{node + 1}:50000",
            "hostname": f"nsqd{node:03d}",
            "broadcast_address": f"127.1.0.{node + 1}",
            "tcp_port": 4150,
            "http_port": self.port,
            "version": "1.3.0",
        }
        if topics:
            names = [topic_name(number) for number in self.of_node[node]]
            told |= {"tombstones": [False] * len(names), "topics": names}
        return told

    def answer(self, node: int, path: str, query: dict[str, list[str]]) -> bytes:
        """`node` is -1 for the nsqlookupd."""
        name = query.get("topic", [""])[0]
        number = int(name.rpartition("-")[2]) if name else -1
        if node < 0:
            if path == "/topics":
                return self.all_topics
            if path == "/nodes":
                return self.nodes
            if path == "/lookup":
                found = [self.producer(each, topics=False) for each in self.producers(number)]
                return packed(json.dumps({"channels": [], "producers": found}))
            return packed('{"channels":[]}')
        if path == "/info":
            return packed(json.dumps(self.producer(node, topics=False)))
        clients = query.get("include_clients", ["true"])[0] != "false"
        if number < 0:
            return self.stats[node, clients]
        channels = self._lists[clients]
        if "channel" in query:
            channels = channels[int(query["channel"][0].rpartition("-")[2]) :][:1]
        return packed(STATS % topic(number, channels))


class Connection(asyncio.Protocol):
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        host = transport.get_extra_info("sockname")[0]
        self._node = int(host.rpartition(".")[2]) - 1 if host.startswith("127.1.") else -1
        if self._node in self._cluster.dead:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while b"\r\n\r\n" in self._buffer:
            head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
            target = head.split(b" ", 2)[1].decode()
            path, _, query = target.partition("?")
            self._transport.write(self._cluster.answer(self._node, path, parse_qs(query)))


async def serve(cluster: Cluster) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(cluster), "0.0.0.0", cluster.port, backlog=4096)
    print("listening", flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--nsqds", type=int, default=100)
    parser.add_argument("--topics", type=int, default=5000)
    parser.add_argument("--channels", type=int, default=4, help="of each topic")
    parser.add_argument("--copies", type=int, default=4, help="nsqds that have a topic")
    parser.add_argument("--dead", type=int, default=0, help="nsqds that hang up on every client")
    args = parser.parse_args()
    cluster = Cluster(args.port, args.nsqds, args.topics, args.channels, args.copies, args.dead)
    uvloop.run(serve(cluster))


if __name__ == "__main__":
    main()
