"""nsqlookupd and nsqadmin without descriptors: clients wait, and are served once there are some again."""

from __future__ import annotations

import json
import os
import re
import socket

import pytest

from tests.daemon import Daemon, Nsqadmin, Nsqd, Nsqlookupd, until

LIMIT = 64


def limited(daemon: Daemon) -> Daemon:
    daemon.program = ["sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", *daemon.program]
    return daemon


def open_in(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


def processor_time(daemon: Daemon) -> float:
    with open(f"/proc/{daemon.process.pid}/stat") as file:
        times = file.read().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


async def crowded(daemon: Daemon, port: int) -> None:
    """More clients than there are descriptors, twice; each time another one is served when they have gone."""
    few = open_in(daemon)
    for _ in range(2):
        crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(LIMIT + 10)]
        try:
            await until(lambda: open_in(daemon) >= LIMIT - 1)
            used = processor_time(daemon)
            late = socket.create_connection(("127.0.0.1", daemon.http_port), timeout=20)
            late.sendall(b"GET /ping HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n")
            late.settimeout(0.5)
            with pytest.raises(TimeoutError):
                late.recv(1)
            assert processor_time(daemon) - used < 0.3  # it does not try all the time
        finally:
            for each in crowd:
                each.close()
        late.settimeout(20)
        assert late.recv(1000).startswith(b"HTTP/1.1 200 ")
        late.close()
        await until(lambda: open_in(daemon) <= few + 2)
    assert not [line for line in daemon.lines if "Traceback" in line]


@pytest.mark.parametrize("door", ["tcp", "http"])
async def test_nsqlookupd_keeps_its_nsqds_when_clients_take_all_descriptors(
    tmp_path_factory: pytest.TempPathFactory, door: str
) -> None:
    with limited(Nsqlookupd()).start() as lookupd:
        nsqd = Nsqd(
            tmp_path_factory.mktemp("nsqd"),
            f"--lookupd-tcp-address={lookupd.tcp_address}",
            "--broadcast-address=127.0.0.1",
        )
        with nsqd.start():
            await nsqd.post("/topic/create?topic=t")

            async def known() -> bool:
                status, answer = await lookupd.http("GET", "/lookup?topic=t")
                return status == 200 and bool(json.loads(answer)["producers"])

            await until(known)
            await crowded(lookupd, lookupd.tcp_port if door == "tcp" else lookupd.http_port)
            assert await known()


async def test_nsqadmin_serves_again_when_clients_give_its_descriptors_back(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with Nsqd(tmp_path_factory.mktemp("nsqd")).start() as nsqd:
        await nsqd.post("/topic/create?topic=t")
        with limited(Nsqadmin(f"--nsqd-http-address={nsqd.http_address}")).start() as nsqadmin:
            await crowded(nsqadmin, nsqadmin.http_port)
            status, answer = await nsqadmin.http("GET", "/api/topics")
            assert status == 200
            assert re.search(rb'"topics":\s*\["t"\]', answer)
