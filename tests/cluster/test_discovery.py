"""Two nsqlookupds and three nsqds, as processes: which is where, while they come and go.

docs/nsqlookupd.md says how long each may take; a lookupd that comes back has its nsqds back long before the
next PING, which is what NSQ waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import nsq
import pytest

from tests.daemon import PATIENCE, Nsqd, Nsqlookupd, until

BACK_WITHIN = 10.0


class Cluster:
    def __init__(self, lookupds: list[Nsqlookupd], nsqds: list[Nsqd]) -> None:
        self.lookupds = lookupds
        self.nsqds = nsqds

    async def found(self, lookupd: Nsqlookupd, topic: str) -> set[int] | None:
        """Which nsqds a lookupd sends consumers to; None if it does not know the topic."""
        status, _ = await lookupd.http("GET", f"/lookup?topic={topic}")
        if status == 404:
            return None
        ports = {each["tcp_port"] for each in (await lookupd.get(f"/lookup?topic={topic}"))["producers"]}
        return {number for number, nsqd in enumerate(self.nsqds) if nsqd.tcp_port in ports}

    async def until_found(self, topic: str, numbers: set[int], within: float = PATIENCE) -> None:
        """Wait until every lookupd that runs says so."""

        async def same() -> bool:
            running = [lookupd for lookupd in self.lookupds if lookupd.running]
            return all([await self.found(lookupd, topic) == numbers for lookupd in running])

        await until(same, within)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        lookupds = [stack.enter_context(Nsqlookupd().start()) for _ in range(2)]
        flags = [f"--lookupd-tcp-address={lookupd.tcp_address}" for lookupd in lookupds]
        nsqds = [
            stack.enter_context(
                Nsqd(tmp_path / f"nsqd{number}", "--broadcast-address=127.0.0.1", *flags).start()
            )
            for number in range(3)
        ]
        yield Cluster(lookupds, nsqds)


class Consumer:
    """A pynsq Reader that finds its nsqds by polling."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.bodies: set[bytes] = set()
        self.reader = nsq.Reader(
            topic=topic,
            channel="consumer",
            message_handler=self._take,
            lookupd_http_addresses=[lookupd.http_address for lookupd in cluster.lookupds],
            lookupd_poll_interval=1,
            lookupd_poll_jitter=0.0,
            max_in_flight=30,
        )

    def _take(self, message: nsq.Message) -> bool:
        self.bodies.add(message.body)
        return True

    def close(self) -> None:
        self.reader.close()


async def test_topics_are_found_wherever_they_are(cluster: Cluster) -> None:
    one, two, three = cluster.nsqds
    first, second = cluster.lookupds
    await asyncio.gather(*(until_known(cluster, lookupd) for lookupd in cluster.lookupds))

    # topics appear everywhere, and a consumer finds them
    await one.post("/pub?topic=orders", b"from one")
    await two.post("/pub?topic=orders", b"from two")
    await cluster.until_found("orders", {0, 1})
    consumer = Consumer(cluster, "orders")
    await until(lambda: consumer.bodies == {b"from one", b"from two"})

    # a channel that one lookupd knows of is there before the first message
    await second.post("/channel/create?topic=events&channel=archive")
    await three.post("/pub?topic=events", b"body")
    await until(lambda: channel_depth(three, "events", "archive"))
    await cluster.until_found("events", {2})
    for lookupd in cluster.lookupds:
        assert await lookupd.get("/channels?topic=events") == {"channels": ["archive"]}

    # a lookupd dies: the other one serves
    first.kill()
    await three.post("/pub?topic=orders", b"from three")
    await cluster.until_found("orders", {0, 1, 2})
    await until(lambda: b"from three" in consumer.bodies)

    # and comes back knowing nothing, but not for long
    await two.post("/topic/create?topic=meanwhile")
    first.restart()
    await cluster.until_found("orders", {0, 1, 2}, BACK_WITHIN)
    await cluster.until_found("events", {2})
    await cluster.until_found("meanwhile", {1})

    # an nsqd dies, and no client is sent to it
    one.kill()
    await cluster.until_found("orders", {1, 2})

    # a topic is deleted on one nsqd
    consumer.close()
    for lookupd in cluster.lookupds:
        await lookupd.post(f"/topic/tombstone?topic=orders&node=127.0.0.1:{two.http_port}")
    await two.post("/topic/delete?topic=orders")
    await cluster.until_found("orders", {2})
    await until(lambda: topics_of(first, two.tcp_port))
    assert await topics_of(first, two.tcp_port) == ["meanwhile"]

    # and the dead one comes back with what it had
    one.restart()
    await cluster.until_found("orders", {0, 2}, BACK_WITHIN)

    # the last of them stops in order
    for nsqd in cluster.nsqds:
        assert await asyncio.to_thread(nsqd.stop) == 0
    await cluster.until_found("orders", set())


async def until_known(cluster: Cluster, lookupd: Nsqlookupd) -> None:
    async def known() -> bool:
        return len((await lookupd.get("/nodes"))["producers"]) == len(cluster.nsqds)

    await until(known)
    # the lookupd has answered; wait until that has arrived, too: only then channels are asked for
    for nsqd in cluster.nsqds:
        await asyncio.to_thread(nsqd.wait_for_line, rf"LOOKUPD\({lookupd.tcp_address}\): peer is")


async def channel_depth(nsqd: Nsqd, topic: str, channel: str) -> int:
    _, stats = await nsqd.http("GET", f"/stats?format=json&topic={topic}&channel={channel}")
    return stats.count(b'"depth":1')


async def topics_of(lookupd: Nsqlookupd, tcp_port: int) -> list[str]:
    nodes = (await lookupd.get("/nodes"))["producers"]
    return [topic for node in nodes if node["tcp_port"] == tcp_port for topic in node["topics"]]
