"""Other queues beside nsqd, each in its usual durable setting: Redis, NATS, beanstalkd, RabbitMQ.

They take part where their programs are installed and the workload has an equal there: publishing with
200 messages unanswered (nsqd: MPUB of 200), draining that backlog with an acknowledgement for each, and
publishing one at a time. `peerload.c` loads them.
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import servers
from load import MESSAGE_SIZE, LoadError, compile_program
from measuring import DRAIN_TIMEOUT, Effort
from servers import Server

SOURCE = Path(__file__).resolve().parent.parent / "peerload.c"
PEERLOAD = SOURCE.parent / "build" / "peerload"
LONGEST_BACKLOG = 3.0
RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"

# Workloads, by their first measure, that have an equal with every peer.
EQUALS = ("mpub", "pipelined", "one-by-one-1", "one-by-one")


@dataclass(slots=True, frozen=True)
class Peer:
    """`argv` has {port}, {second} (another port) and {data} in it; `setting` says how durable that is."""

    name: str
    argv: tuple[str, ...]
    setting: str


PEERS = [
    Peer(
        "redis",
        (
            *("redis-server", "--port", "{port}", "--bind", "127.0.0.1", "--dir", "{data}"),
            *("--appendonly", "yes", "--save", ""),
        ),
        "Redis Streams: appendonly, fsync every second; a consumer group, XACK",
    ),
    Peer(
        "nats",
        ("nats-server", "-a", "127.0.0.1", "-p", "{port}", "-js", "-sd", "{data}"),
        "NATS JetStream: a stream in files, one replica, fsync as by default; a pull consumer, explicit acks",
    ),
    Peer(
        "beanstalkd",
        ("beanstalkd", "-l", "127.0.0.1", "-p", "{port}", "-b", "{data}"),
        "beanstalkd: a write-ahead log, fsync at most every 50 ms as by default; reserve and delete",
    ),
    Peer(
        "rabbitmq",
        (
            *("env", "RUNNING_UNDER_SYSTEMD=1", "HOME={data}", "RABBITMQ_NODENAME=b{port}@localhost"),
            *(
                "RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
                "RABBITMQ_NODE_PORT={port}",
                "RABBITMQ_DIST_PORT={second}",
            ),
            *(
                "RABBITMQ_MNESIA_BASE={data}",
                "RABBITMQ_ENABLED_PLUGINS_FILE={data}/plugins",
                "RABBITMQ_LOGS=-",
            ),
            *("RABBITMQ_PID_FILE={data}/pid", RABBITMQ),
        ),
        "RabbitMQ: a durable classic queue, persistent messages, confirms; prefetch 200, an ack each",
    ),
]


def installed() -> list[Peer]:
    """A program in /usr/sbin changes the user before it runs RabbitMQ; the one it runs is taken."""
    return [peer for peer in PEERS if shutil.which(peer.argv[-1 if peer.argv[0] == "env" else 0])]


@contextmanager
def running(peer: Peer, data_parent: Path | None) -> Iterator[Server]:
    """Run the peer with an empty data folder of its own, made under `data_parent`."""
    with tempfile.TemporaryDirectory(prefix=f"{peer.name}-bench-", dir=data_parent) as folder:
        data = Path(folder, "data")
        data.mkdir()
        port, second = servers.free_ports(2)
        argv = [word.format(port=port, second=second, data=data) for word in peer.argv]
        with servers.running(argv, port, 0, Path(folder, "log")) as server:
            yield server


def figures(peer: Peer, workload: str, server: Server, effort: Effort) -> dict[str, float]:
    """The figures of the workload whose first measure is `workload`, one of EQUALS."""
    if workload == "mpub":
        count, mpub = _run(peer, "pub", server, "mpub", min(effort.seconds, LONGEST_BACKLOG), window=200)
        drained, sub = _run(peer, "sub", server, "sub", DRAIN_TIMEOUT, window=200, count=count)
        if drained < count:
            raise LoadError(f"{drained} of {count} messages after {DRAIN_TIMEOUT:g} s")
        return mpub | sub
    if workload == "pipelined":
        return _run(peer, "pub", server, workload, effort.seconds, window=64, conns=4)[1]
    conns = {"one-by-one-1": 1, "one-by-one": 32}[workload]
    return _run(peer, "pub", server, workload, effort.seconds, window=1, conns=conns)[1]


def _run(
    peer: Peer, mode: str, server: Server, name: str, seconds: float, **options: int
) -> tuple[int, dict[str, float]]:
    """How many messages, and the rate with the processor time beside it. Raises LoadError."""
    compile_program(SOURCE, PEERLOAD)
    flags = {"port": server.port, "size": MESSAGE_SIZE, "seconds": seconds, **options}
    argv = [str(PEERLOAD), peer.name, mode]
    argv += [word for key, value in flags.items() for word in (f"--{key}", str(value))]
    before = server.processor_seconds()
    try:
        done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=seconds + 30)
    except subprocess.TimeoutExpired:
        raise LoadError(f"peerload did not end within {seconds + 30:g} s") from None
    if done.returncode:
        raise LoadError(done.stderr.strip() or f"peerload ended with {done.returncode}")
    spent, printed = server.processor_seconds() - before, json.loads(done.stdout)
    total = printed["total"]
    return total, {name: printed["per_s"], f"{name}-cpu": spent * 1e6 / max(total, 1)}
