"""Producers of a real replica group while its primary dies, stops, hands over, or has too few copies."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nsquark.client import NsqdHttp, Producer
from nsquark.client.events import Disconnected, Event
from nsquark.errors import OutcomeUnknown, PublishTimeout
from tests.daemon import Nsqlookupd
from tests.nsqd.replica.processes import Member, until
from tests.replica_group import Group, needs_etcd, replica_group

pytestmark = [needs_etcd, pytest.mark.usefixtures("tidy"), pytest.mark.timeout(180)]

PRODUCERS = 4
AT_ONCE = 8  # publishes of a producer under way


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with replica_group(tmp_path) as running:
        yield running


async def stored(member: Member, topic: str = "t") -> list[bytes]:
    """All messages of a topic's log, in order."""
    http = NsqdHttp(f"127.0.0.1:{member.http_port}")
    end = (await http.range(topic))["next"]
    found: list[bytes] = []
    while len(found) < end:
        found += [each["body"] for each in await http.peek(topic, start=len(found), limit=1000)]
    return found


class Load:
    """Producers that publish numbered messages, `AT_ONCE` at a time, and write down what came of them."""

    def __init__(self, group: Group, *, repeat_unknown: bool = False) -> None:
        self.outcomes: dict[bytes, str] = {}
        self._enough = asyncio.Event()
        self._producers = [
            Producer(group.tcp_addresses, mode="group", repeat_unknown=repeat_unknown)
            for _ in range(PRODUCERS)
        ]
        self._tasks = [
            asyncio.create_task(self._publish(producer, number))
            for number, producer in enumerate(self._producers)
        ]

    async def _publish(self, producer: Producer, number: int) -> None:
        count = 0
        pending: set[asyncio.Future[None]] = set()
        while not self._enough.is_set():
            while len(pending) < AT_ONCE:
                body = b"%d %d" % (number, count)
                count += 1
                future = producer.publish_nowait("t", body, timeout=60.0)
                future.add_done_callback(lambda done, body=body: self._note(body, done))
                pending.add(future)
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*pending, return_exceptions=True)

    def _note(self, body: bytes, done: asyncio.Future[None]) -> None:
        error = done.exception()
        self.outcomes[body] = "OK" if error is None else type(error).__name__

    def count(self, outcome: str) -> int:
        return list(self.outcomes.values()).count(outcome)

    async def more(self, count: int = 400) -> None:
        """Return when so many more are stored, of each producer at least one."""
        before = dict(self.outcomes)

        def enough() -> bool:
            new = [body for body, outcome in self.outcomes.items() if outcome == "OK" and body not in before]
            return len(new) >= count and len({body.split()[0] for body in new}) == PRODUCERS

        async with asyncio.timeout(60):
            while not enough():
                await asyncio.wait(self._tasks, timeout=0.01)
                assert not any(task.done() for task in self._tasks), self._tasks

    async def end(self) -> None:
        self._enough.set()
        await asyncio.gather(*self._tasks)
        for producer in self._producers:
            await producer.close()

    def check(self, log: list[bytes], *, repeats: bool = False) -> None:
        """Whatever was answered is there; nothing is there twice, unless repeats are allowed; order holds."""
        times = Counter(log)
        answered = {body for body, outcome in self.outcomes.items() if outcome == "OK"}
        assert answered <= times.keys()
        assert set(self.outcomes.values()) <= {"OK", "OutcomeUnknown"}
        assert times.keys() <= self.outcomes.keys()
        if repeats:
            assert self.count("OutcomeUnknown") == 0
            return
        assert max(times.values()) == 1
        for number in range(PRODUCERS):
            counts = [int(body.split()[1]) for body in log if body.startswith(b"%d " % number)]
            assert counts == sorted(counts)


