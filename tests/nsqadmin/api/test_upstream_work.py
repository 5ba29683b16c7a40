"""What each action asks of the daemons, and in which order; and what is answered when they are gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from tests.http.web import Got, Web, answer
from tests.nsqadmin.served import Admin, free_address, serving

TOPIC = "topic=orders"
BOTH = f"{TOPIC}&channel=archive"


class Daemons:
    """Two nsqlookupds and two nsqds that say yes to everything. `log` has what they were asked, in order."""

    def __init__(self, lookupds: list[Web], nsqds: list[Web]) -> None:
        self.lookupds = lookupds
        self.nsqds = nsqds
        self.log: list[tuple[str, str, str]] = []
        producers = [
            {"broadcast_address": "127.0.0.1", "hostname": f"h{port}", "http_port": port, "tcp_port": port}
            for port in map(port_of, nsqds)
        ]
        found = json.dumps({"producers": producers, "channels": []}).encode()
        for kind, webs in (("nsqlookupd", lookupds), ("nsqd", nsqds)):
            for web in webs:
                for path in ("/lookup", "/nodes"):
                    self._play(web, kind, path, found)
                for action in ("create", "delete", "pause", "unpause", "empty", "tombstone"):
                    for what in ("topic", "channel"):
                        self._play(web, kind, f"/{what}/{action}", b"")

    def _play(self, web: Web, kind: str, path: str, body: bytes) -> None:
        def play(got: Got, writer: asyncio.StreamWriter) -> None:
            assert (got.body, got.headers["accept"]) == (b"", "application/vnd.nsq; version=1.0")
            self.log.append((kind, got.method, got.target))
            writer.write(answer(200, body=body))

        web.answers[path] = play

    @property
    def stages(self) -> list[tuple[str, str, str]]:
        """What was asked. Daemons of one kind are asked at once: two equal questions are one stage."""
        stages = []
        for asked in self.log:
            if not stages or stages[-1] != asked:
                stages.append(asked)
        assert len(self.log) == 2 * len(stages), self.log
        return stages

    @property
    def flags(self) -> list[str]:
        return [f"--lookupd-http-address=127.0.0.1:{port_of(web)}" for web in self.lookupds]


def port_of(web: Web) -> int:
    return int(web.url.rpartition(":")[2])


@pytest.fixture
async def daemons() -> AsyncIterator[Daemons]:
    async with Web() as one, Web() as two, Web() as three, Web() as four:
        yield Daemons([one, two], [three, four])


@pytest.fixture
async def admin(daemons: Daemons) -> AsyncIterator[Admin]:
    async with serving(*daemons.flags) as running:
        yield running


LOOKUP = ("nsqlookupd", "GET", f"/lookup?{TOPIC}")


@pytest.mark.parametrize(
    ("method", "path", "body", "stages"),
    [
        ("POST", "", {"topic": "orders"}, [("nsqlookupd", "POST", f"/topic/create?{TOPIC}")]),
        (
            "POST",
            "",
            {"topic": "orders", "channel": "archive"},
            [
                ("nsqlookupd", "POST", f"/topic/create?{TOPIC}"),
                ("nsqlookupd", "POST", f"/channel/create?{BOTH}"),
                LOOKUP,
                ("nsqd", "POST", f"/channel/create?{BOTH}"),
            ],
        ),
        *(
            ("POST", "/orders", {"action": action}, [LOOKUP, ("nsqd", "POST", f"/topic/{action}?{TOPIC}")])
            for action in ("pause", "unpause", "empty")
        ),
        *(
            (
                "POST",
                "/orders/archive",
                {"action": action},
                [LOOKUP, ("nsqd", "POST", f"/channel/{action}?{BOTH}")],
            )
            for action in ("pause", "unpause", "empty")
        ),
        (
            "DELETE",
            "/orders",
            b"",
            [
                LOOKUP,
                ("nsqlookupd", "POST", f"/topic/delete?{TOPIC}"),
                ("nsqd", "POST", f"/topic/delete?{TOPIC}"),
            ],
        ),
        (
            "DELETE",
            "/orders/archive",
            b"",
            [
                LOOKUP,
                ("nsqlookupd", "POST", f"/channel/delete?{BOTH}"),
                ("nsqd", "POST", f"/channel/delete?{BOTH}"),
            ],
        ),
    ],
)
async def test_an_action_asks_the_daemons_in_nsqs_order(
    daemons: Daemons, admin: Admin, method: str, path: str, body: object, stages: list[tuple[str, str, str]]
) -> None:
    await admin.done(method, f"/api/topics{path}", body)
    assert daemons.stages == stages


async def test_a_name_is_percent_encoded_for_the_daemons(daemons: Daemons, admin: Admin) -> None:
    await admin.done("POST", "/api/topics/e%23ephemeral", {"action": "pause"})
    assert [target for _, _, target in daemons.stages] == [
        "/lookup?topic=e%23ephemeral",
        "/topic/pause?topic=e%23ephemeral",
    ]


async def test_a_tombstone_is_set_before_the_topic_is_deleted_on_its_node(
    daemons: Daemons, admin: Admin
) -> None:
    port = port_of(daemons.nsqds[0])
    await admin.done("DELETE", f"/api/nodes/127.0.0.1:{port}", {"topic": "orders"})
    tombstone = ("nsqlookupd", "POST", f"/topic/tombstone?{TOPIC}&node=127.0.0.1%3A{port}")
    assert daemons.log == [
        *[("nsqlookupd", "GET", "/nodes")] * 2,
        *[tombstone] * 2,
        ("nsqd", "POST", f"/topic/delete?{TOPIC}"),
    ]
    assert len(daemons.nsqds[1].got) == 0


async def test_a_node_that_is_gone_is_tombstoned_and_then_an_error(daemons: Daemons, admin: Admin) -> None:
    daemons.nsqds[0].answers["/topic/delete"] = lambda _got, writer: writer.close()
    node = f"127.0.0.1:{port_of(daemons.nsqds[0])}"
    told = await admin.ask("DELETE", f"/api/nodes/{node}", {"topic": "orders"})
    assert told.status == 502
    assert told.json["message"].startswith(f"UPSTREAM_ERROR: failed to query any nsqd: {node}: ")
    assert [target.partition("?")[0] for _, _, target in daemons.log] == [
        "/nodes", "/nodes", "/topic/tombstone", "/topic/tombstone",
    ]  # fmt: skip


async def test_without_a_living_nsqlookupd_a_topic_is_created_with_a_warning_and_a_channel_is_not() -> None:
    dead = free_address()
    async with serving(f"--lookupd-http-address={dead}") as admin:
        told = await admin.ask("POST", "/api/topics", {"topic": "orders"})
        assert told.status == 200
        assert told.json["message"].startswith(f"WARNING: {dead}: ")
        told = await admin.ask("POST", "/api/topics", {"topic": "orders", "channel": "archive"})
        assert told.status == 502
        assert told.json["message"].startswith("UPSTREAM_ERROR: failed to query any nsqlookupd: ")


async def test_a_cluster_without_nodes_has_no_counter_and_no_nodes(daemons: Daemons, admin: Admin) -> None:
    for lookupd in daemons.lookupds:
        lookupd.answers["/nodes"] = answer(200, body=b'{"producers":[]}')
    assert await admin.json("/api/nodes") == {"nodes": [], "message": ""}
    told = await admin.get("/api/counter")
    assert (told.status, told.json) == (502, {"message": "UPSTREAM_ERROR: failed to query any nsqd: "})
