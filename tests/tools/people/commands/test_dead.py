"""`nsquark dead` against an nsqd on which messages have died."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.daemon import Nsqd, until
from tests.tools.people.command import failure, nsquark, output

LONG = "a-channel-with-a-name-so-long-that-the-dead-topic-cannot-hold-it"


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Nsqd]:
    with Nsqd(tmp_path / "data", "--max-attempts=1").start() as running:
        yield running


async def kill(nsqd: Nsqd, topic: str, channel: str, *bodies: bytes) -> None:
    """Give each message back once, which is once too often."""
    await nsqd.post(f"/topic/create?topic={topic}")
    await nsqd.post(f"/channel/create?topic={topic}&channel={quote(channel)}")
    async with await nsqd.connect() as client:
        for body in bodies:
            await client.pub(topic, body)
        await client.sub(topic, channel, rdy=len(bodies))
        for _ in bodies:
            client.req(await client.message())

        async def dead() -> bool:
            _, answer = await nsqd.http("GET", f"/stats?format=json&topic={topic}&channel={quote(channel)}")
            return json.loads(answer)["topics"][0]["channels"][0]["dead_letter_count"] == len(bodies)

        await until(dead)


@pytest.mark.parametrize("channel", ["billing", LONG, "c#ephemeral"])
async def test_they_are_listed_shown_and_sent_back(strict: Nsqd, channel: str) -> None:
    at = ["--nsqd-http", strict.http_address]
    assert output("dead", "list", *at) == "there are no dead letters\n"
    await strict.post("/topic/create?topic=orders")
    async with await strict.connect() as keeper:  # an ephemeral channel lives as long as its consumers
        await keeper.sub("orders", channel)
        await kill(strict, "orders", channel, b"one\ntwo", b"\xff\x00", b"three")
        (listed,) = json.loads(output("dead", "list", "--json", *at))
        assert (listed["topic"], listed["channel"], listed["waiting"]) == ("orders", channel, 3)
        assert "orders" in output("dead", "list", *at).splitlines()[1]
        letters = [
            json.loads(line) for line in output("dead", "show", "orders", channel, "--json", *at).splitlines()
        ]
        assert [each.get("body", each.get("body_base64")) for each in letters] == [
            "one\ntwo",
            "/wA=",
            "three",
        ]
        assert {each["attempts"] for each in letters} == {1}
        table = output("dead", "show", "orders", channel, "-n", "2", *at).splitlines()
        assert len(table) == 3
        assert table[1].endswith("one\\ntwo")
        sent = output("dead", "send-back", "orders", channel, "-n", "1", *at)
        assert sent == f"sent 1 dead letter back to channel {channel!r} of topic 'orders'\n"
        back = json.loads(output("dead", "send-back", "orders", channel, "--json", *at))
        assert (back["redelivered"], back["skipped"]) == (2, 0)
        line = failure("dead", "send-back", "orders", channel, *at)
        assert line == f"nsquark: channel {channel!r} of topic 'orders' has no dead letters\n"


async def test_one_chosen_letter_is_sent_back(strict: Nsqd) -> None:
    at = ["--nsqd-http", strict.http_address]
    await kill(strict, "orders", "billing", b"one", b"two", b"three")
    shown = output("dead", "show", "orders", "billing", "--json", *at).splitlines()
    one, two, three = map(json.loads, shown)
    sent = output("dead", "send-back", "orders", "billing", "--id", two["id"], *at)
    assert sent == "sent 1 dead letter back to channel 'billing' of topic 'orders'\n"
    back = json.loads(
        output("dead", "send-back", "orders", "billing", "--id", str(three["position"]), "--json", *at)
    )
    assert (back["redelivered"], back["skipped"]) == (1, 0)
    (left,) = output("dead", "show", "orders", "billing", "--json", *at).splitlines()
    assert json.loads(left) == one
    line = failure("dead", "send-back", "orders", "billing", "--id", two["id"], *at)
    assert line == f"nsquark: channel 'billing' of topic 'orders' has no dead letter {two['id']}\n"
    for wrong in (["--id", "nope"], ["--id", one["id"], "-n", "1"]):
        assert "id" in failure("dead", "send-back", "orders", "billing", *wrong, *at, status=2)


async def test_a_position_needs_one_nsqd_and_an_id_does_not(strict: Nsqd, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "more", "--max-attempts=1", "--node-id=7").start() as second:
        at = ["--nsqd-http", strict.http_address, "--nsqd-http", second.http_address]
        for each, body in ((strict, b"one"), (second, b"two")):
            await kill(each, "orders", "billing", body)
        shown = output("dead", "show", "orders", "billing", "--json", *at).splitlines()
        letters = {each["body"]: each for each in map(json.loads, shown)}
        line = failure("dead", "send-back", "orders", "billing", "--id", "0", *at)
        assert line == "nsquark: 2 nsqds have dead letters, and each its own position 0: give the id\n"
        output("dead", "send-back", "orders", "billing", "--id", letters["two"]["id"], *at)
        (left,) = output("dead", "show", "orders", "billing", "--json", *at).splitlines()
        assert json.loads(left) == letters["one"]


async def test_dropping_asks(strict: Nsqd) -> None:
    at = ["--nsqd-http", strict.http_address]
    await kill(strict, "orders", "billing", b"one", b"two")
    assert "Drop 2 dead letters" in failure("dead", "drop", "orders", "billing", *at, status=2)
    assert nsquark("dead", "drop", "orders", "billing", "--yes", *at).stdout.startswith(
        "dropped 2 dead letters"
    )
    assert output("dead", "list", *at) == "there are no dead letters\n"


async def test_what_is_no_letter_is_passed_over(strict: Nsqd) -> None:
    at = ["--nsqd-http", strict.http_address]
    for body in (b"no letter", b"[]\nx", b'{"topic": 1}\n'):
        await strict.post("/pub?topic=x.y.dead", body)
    await strict.post("/channel/create?topic=x.y.dead&channel=redeliver")
    assert output("dead", "list", *at) == "there are no dead letters\n"
    assert "'x' has no dead letters" in failure("dead", "show", "x", "y", *at)