async def in_thread(call: Callable[[], object]) -> None:
    await asyncio.to_thread(call)


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
async def test_what_was_answered_outlives_the_primary_and_nothing_is_stored_twice(
    group: Group, how: str
) -> None:
    a, b = group.pair()
    load = Load(group)
    await load.more()
    if how == "SIGKILL":
        a.kill()
    else:
        a.process.send_signal(signal.SIGSTOP)
    await load.more()
    if how == "SIGSTOP":  # the old primary wakes up and finds that it leads no more
        a.process.send_signal(signal.SIGCONT)
        await load.more()
    await load.end()
    assert load.count("OutcomeUnknown") <= PRODUCERS * AT_ONCE
    load.check(await stored(b))


async def test_what_is_unknown_is_repeated_where_that_is_wanted(group: Group) -> None:
    a, b = group.pair()
    load = Load(group, repeat_unknown=True)
    await load.more()
    a.kill()
    await load.more()
    await load.end()
    load.check(await stored(b), repeats=True)


async def test_a_handover_under_load_loses_and_repeats_nothing(group: Group) -> None:
    a, b = group.pair()
    load = Load(group)
    for leads, follows in ((a, b), (b, a)):
        await load.more()
        await in_thread(follows.is_in_sync)
        status, answer = await asyncio.to_thread(leads.ask, "POST", "/replica/handover")
        assert status == 200, answer
        await in_thread(follows.serves)
        await load.more()
    await load.end()
    load.check(await stored(a))


async def test_publishes_with_too_few_copies_wait_for_another_member(group: Group) -> None:
    a = group.start("a", "--replica-bootstrap", "--min-copies=2")
    a.serves()
    async with Producer([a.tcp_address], mode="group") as producer:
        with pytest.raises(
            PublishTimeout, match="E_PUB_FAILED PUB failed replica group: 1 of 2 copies"
        ) as told:
            await producer.publish("t", b"late", timeout=0.5)
        assert not told.value.sent
        waiting = [producer.publish_nowait("t", b"%d" % number, timeout=60.0) for number in range(100)]
        b = await asyncio.to_thread(group.start, "b", "--min-copies=2")
        await asyncio.gather(*waiting)
        assert await stored(a) == [b"%d" % number for number in range(100)]
        # The standby stops. What is published then waits, is refused, and is there once in the end.
        await in_thread(b.is_in_sync)
        b.process.send_signal(signal.SIGSTOP)
        waiting = [producer.publish_nowait("u", b"%d" % number, timeout=60.0) for number in range(100)]
        await in_thread(lambda: until(lambda: a.state().get("refusing")))
        more = [producer.publish_nowait("u", b"%d" % number, timeout=60.0) for number in range(100, 200)]
        b.process.send_signal(signal.SIGCONT)
        await asyncio.gather(*waiting, *more)
        assert await stored(a, "u") == [b"%d" % number for number in range(200)]


async def test_a_group_is_found_by_its_name_and_followed(group: Group) -> None:
    with Nsqlookupd().start() as lookupd:
        a, b = group.pair(f"--lookupd-tcp-address={lookupd.tcp_address}")
        lost = asyncio.Event()

        def heed(event: Event) -> None:
            if isinstance(event, Disconnected):
                lost.set()

        async with Producer(group="g", lookupd=lookupd.http_address, on_event=heed) as producer:
            await producer.publish("t", b"1", timeout=60.0)
            a.kill()
            await lost.wait()
            await producer.publish("t", b"2", timeout=60.0)
            assert await stored(b) == [b"1", b"2"]
            lost.clear()
            b.kill()
            await lost.wait()
            with pytest.raises(PublishTimeout, match="replica group 'g' has not stored it") as told:
                await producer.publish("t", b"3", timeout=0.5)
            assert a.tcp_address in str(told.value)
            assert b.tcp_address in str(told.value)


async def test_a_publish_without_an_answer_is_unknown(group: Group) -> None:
    a, b = group.pair()
    async with Producer(group.tcp_addresses, mode="group") as producer:
        await producer.publish("t", b"1", timeout=60.0)
        a.process.send_signal(signal.SIGSTOP)
        with pytest.raises(OutcomeUnknown, match=f"silent and {b.tcp_address} leads"):
            await producer.publish("t", b"2", timeout=60.0)
        await producer.publish("t", b"3", timeout=60.0)
        assert await stored(b) == [b"1", b"3"]
