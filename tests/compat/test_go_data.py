"""From Go's nsqd to ours and back, with what each of them has not finished. NSQUARK_GO_BIN names a folder."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nsquark import Config, Consumer
from nsquark.data_path.export import export
from nsquark.nsqd.options import FLAGS as OUR_FLAGS
from tests.daemon import PATIENCE, Client, Message, Nsqd, Nsqlookupd, dpub

GO_NSQD = Path(os.environ.get("NSQUARK_GO_BIN", "/nowhere")) / "nsqd"
pytestmark = pytest.mark.skipif(not GO_NSQD.exists(), reason="NSQUARK_GO_BIN names no Go binaries")

# Few messages in memory and small files, so that there are several files, of which one is half-read.
FLAGS = ("--mem-queue-size=20", "--max-bytes-per-file=3000")


def gos(data_path: Path, *flags: str) -> Nsqd:
    nsqd = Nsqd(data_path, "--broadcast-address=127.0.0.1", *FLAGS, *flags)
    nsqd.program = [str(GO_NSQD)]
    return nsqd


def ours(data_path: Path, *flags: str) -> Nsqd:
    return Nsqd(data_path, "--broadcast-address=127.0.0.1", *FLAGS, *flags)


async def stats(nsqd: Nsqd, topic: str) -> dict[str, Any]:
    _, answer = await nsqd.http("GET", f"/stats?format=json&topic={topic}")
    (found,) = json.loads(answer)["topics"]
    found["channels"] = {each["channel_name"]: each for each in found["channels"] or []}
    assert isinstance(found, dict)
    return found


async def take(client: Client, number: int) -> list[Message]:
    return [await client.message() for _ in range(number)]


async def take_all(nsqd: Nsqd, topic: str, channel: str, number: int) -> list[Message]:
    """Finish exactly so many messages: the channel has no more."""
    async with await nsqd.connect() as client:
        await client.sub(topic, channel, rdy=2500)
        messages = await take(client, number)
        for each in messages:
            client.fin(each)
        await client.caught_up()
        found = (await stats(nsqd, topic))["channels"][channel]
        assert (found["depth"], found["in_flight_count"], found["deferred_count"]) == (0, 0, 0)
    return messages


def attempts(messages: list[Message]) -> dict[bytes, int]:
    found = {each.body: each.attempts for each in messages}
    assert len(found) == len(messages)
    return found


async def publish(nsqd: Nsqd, topic: str, start: int, end: int) -> None:
    async with await nsqd.connect() as client:
        for first in range(start, end, 50):
            await client.mpub(topic, [b"message %d" % each for each in range(first, min(first + 50, end))])


async def leave_work(nsqd: Nsqd) -> dict[bytes, int]:
    """Leave a channel with messages of every kind; returns them, and their attempts when delivered next."""
    for path in (
        "/topic/create?topic=orders",
        "/channel/create?topic=orders&channel=mail",
        "/channel/create?topic=orders&channel=audit",
    ):
        await nsqd.post(path)
    await publish(nsqd, "orders", 0, 400)
    await until_it_has(nsqd, "depth", mail=400, audit=400)
    async with await nsqd.connect() as client:
        await client.sub("orders", "mail", rdy=100)
        messages = await take(client, 100)
        for each in messages[:60]:
            client.fin(each)
        for each in messages[60:80]:
            client.send(b"REQ %b 600000\n" % each.id)  # deferred
        await until_it_has(nsqd, "deferred_count", mail=20)
        client.send(dpub("orders", 600_000, b"deferred"))
        await until_it_has(nsqd, "deferred_count", mail=21, audit=1)
        nsqd.stop()  # with what is in flight
    finished = {each.body for each in messages[:60]}
    seen = Counter(each.body for each in messages[60:])
    left = {b"message %d" % each for each in range(400)} - finished
    return {body: 1 + seen[body] for body in left} | {b"deferred": 1}


async def until_it_has(nsqd: Nsqd, field: str, **numbers: int) -> None:
    """Wait until the channels of the topic have these numbers."""

    async def has() -> bool:
        channels = (await stats(nsqd, "orders"))["channels"]
        return all(channels[name][field] == number for name, number in numbers.items())

    async with asyncio.timeout(PATIENCE):
        while not await has():  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.02)


async def test_from_go_and_back(tmp_path: Path) -> None:
    data, back = tmp_path / "data", tmp_path / "back"
    with gos(data).start() as nsqd:
        await nsqd.post("/topic/create?topic=lonely")
        await publish(nsqd, "lonely", 0, 90)
        await nsqd.post("/topic/create?topic=quiet")
        await nsqd.post("/channel/create?topic=quiet&channel=c")
        await nsqd.post("/channel/pause?topic=quiet&channel=c")
        expected = await leave_work(nsqd)
    assert len(list(data.glob("orders:mail.diskqueue.0*.dat"))) > 2

    with ours(data).start() as nsqd:
        assert not list(data.glob("*.diskqueue.*"))
        assert (await stats(nsqd, "quiet"))["channels"]["c"]["paused"]
        assert (await stats(nsqd, "lonely"))["depth"] == 90
        async with await nsqd.connect() as client:  # as Go's nsqd kept them: some were delivered before
            await client.sub("orders", "mail", rdy=2500)
            messages = await take(client, len(expected))
            found = attempts(messages)
            # A message that Go had sent and not counted as such may have one attempt more than we saw.
            assert found.keys() == expected.keys()
            assert all(found[each] - expected[each] in (0, 1) for each in expected)
            assert {b"message %d" % each for each in range(400)} - found.keys() == {
                b"message %d" % each for each in range(400)
            } - expected.keys()
            for each in messages[:150]:
                client.fin(each)
            await client.caught_up()
            kept = {each.body: each.attempts + 1 for each in messages[150:]}
            nsqd.stop()

    export(data, back, 3000)
    with gos(back).start() as nsqd:
        assert (await stats(nsqd, "quiet"))["channels"]["c"]["paused"]
        mail = attempts(await take_all(nsqd, "orders", "mail", len(kept)))
        assert mail == kept
        audit = attempts(await take_all(nsqd, "orders", "audit", 401))
        assert audit == {b"message %d" % each: 1 for each in range(400)} | {b"deferred": 1}
        assert (await stats(nsqd, "lonely"))["depth"] == 90
        lonely = await take_all(nsqd, "lonely", "first", 90)
        assert {each.body for each in lonely} == {b"message %d" % each for each in range(90)}
        assert not [line for line in nsqd.lines if "DISKQUEUE" in line and "INFO" not in line]
    assert not list(back.glob("*.bad"))


async def test_after_a_crash_of_go_everything_on_its_disk_is_delivered(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with gos(data, "--sync-timeout=1h", "--sync-every=1000000", "--mem-queue-size=0").start() as nsqd:
        await nsqd.post("/topic/create?topic=orders")
        await publish(nsqd, "orders", 0, 200)
        nsqd.kill()  # the metadata of the queue are behind, by a file at most
    with ours(data).start() as nsqd:
        found = await take_all(nsqd, "orders", "first", 200)
        assert {each.body for each in found} == {b"message %d" % each for each in range(200)}


async def test_an_exported_directory_is_imported_again(tmp_path: Path) -> None:
    data, back = tmp_path / "data", tmp_path / "back"
    with gos(data).start() as nsqd:
        expected = await leave_work(nsqd)
    with ours(data).start() as nsqd:
        nsqd.stop()
    export(data, back)
    with gos(back).start() as nsqd:
        nsqd.stop()
    with ours(back).start() as nsqd:
        found = attempts(await take_all(nsqd, "orders", "mail", len(expected)))
        assert found.keys() == expected.keys()
        assert all(found[each] - expected[each] in (0, 1) for each in expected)


async def test_gos_nsqd_starts_again_while_an_import_is_not_complete(tmp_path: Path) -> None:
    """Nothing of Go's is touched before: to go back is to start it."""
    data = tmp_path / "data"
    with gos(data).start() as nsqd:
        await nsqd.post("/topic/create?topic=orders")
        await publish(nsqd, "orders", 0, 200)
        nsqd.stop()
    (data / "nsquark.import" / "topics").mkdir(parents=True)
    with gos(data).start() as nsqd:
        assert (await stats(nsqd, "orders"))["depth"] == 200
        nsqd.stop()
    with ours(data).start() as nsqd:
        await take_all(nsqd, "orders", "first", 200)


