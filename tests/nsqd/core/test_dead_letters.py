"""Dead letters: when, where, how they are told, and the way back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsquark.names import dead_topic, is_dead_topic, is_ephemeral, is_valid_name
from nsquark.nsqd.core.dead_letters import CHANNEL, Letter, parse_letter
from nsquark.nsqd.core.topic import Topic
from tests.daemon import until
from tests.nsqd.api import Api, running
from tests.nsqd.harness import SECOND, Clock, Harness, Publisher, Reader, refuse_commits

NAMES = st.from_regex(r"[.a-zA-Z0-9_-]{1,54}(#ephemeral)?", fullmatch=True) | st.from_regex(
    r"[.a-zA-Z0-9_-]{1,64}", fullmatch=True
)


# ---- names and letters


@pytest.mark.parametrize(
    ("topic", "channel", "expected"),
    [
        ("orders", "billing", "orders.billing.dead"),
        ("orders", "billing#ephemeral", "orders.billing.dead#ephemeral"),
        ("orders#ephemeral", "billing", "orders.billing.dead#ephemeral"),
        ("t" * 30, "c" * 28, "t" * 30 + "." + "c" * 28 + ".dead"),
    ],
)
def test_the_topic_of_dead_letters(topic: str, channel: str, expected: str) -> None:
    assert dead_topic(topic, channel) == expected


@given(NAMES, NAMES, NAMES)
def test_every_dead_topic_is_a_valid_one(topic: str, channel: str, other: str) -> None:
    name = dead_topic(topic, channel)
    assert is_valid_name(name)
    assert is_dead_topic(name)
    assert is_ephemeral(name) == (is_ephemeral(topic) or is_ephemeral(channel))
    if len(topic) + len(channel) > 60 and other != channel and len(topic) + len(other) > 60:
        assert dead_topic(topic, other) != name


@given(st.binary())
def test_a_letter_has_the_body_as_it_was(body: bytes) -> None:
    letter = Letter("t", "c", "0123456789abcdef", 7, 5, 10**18, 2 * 10**18, body)
    assert parse_letter(letter.pack()) == letter


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\n",
        b"{}\n",
        b"no letter",
        b"[]\nx",
        b'{"topic":"t"}\nbody',
        b"\xff\n",
        b"1" * 100,
        b"[" * 100_000 + b"\n",
        b'{"topic":"t","channel":"c","id":"1","position":1e999,"attempts":1,"timestamp":1,"died":1}\nbody',
    ],
)
def test_what_is_no_letter(message: bytes) -> None:
    assert parse_letter(message) is None


# ---- when


class Rig:
    def __init__(self, path: Path, **changes: object) -> None:
        self.harness = Harness(path, Clock(), **{"max_attempts": 2, **changes})
        self.topic = self.harness.topic("t")
        self.channel = self.topic.channel("c")
        self.reader = Reader(10 * SECOND)
        self.channel.add_consumer(self.reader.consumer)
        self.channel.set_ready(self.reader.consumer, 10)

    def publish(self, *bodies: bytes) -> None:
        self.topic.publish(list(bodies), 0.0, Publisher())
        self.run()

    def run(self) -> list[tuple[int, int, bytes]]:
        for _ in range(3):
            self.harness.turn.run()
        return self.reader.take()

    @property
    def dead(self) -> Topic | None:
        return self.harness.topics.get("t.c.dead")

    def letters(self) -> list[Letter]:
        if self.dead is None:
            return []
        reader = Reader()
        consumer = reader.consumer
        channel = self.dead.channels[CHANNEL]
        channel.add_consumer(consumer)
        channel.set_ready(consumer, 1000)
        self.run()
        found = [parse_letter(body) for _, _, body in reader.take()]
        channel.remove_consumer(consumer)
        assert all(found)
        return [letter for letter in found if letter is not None]


def test_a_message_that_is_given_back_too_often(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.topic.publish([b"poison", b"fine"], 0.0, Publisher())
    (number, _, _), (other, _, _) = rig.run()
    now = rig.harness.clock.now
    assert rig.channel.requeue(rig.reader.consumer, number, number + 1, 0, now) == []
    assert rig.channel.finish(rig.reader.consumer, other, other + 1) == []
    assert rig.run() == [(number, 2, b"poison")]
    assert rig.channel.requeue(rig.reader.consumer, number, number + 1, 5 * SECOND, now) == []
    assert rig.run() == []
    (letter,) = rig.letters()
    assert letter == Letter("t", "c", f"{number:016x}", 0, 2, now, now, b"poison")
    assert (rig.channel.depth, rig.channel.deferred_count, rig.channel.dead_count) == (0, 0, 1)
    assert rig.channel.low() == 2


def test_a_message_that_times_out_too_often(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.publish(b"one", b"two", b"three")
    for attempts in (1, 2):
        rig.run()
        assert rig.channel.in_flight_count == 3
        assert all(flight.attempts == attempts for _, flight in rig.channel.in_flight())
        rig.harness.pass_time(11 * SECOND)
    rig.run()
    assert [letter.body for letter in rig.letters()] == [b"one", b"two", b"three"]
    assert (rig.channel.in_flight_count, rig.channel.depth, rig.channel.timeout_count) == (0, 0, 6)


def test_a_message_whose_consumers_go_away_too_often(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_attempts=1)
    rig.publish(b"one")
    rig.channel.remove_consumer(rig.reader.consumer)
    rig.run()
    assert [letter.body for letter in rig.letters()] == [b"one"]


def test_without_a_limit_nothing_dies(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_attempts=0)
    rig.publish(b"one")
    for _ in range(20):
        rig.harness.pass_time(11 * SECOND)
        rig.run()
    assert rig.dead is None
    assert rig.channel.in_flight_count == 1
    rig.channel.max_attempts = 3  # it has had more than that: its next delivery is its last thing
    rig.harness.pass_time(11 * SECOND)
    rig.run()
    assert [letter.attempts for letter in rig.letters()] == [21]


def test_dead_letters_do_not_die_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_attempts=1)
    rig.publish(b"one")
    rig.harness.pass_time(11 * SECOND)
    rig.run()
    for _ in range(5):
        assert len(rig.letters()) == 1  # taken and not finished
    assert list(rig.harness.topics) == ["t", "t.c.dead"]


def test_what_cannot_be_buried_is_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, max_attempts=1)
    rig.publish(b"one")
    dead = rig.harness.topic("t.c.dead")
    with monkeypatch.context() as broken:
        refuse_commits(broken, dead, OSError(28, "No space left on device"))
        rig.harness.pass_time(11 * SECOND)
        rig.run()
        assert (rig.channel.deferred_count, rig.channel.low(), rig.channel.dead_count) == (1, 0, 0)
    rig.harness.pass_time(2 * SECOND)
    rig.run()
    assert [letter.body for letter in rig.letters()] == [b"one"]
    assert (rig.channel.deferred_count, rig.channel.low(), rig.channel.dead_count) == (0, 1, 1)


def test_nothing_is_finished_before_the_letter_is_on_the_disk(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_attempts=1)
    rig.publish(b"one")
    requests: list[Topic] = []
    rig.harness.syncer.request = requests.append
    rig.harness.pass_time(11 * SECOND)
    rig.run()
    assert rig.dead is not None
    assert rig.dead in requests
    assert (rig.channel.low(), rig.channel.dead_count) == (0, 0)
    # a crash now: it is unfinished, and dies again
    again = Harness(tmp_path, rig.harness.clock, max_attempts=1)
    topic = Topic(again, "t", tmp_path / "t")
    topic.restore(["c"], False, again.clock.now)
    assert (topic.channels["c"].depth, topic.channels["c"].low()) == (1, 0)
    topic.log.close()
    topic.journal.close()
    del rig.harness.syncer.request
    rig.harness.syncer.request(rig.dead)
    rig.run()
    assert (rig.channel.low(), rig.channel.dead_count) == (1, 1)


@pytest.mark.parametrize("move", ["seek", "empty", "commit"])
def test_a_channel_may_be_moved_while_a_message_dies(tmp_path: Path, move: str) -> None:
    rig = Rig(tmp_path, max_attempts=1)
    rig.publish(b"one")
    rig.harness.syncer.request = lambda topic: None
    rig.harness.pass_time(11 * SECOND)
    rig.harness.turn.run()
    rig.channel.set_ready(rig.reader.consumer, 0)
    if move == "seek":
        rig.channel.seek(0)
    elif move == "empty":
        rig.channel.empty()
    else:
        rig.channel.commit(1)
    del rig.harness.syncer.request
    assert rig.dead is not None
    rig.harness.syncer.request(rig.dead)
    rig.run()
    assert rig.channel.depth == (1 if move == "seek" else 0)
    assert rig.channel.dead_count == 0


# ---- over HTTP


async def told(api: Api, path: str) -> Any:
    answer = await api.post(path)
    assert answer.status == 200, answer
    return json.loads(answer.body)


async def kill_some(api: Api, *bodies: bytes) -> None:
    """Have these bodies die on t:c, which gives up after one attempt."""
    client = await api.client()
    await client.sub("t", "c", rdy=100)
    await client.mpub("t", bodies)
    for _ in bodies:
        client.req(await client.message())
    await client.caught_up()
    client.close()

    async def all_dead() -> bool:
        (channel,) = (each for each in (await api.topic("t"))["channels"] if each["channel_name"] == "c")
        return bool(channel["dead_letter_count"] >= len(bodies) and not channel["client_count"])

    await until(all_dead)


async def test_the_way_back_is_to_this_channel_alone(tmp_path: Path) -> None:
    async with running(tmp_path, max_attempts=1, sync_timeout=0.05) as api:
        await api.done("/topic/create?topic=t")
        await api.done("/channel/create?topic=t&channel=c")
        await api.done("/channel/create?topic=t&channel=other")
        await kill_some(api, b"one", b"two\n2", b"\xff")
        await api.done("/pub?topic=t.c.dead", b"no letter")
        other = await api.client()
        await other.sub("t", "other", rdy=10)
        for expected in (b"one", b"two\n2", b"\xff"):
            message = await other.message()
            assert message.body == expected
            other.fin(message)
        answer = await told(api, "/channel/redeliver?topic=t&channel=c&limit=2")
        assert answer == {"dead_topic": "t.c.dead", "redelivered": 2, "skipped": 0}
        answer = await told(api, "/channel/redeliver?topic=t&channel=c")
        assert answer == {"dead_topic": "t.c.dead", "redelivered": 1, "skipped": 1}
        client = await api.client()
        await client.sub("t", "c", rdy=10)
        for expected in (b"one", b"two\n2", b"\xff"):
            message = await client.message()
            assert (message.body, message.attempts) == (expected, 1)
            client.fin(message)
        await client.caught_up()
        await client.pub("t", b"end")
        assert (await other.message()).body == b"end"
        (waiting,) = (await api.topic("t.c.dead"))["channels"]
        assert (waiting["channel_name"], waiting["depth"]) == (CHANNEL, 1)
        assert (await told(api, "/channel/redeliver?topic=t&channel=other"))["redelivered"] == 0


async def test_one_chosen_letter_goes_back_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsquark.nsqd.core.dead_letters.STEP", 2)  # so that it is not in the first step
    async with running(tmp_path, max_attempts=1, sync_timeout=0.05) as api:
        await kill_some(api, *[b"%d" % number for number in range(6)])
        await api.done("/pub?topic=t.c.dead", b"no letter")
        answer = await api.get("/channel/peek?topic=t.c.dead&channel=redeliver&limit=100")
        found = [parse_letter(each["body"].encode()) for each in json.loads(answer.body)["messages"]]
        letters = {bytes(each.body): each for each in found if each is not None}
        answer = await told(api, f"/channel/redeliver?topic=t&channel=c&id={letters[b'4'].id}")
        assert answer == {"dead_topic": "t.c.dead", "redelivered": 1, "skipped": 0}
        position = letters[b"1"].position
        assert (await told(api, f"/channel/redeliver?topic=t&channel=c&id={position}"))["redelivered"] == 1
        client = await api.client()
        await client.sub("t", "c", rdy=10)
        for expected in (b"4", b"1"):
            message = await client.message()
            assert (message.body, message.attempts) == (expected, 1)
            client.fin(message)
        gone = await api.post(f"/channel/redeliver?topic=t&channel=c&id={letters[b'4'].id}")
        assert (gone.status, json.loads(gone.body)["message"]) == (404, "DEAD_LETTER_NOT_FOUND")
        (waiting,) = (await api.topic("t.c.dead"))["channels"]
        assert waiting["depth"] == 5


async def test_a_limit_of_its_own_survives(tmp_path: Path) -> None:
    async with running(tmp_path, max_attempts=7) as api:
        await api.done("/topic/create?topic=t")
        for name in ("a", "b", "c"):
            await api.done(f"/channel/create?topic=t&channel={name}")
        assert (await told(api, "/channel/max_attempts?topic=t&channel=a&to=3"))["max_attempts"] == 3
        assert (await told(api, "/channel/max_attempts?topic=t&channel=b&to=0"))["max_attempts"] == 0
        await told(api, "/channel/max_attempts?topic=t&channel=c&to=3")
        assert (await told(api, "/channel/max_attempts?topic=t&channel=c&to=default"))["max_attempts"] == 7
    async with running(tmp_path, max_attempts=9) as api:
        limits = {each["channel_name"]: each["max_attempts"] for each in (await api.topic("t"))["channels"]}
        assert limits == {"a": 3, "b": 0, "c": 9}


async def test_redelivery_twice_at_once_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, max_attempts=1, sync_timeout=0.05) as api:
        await kill_some(api, *[b"%d" % number for number in range(50)])
        channel = api.broker.topics["t"].channels["c"]
        first = api.broker.loop.create_task(api.broker.dead_letters.redeliver(channel, 1000))
        answer = await api.post("/channel/redeliver?topic=t&channel=c")
        assert (answer.status, json.loads(answer.body)) == (409, {"message": "REDELIVERY_UNDER_WAY"})
        result = await first
        assert result is not None
        assert result.redelivered == 50


@pytest.mark.parametrize("what", ["channel", "topic"])
def test_what_is_deleted_in_flight_at_its_last_attempt_is_no_dead_letter(tmp_path: Path, what: str) -> None:
    rig = Rig(tmp_path, max_attempts=1)
    rig.topic.publish([b"one", b"two"], 0.0, Publisher())
    assert len(rig.run()) == 2
    if what == "channel":
        rig.topic.delete_channel("c")
    else:
        rig.topic.exit()
    rig.run()
    assert rig.reader.closed
    assert rig.dead is None
    assert rig.topic.pending.consumers == 0
