"""A minute of everything at once: three nsqds, two nsqlookupds, daemons killed, consumers coming and going.

What was answered OK is consumed, no consumer has more in flight than it may, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nsquark.client import Config, Consumer, Message, Producer, Reconnect
from nsquark.errors import NsquarkError
from tests.daemon import Nsqd, Nsqlookupd, until

SECONDS = float(os.environ.get("NSQUARK_SOAK_SECONDS", "60"))
MAX_IN_FLIGHT = 20
CONSUMERS = 4
TOPIC, CHANNEL = "soak", "ch"

pytestmark = [pytest.mark.usefixtures("tidy"), pytest.mark.timeout(SECONDS + 180)]


class Cluster:
    def __init__(self, lookupds: list[Nsqlookupd], nsqds: list[Nsqd]) -> None:
        self.lookupds = lookupds
        self.nsqds = nsqds
        self.chance = random.Random(5)

    async def trouble(self) -> None:
        """For ever: kill or stop one of the daemons, and start it again a little later."""
        while True:
            await asyncio.sleep(self.chance.uniform(1.5, 3.0))
            daemon = self.chance.choice([*self.nsqds, *self.nsqds, *self.lookupds])
            end = asyncio.create_task(asyncio.to_thread(self.chance.choice([daemon.kill, daemon.stop])))
            try:
                await asyncio.shield(end)
                await asyncio.sleep(self.chance.uniform(0.1, 1.0))
            finally:
                await end
                await asyncio.to_thread(daemon.restart)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        lookupds = [stack.enter_context(Nsqlookupd().start()) for _ in range(2)]
        flags = [f"--lookupd-tcp-address={lookupd.tcp_address}" for lookupd in lookupds]
        nsqds = [
            stack.enter_context(Nsqd(tmp_path / str(number), "--broadcast-address=127.0.0.1", *flags).start())
            for number in range(3)
        ]
        yield Cluster(lookupds, nsqds)


class Ledger:
    """What was stored, for all we were told, and what was consumed."""

    def __init__(self) -> None:
        self.stored: set[bytes] = set()
        self.consumed: set[bytes] = set()
        self.most_in_flight = 0
        self.lives = 0
        self._next = 0

    def bodies(self, count: int) -> list[bytes]:
        first, self._next = self._next, self._next + count
        return [b"%d" % number for number in range(first, first + count)]


async def publish(producer: Producer, ledger: Ledger) -> None:
    """For ever: what is not answered OK may be stored or not, and is not counted."""
    while True:
        bodies = ledger.bodies(25)
        try:
            if len(ledger.stored) % 2:
                await producer.publish_many(TOPIC, bodies, timeout=5)
            else:
                await asyncio.gather(*(producer.publish(TOPIC, body, timeout=5) for body in bodies))
            ledger.stored.update(bodies)
        except NsquarkError:
            pass
        await asyncio.sleep(0.02)  # more than is consumed while a daemon is down, less than otherwise


def make_consumer(cluster: Cluster) -> Consumer:
    config = Config(
        max_in_flight=MAX_IN_FLIGHT,
        max_attempts=0,
        msg_timeout=10.0,
        default_requeue_delay=0.2,
        backoff=None,
        lookupd_poll_interval=0.5,
        reconnect=Reconnect(first=0.1, cap=1.0),
    )
    addresses = [lookupd.http_address for lookupd in cluster.lookupds]
    return Consumer(TOPIC, CHANNEL, lookupd=addresses, config=config)


async def live(cluster: Cluster, ledger: Ledger, chance: random.Random) -> None:
    """For ever: a consumer that consumes in one of the ways there are, for some seconds."""

    async def handle(message: Message) -> None:
        await asyncio.sleep(chance.choice([0, 0, 0.001, 0.02]))
        if chance.random() < 0.05:
            raise ZeroDivisionError
        ledger.consumed.add(message.body)

    async def iterate(consumer: Consumer) -> None:
        async for message in consumer:
            async with message:
                await asyncio.sleep(0.002)
                ledger.consumed.add(message.body)

    async def batch(consumer: Consumer) -> None:
        async for messages in consumer.batches(10, max_wait=0.05):
            for message in messages:
                ledger.consumed.add(message.body)
                message.finish()

    async def run(consumer: Consumer) -> None:
        await consumer.run(handle, concurrency=8)

    while True:
        consumer = make_consumer(cluster)
        way = chance.choice([run, iterate, batch])
        async with consumer:
            working = asyncio.create_task(way(consumer))
            try:
                await asyncio.sleep(chance.uniform(1.0, 6.0))
                if chance.random() < 0.7:
                    await consumer.close(5.0)
            finally:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
                ledger.most_in_flight = max(ledger.most_in_flight, consumer.stats().most_in_flight)
                ledger.lives += 1


@pytest.fixture
def quiet_logs(caplog: pytest.LogCaptureFixture) -> None:
    """Handlers that fail on purpose would fill the report of another failure."""
    caplog.set_level("CRITICAL", logger="nsquark")


@pytest.mark.usefixtures("quiet_logs")
async def test_a_minute_of_everything(cluster: Cluster) -> None:
    ledger = Ledger()
    addresses = [nsqd.tcp_address for nsqd in cluster.nsqds]
    config = Config(reconnect=Reconnect(first=0.05, cap=0.5))
    async with Producer(addresses, config=config) as producer:
        tasks = [
            asyncio.create_task(publish(producer, ledger)),
            asyncio.create_task(publish(producer, ledger)),
            asyncio.create_task(cluster.trouble()),
            *(asyncio.create_task(live(cluster, ledger, random.Random(n))) for n in range(CONSUMERS)),
        ]
        # a task that ends early does so with an error
        done, _ = await asyncio.wait(tasks, timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async with make_consumer(cluster) as consumer:
        running = asyncio.create_task(consumer.run(lambda message: ledger.consumed.add(message.body)))
        await until(lambda: ledger.stored <= ledger.consumed, within=90)
        await consumer.close(5.0)
        await running
    assert len(ledger.stored) > 10 * SECONDS
    assert ledger.lives > SECONDS / 4
    assert ledger.most_in_flight == MAX_IN_FLIGHT  # all that may be, and no more
