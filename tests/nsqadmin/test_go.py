"""`/api` next to Go's nsqadmin, over daemons of ours, of Go's and of both. NSQUARK_GO_BIN names a folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import Daemon, Nsqadmin, Nsqd, Nsqlookupd, identify, until
from tests.nsqadmin.served import Admin, Cluster

GO = Path(os.environ.get("NSQUARK_GO_BIN", "/nowhere"))
pytestmark = pytest.mark.skipif(not (GO / "nsqadmin").exists(), reason="NSQUARK_GO_BIN names no Go binaries")


def go(daemon: Daemon) -> Daemon:
    daemon.program = [str(GO / daemon.name)]
    return daemon


@pytest.fixture(params=["ours", "Go's", "mixed"])
def daemons(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Two nsqlookupds and three nsqds, of which none, all or the first of each are Go's."""
    ours, mixed = request.param == "ours", request.param == "mixed"
    with ExitStack() as stack:
        lookupds = [Nsqlookupd() for _ in range(2)]
        for number, lookupd in enumerate(lookupds):
            if not ours and (number == 0 or not mixed):
                go(lookupd)
            stack.enter_context(lookupd.start())
        nsqds = []
        for number in range(3):
            flags = [
                f"--lookupd-tcp-address={each.tcp_address}" for each in lookupds[: 1 if number == 2 else 2]
            ]
            nsqd = Nsqd(
                tmp_path / str(number),
                "--broadcast-address=127.0.0.1",
                "--e2e-processing-latency-percentile=0.99,0.5",
                "--e2e-processing-latency-window-time=60s",
                *flags,
            )
            if not ours and (number == 0 or not mixed):
                go(nsqd)
            nsqds.append(stack.enter_context(nsqd.start()))
        yield Cluster(lookupds, nsqds)


def comparable(value: Any) -> Any:
    """Without what the two may tell differently: Go's null for an empty list, warnings, time, latency."""
    if isinstance(value, dict):
        left_out = {"connected", "e2e_processing_latency", "message"}
        return {key: comparable(each) for key, each in value.items() if key not in left_out}
    if isinstance(value, list):
        return (
            sorted((comparable(each) for each in value), key=lambda each: json.dumps(each, sort_keys=True))
            or None
        )
    return value


def keys(value: Any, path: str = "") -> set[str]:
    """Every key of the JSON with its place and type; lists are alike in all of their items."""
    if isinstance(value, dict):
        return {f"{path}.{key}" for key in value} | {
            found for key, each in value.items() for found in keys(each, f"{path}.{key}")
        }
    if isinstance(value, list):
        return {found for each in value for found in keys(each, path + "[]")}
    return set()


def mended(told: Any) -> Any:
    """Go's topic page uses the record of its first node to add up channels: leave channels out."""
    told = dict(told)
    told.pop("channels", None)
    told["nodes"] = [{**node, "channels": None} for node in told.get("nodes") or ()]
    return told


async def test_the_json_is_that_of_go_s_nsqadmin(daemons: Cluster) -> None:
    await daemons.fill()
    await daemons.lookupds[0].post("/topic/create?topic=ghost")
    await daemons.lookupds[0].post("/channel/create?topic=ghost&channel=c")
    with Nsqadmin(*daemons.flags).start() as ours, go(Nsqadmin(*daemons.flags)).start() as theirs:
        pair = Admin(ours.http_address), Admin(theirs.http_address)
        async with await daemons.nsqds[0].connect() as client:
            client.send(identify(client_id="worker", hostname="host", user_agent="test/1.0"))
            await client.answer()
            await client.sub("orders", "archive", rdy=2)
            client.fin(await client.message())
            await client.message()
            await client.caught_up() if daemons.nsqds[0].program[0] != str(GO / "nsqd") else None
            node = daemons.nsqds[0].http_address

            async def settled() -> bool:
                told = await pair[0].json("/api/topics/orders/archive")
                return bool(told["in_flight_count"] == 2 and told["depth"] == 4)

            await until(settled)
            for path in (
                "/api/topics",
                "/api/topics?inactive=true",
                "/api/topics/orders",
                "/api/topics/solo",
                "/api/topics/orders/archive",
                "/api/topics/orders/nope",
                "/api/nodes",
                f"/api/nodes/{node}",
                "/api/nodes/127.0.0.1:1",
                "/api/counter",
                "/api/topics/nope",
                "/config/statsd_interval",
                "/config/nsqlookupd_http_addresses",
                "/config/nope",
            ):
                got, expected = [await each.get(path) for each in pair]
                assert got.status == expected.status, path
                mine, other = got.json, expected.json
                if path == "/api/topics/orders":
                    assert keys(mended(mine)) == keys(mended(other))
                    mine, other = mended(mine), mended(other)
                if path == "/api/nodes":
                    for record in (*mine["nodes"], *other["nodes"]):
                        record.pop("remote_address")  # of whichever nsqlookupd has answered first
                assert comparable(mine) == comparable(other), path
                if isinstance(mine, dict) and got.status == 200:
                    assert keys(comparable(mine)) == keys(comparable(other)), path


async def test_actions_have_the_effect_of_go_s(daemons: Cluster) -> None:
    await daemons.fill()
    with Nsqadmin(*daemons.flags).start() as ours:
        admin = Admin(ours.http_address)
        for action, state in (("pause", True), ("unpause", False)):
            await admin.done("POST", "/api/topics/orders", {"action": action})
            await admin.done("POST", "/api/topics/orders/archive", {"action": action})
            told = await admin.json("/api/topics/orders")
            assert [node["paused"] for node in told["nodes"]] == [state, state]
            assert told["channels"][0]["paused"] is state
        await admin.done("POST", "/api/topics/orders/archive", {"action": "empty"})
        assert (await admin.json("/api/topics/orders/archive"))["depth"] == 0
        await admin.done("POST", "/api/topics", {"topic": "orders", "channel": "new"})
        await admin.done("DELETE", "/api/topics/orders/new")
        await admin.done("DELETE", f"/api/nodes/{daemons.nsqds[0].http_address}", {"topic": "orders"})
        assert len((await admin.json("/api/topics/orders"))["nodes"]) == 1
        await admin.done("DELETE", "/api/topics/orders")


def test_the_binaries_are_those_of_the_reference() -> None:
    program = shutil.which("nsqadmin", path=str(GO))
    assert program is not None
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert "nsqadmin v1.3" in told.stdout
