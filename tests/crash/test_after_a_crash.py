"""What else a crash must not undo: clean-ups, and what operators have done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nsquark.nsqd.storage.inspection import deleted_name
from tests.daemon import Client, Message, Nsqd, until


def crash(nsqd: Nsqd) -> None:
    nsqd.kill()
    nsqd.restart()


async def topics(nsqd: Nsqd) -> dict[str, dict[str, Any]]:
    _, answer = await nsqd.http("GET", "/stats?format=json")
    found: dict[str, dict[str, Any]] = {}
    for topic in json.loads(answer)["topics"] or []:
        topic["channels"] = {channel["channel_name"]: channel for channel in topic["channels"] or []}
        found[topic["topic_name"]] = topic
    return found


async def publish(nsqd: Nsqd, topic: str, *bodies: bytes) -> None:
    async with await nsqd.connect() as client:
        await client.mpub(topic, bodies)


async def everything(nsqd: Nsqd, topic: str, channel: str) -> list[Message]:
    """All messages of a channel, which then is empty. One is published to see where they end."""
    end = b"the end of " + channel.encode()
    async with await nsqd.connect() as client:
        await client.sub(topic, channel, rdy=2500)
        await client.pub(topic, end)
        messages: list[Message] = []
        while not messages or messages[-1].body != end:
            messages.append(await client.message())
            client.fin(messages[-1])
        await client.caught_up()
    return [message for message in messages if not message.body.startswith(b"the end of ")]


def files(nsqd: Nsqd, topic: str, pattern: str) -> list[Path]:
    return sorted((nsqd.data_path / "topics" / topic).glob(pattern))


# ---- clean-ups


async def test_a_journal_that_was_compacted_says_the_same(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", "--max-rdy-count=100000").start() as nsqd:
        number, held = 66_000, 100
        async with await nsqd.connect() as client:
            await client.sub("topic", "ch", rdy=100_000)
            for first in range(0, number, 6000):
                await client.mpub("topic", [b"%d" % each for each in range(first, first + 6000)])
            messages = [await client.message() for _ in range(number)]
            (before,) = files(nsqd, "topic", "journal.*")
            # From behind, so that no two of them make one record: 17 bytes each, a megabyte in all.
            finished = [message for message in messages if int(message.body) % (number // held)]
            client.send(b"".join(b"FIN %b\n" % message.id for message in reversed(finished)))
            await client.caught_up()
            await until(
                lambda: files(nsqd, "topic", "journal.*") not in ([before], []) and not before.exists()
            )
            client.fin(messages[0])
            await client.caught_up()
            crash(nsqd)
        left = await everything(nsqd, "topic", "ch")
        bodies = {int(message.body) for message in left}
        assert bodies == set(range(0, number, number // held)) - {0}
        assert len(left) == len(bodies)


async def test_segments_that_are_finished_are_deleted_and_numbers_go_on(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", "--max-bytes-per-file=2000").start() as nsqd:
        seen: dict[bytes, bytes] = {}
        for turn in range(2):
            async with await nsqd.connect() as client:
                await client.sub("topic", "ch", rdy=100)
                for number in range(50):
                    await client.pub("topic", b"%d.%d " % (turn, number) + b"x" * 500)
                assert len(files(nsqd, "topic", "*.log")) > 10
                for _ in range(50):
                    message = await client.message()
                    assert message.id not in seen
                    seen[message.id] = message.body
                    client.fin(message)
                await client.caught_up()
                await until(lambda: len(files(nsqd, "topic", "*.log")) == 1)
            crash(nsqd)
        assert await everything(nsqd, "topic", "ch") == []


@pytest.mark.parametrize(
    "tail", [b"\0", b"NQB1", b"garbage" * 1000, b"\0" * 5000], ids=lambda tail: f"{len(tail)}"
)
@pytest.mark.parametrize("pattern", ["*.log", "journal.*"])
async def test_a_torn_tail_costs_nothing_else(nsqd: Nsqd, pattern: str, tail: bytes) -> None:
    async with await nsqd.connect() as client:
        await client.sub("topic", "ch", rdy=1)
        await client.mpub("topic", [b"finished", b"one", b"two"])
        client.fin(await client.message())
        await client.message()
        await client.caught_up()
        nsqd.kill()
    with files(nsqd, "topic", pattern)[-1].open("ab") as file:
        file.write(tail)
    nsqd.restart()
    await publish(nsqd, "topic", b"three")
    crash(nsqd)
    assert [message.body for message in await everything(nsqd, "topic", "ch")] == [b"one", b"two", b"three"]


# ---- what operators have done


async def test_a_deleted_topic_stays_deleted(nsqd: Nsqd) -> None:
    ids = set()
    for turn in range(3):
        async with await nsqd.connect() as client:
            await client.sub("topic", "ch", rdy=10)
            await client.mpub("topic", [b"%d" % turn] * 5)
            messages = [await client.message() for _ in range(5)]
        assert {message.body for message in messages} == {b"%d" % turn}
        assert ids.isdisjoint(message.id for message in messages)
        ids |= {message.id for message in messages}
        await nsqd.post("/topic/delete?topic=topic")
        crash(nsqd)
        assert await topics(nsqd) == {}


async def test_a_deleted_channel_stays_deleted(nsqd: Nsqd) -> None:
    await nsqd.post("/topic/create?topic=topic")
    for channel in ("kept", "deleted"):
        await nsqd.post(f"/channel/create?topic=topic&channel={channel}")
    await publish(nsqd, "topic", b"one")
    await nsqd.post("/channel/delete?topic=topic&channel=deleted")
    crash(nsqd)
    found = await topics(nsqd)
    assert list(found["topic"]["channels"]) == ["kept"]
    assert await everything(nsqd, "topic", "deleted") == []
    assert [message.body for message in await everything(nsqd, "topic", "kept")] == [b"one"]


async def test_what_was_emptied_stays_empty(nsqd: Nsqd) -> None:
    for channel in ("emptied", "other"):
        await nsqd.post("/topic/create?topic=topic")
        await nsqd.post(f"/channel/create?topic=topic&channel={channel}")
    async with await nsqd.connect() as client:
        await client.sub("topic", "emptied", rdy=1)
        await client.mpub("topic", [b"in flight", b"queued"])
        await client.dpub("topic", 50, b"deferred")
        await client.message()
        await nsqd.post("/channel/empty?topic=topic&channel=emptied")
        await client.pub("topic", b"new")
        crash(nsqd)
    bodies = [message.body for message in await everything(nsqd, "topic", "emptied")]
    assert bodies == [b"new"]
    others = {message.body for message in await everything(nsqd, "topic", "other")}
    assert others >= {b"in flight", b"queued", b"new"}


async def test_a_topic_that_was_emptied_stays_empty(nsqd: Nsqd) -> None:
    await publish(nsqd, "topic", b"one", b"two")
    await nsqd.post("/topic/empty?topic=topic")
    await publish(nsqd, "topic", b"three")
    crash(nsqd)
    assert (await topics(nsqd))["topic"]["depth"] == 1
    assert [message.body for message in await everything(nsqd, "topic", "ch")] == [b"three"]


async def test_what_is_paused_stays_paused(nsqd: Nsqd) -> None:
    await nsqd.post("/topic/create?topic=topic")
    await nsqd.post("/channel/create?topic=topic&channel=ch")
    await publish(nsqd, "topic", b"one")
    await nsqd.post("/topic/pause?topic=topic")
    await nsqd.post("/channel/pause?topic=topic&channel=ch")
    await publish(nsqd, "topic", b"two")
    crash(nsqd)
    found = (await topics(nsqd))["topic"]
    channel = found["channels"]["ch"]
    assert (found["paused"], found["depth"], channel["paused"], channel["depth"]) == (True, 1, True, 1)
    async with await nsqd.connect() as client:
        await client.sub("topic", "ch", rdy=10)
        await client.caught_up()
        assert not client.messages
        await nsqd.post("/channel/unpause?topic=topic&channel=ch")
        assert (await client.message()).body == b"one"
        await nsqd.post("/topic/unpause?topic=topic")
        assert (await client.message()).body == b"two"
        crash(nsqd)
    found = (await topics(nsqd))["topic"]
    assert (found["paused"], found["channels"]["ch"]["paused"]) == (False, False)


async def test_the_first_channel_gets_the_backlog_and_a_later_one_what_is_new(nsqd: Nsqd) -> None:
    await publish(nsqd, "topic", b"one")
    crash(nsqd)
    await publish(nsqd, "topic", b"two")
    await nsqd.post("/channel/create?topic=topic&channel=first")
    crash(nsqd)
    await nsqd.post("/channel/create?topic=topic&channel=second")
    crash(nsqd)
    await publish(nsqd, "topic", b"three")
    crash(nsqd)
    first = [message.body for message in await everything(nsqd, "topic", "first")]
    second = [message.body for message in await everything(nsqd, "topic", "second")]
    assert first == [b"one", b"two", b"three"]
    assert second == [b"three"]


async def test_without_durable_channels_nothing_comes_twice(nsqd: Nsqd) -> None:
    async def served(client: Client, body: bytes) -> None:
        await client.pub("topic", body)
        message = await client.message()
        assert message.body == body
        client.fin(message)
        await client.caught_up()

    async with await nsqd.connect() as client:
        await client.sub("topic", "ch#ephemeral", rdy=10)
        await served(client, b"one")
        await served(client, b"two")
        crash(nsqd)
    assert await everything(nsqd, "topic", "ch") == []


async def test_a_topic_whose_deletion_was_cut_short_begins_behind_what_it_was(tmp_path: Path) -> None:
    with Nsqd(tmp_path).start() as nsqd:
        for number in range(5):
            await nsqd.post("/pub?topic=t", b"%d" % number)
        nsqd.kill()
        # The folder is renamed first of all; nsqd ended before it wrote nsqd.dat and nsquark.dat.
        (tmp_path / "topics" / "t").rename(tmp_path / "topics" / deleted_name(5))
        nsqd.start()
        await nsqd.post("/pub?topic=t", b"new")
        bounds = json.loads((await nsqd.http("GET", "/log/range?topic=t"))[1])
        assert (bounds["first"], bounds["next"]) == (5, 6)