async def test_a_cluster_is_rolled_over_node_by_node_and_back(tmp_path: Path) -> None:
    """docs/moving-from-go.md: publishers and a consumer go on all the while, and every message arrives."""
    published: set[bytes] = set()
    received: set[bytes] = set()

    async def consume(consumer: Consumer) -> None:
        async for message in consumer:
            received.add(message.body)
            message.finish()

    async def publish_to(*nsqds: Nsqd) -> None:
        for number, nsqd in enumerate(nsqds):
            bodies = [b"%d of %d" % (len(published) + each, number) for each in range(100)]
            async with await nsqd.connect() as client:
                await client.mpub("orders", bodies)
            published.update(bodies)

    with ExitStack() as stack:
        lookupd = stack.enter_context(Nsqlookupd().start())
        flags = (f"--lookupd-tcp-address={lookupd.tcp_address}",)
        nodes = [stack.enter_context(gos(tmp_path / f"{each}", *flags).start()) for each in range(2)]
        for node in nodes:
            await node.post("/topic/create?topic=orders")
            await node.post("/channel/create?topic=orders&channel=mail")
        await publish_to(*nodes)
        config = Config(lookupd_poll_interval=1.0, max_in_flight=10)
        async with Consumer("orders", "mail", lookupd=lookupd.http_address, config=config) as consumer:
            consuming = asyncio.ensure_future(consume(consumer))
            for which in range(2):
                nodes[which].stop()
                await publish_to(nodes[1 - which])
                nodes[which] = stack.enter_context(ours(tmp_path / f"{which}", *flags).start())
                await publish_to(*nodes)
            for which in range(2):  # and back
                nodes[which].stop()
                await publish_to(nodes[1 - which])
                export(tmp_path / f"{which}", tmp_path / f"{which}.go")
                nodes[which] = stack.enter_context(gos(tmp_path / f"{which}.go", *flags).start())
                await publish_to(*nodes)
            async with asyncio.timeout(3 * PATIENCE):
                while received != published:
                    assert not consuming.done(), consuming
                    await asyncio.sleep(0.1)
            consuming.cancel()


def test_every_flag_of_gos_nsqd_is_one_of_ours() -> None:
    shown = subprocess.run([GO_NSQD, "--help"], capture_output=True, text=True, check=False).stderr
    flags = set(re.findall(r"(?m)^  -([a-z0-9-]+)", shown))
    assert len(flags) > 50
    assert flags <= OUR_FLAGS.flags.keys()
