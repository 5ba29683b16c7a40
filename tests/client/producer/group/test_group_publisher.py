"""Publishing to a replica group: the primary is followed, and only what was surely not stored is repeated."""

from __future__ import annotations

import asyncio

import pytest

from nsquark.client import Config, Producer
from nsquark.client.events import Connected, Event
from nsquark.errors import (
    BadTopic,
    ConnectFailed,
    OutcomeUnknown,
    PendingFull,
    PublishTimeout,
    UsageError,
)
from tests.client.producer.group.members import CONFIG, Member, producer_to, quick_to_doubt, refuse
from tests.client.producer.publishing import silent
from tests.client.scripted import Peer
from tests.daemon import until

pytestmark = pytest.mark.usefixtures("tidy")


async def test_the_primary_is_found_and_followed() -> None:
    events: list[Event] = []
    async with Member() as a, Member() as b, producer_to(a, b, on_event=events.append) as producer:
        await b.lead()
        await producer.publish("t", b"1")
        await b.stop()
        waiting = asyncio.create_task(producer.publish("t", b"2"))
        await a.lead()
        await waiting
        assert (b.publishes(), a.publishes()) == ([b"1"], [b"2"])
        assert [each.address for each in events if isinstance(each, Connected)] == [b.address, a.address]


async def test_publishes_wait_for_a_primary_in_order() -> None:
    async with Member() as a, Member() as b, producer_to(a, b) as producer:
        waiting = [producer.publish_nowait("t", b"%d" % n) for n in range(100)]
        many = asyncio.create_task(producer.publish("t", b"last"))
        await asyncio.sleep(0)
        await a.lead()
        await asyncio.gather(*waiting, many)
        await a.has(*(b"%d" % n for n in range(100)), b"last")


async def test_without_a_primary_the_error_names_the_group_and_what_was_tried() -> None:
    async with Member() as a, Member() as b:
        async with producer_to(a, b, group="orders") as producer:
            with pytest.raises(
                PublishTimeout, match="replica group 'orders' has not stored it in time"
            ) as told:
                await producer.publish("t", b"x", timeout=0.1)
            assert not told.value.sent
            assert f"{a.address}: Connection refused" in str(told.value)
            assert b.address in str(told.value)
            with pytest.raises(ConnectFailed, match=r"'orders' has no primary: .*refused"):
                await producer.ping(0.1)
        async with producer_to(a, b) as producer:
            with pytest.raises(PublishTimeout, match=f"the replica group of {a.address}, {b.address}"):
                await producer.publish_nowait("t", b"x", timeout=0.1)
        assert not a.publishes()


async def test_what_the_group_refuses_is_sent_again_with_all_behind_it_in_order() -> None:
    async with Member() as a, Member() as b, producer_to(a, b) as producer:
        await a.lead()

        async def hand_over(peer: Peer) -> None:
            if len(a.publishes()) <= 2:
                peer.respond()
                return
            refuse(peer, b"replica group: another member takes over")
            peer.writer.close()
            await a.stop_listening()

        a.handlers["PUB"] = hand_over
        await producer.ping()
        futures = [producer.publish_nowait("t", b"%d" % n) for n in range(10)]
        await asyncio.gather(*futures[:2])
        await b.lead()
        await asyncio.gather(*futures)
        await b.has(*(b"%d" % n for n in range(2, 10)))


async def test_a_refusal_lasts_until_the_same_member_takes_publishes_again() -> None:
    async with Member() as a, producer_to(a) as producer:
        await a.lead()
        a.handlers["PUB"] = refuse
        waiting = [producer.publish_nowait("t", b"%d" % n) for n in range(3)]
        await until(lambda: len(a.peers) >= 3)
        late = asyncio.create_task(producer.publish("t", b"late", timeout=0.2))
        with pytest.raises(
            PublishTimeout, match="E_PUB_FAILED PUB failed replica group: 1 of 2 copies"
        ) as told:
            await late
        assert not told.value.sent
        del a.handlers["PUB"]
        await asyncio.gather(*waiting)
        assert a.publishes()[-3:] == [b"0", b"1", b"2"]


async def test_what_has_no_answer_is_not_sent_again() -> None:
    async with Member() as a, Member() as b, producer_to(a, b) as producer:
        await a.lead()
        a.handlers["PUB"] = silent
        await producer.ping()
        first = producer.publish_nowait("t", b"1")
        await a.has(b"1")
        a.peers[-1].drop()
        await a.stop()
        await b.lead()
        with pytest.raises(OutcomeUnknown, match="may be stored, or not"):
            await first
        await producer.publish("t", b"2")
        await b.has(b"2")


@pytest.mark.parametrize("how", ["repeat_unknown", "retries"])
async def test_what_has_no_answer_is_sent_again_where_that_is_wanted(how: str) -> None:
    async with Member() as a, Member() as b:
        async with producer_to(a, b, repeat_unknown=how == "repeat_unknown") as producer:
            await a.lead()
            a.handlers["PUB"] = silent
            retries = 1 if how == "retries" else 0
            calls = [producer.publish("t", b"%d" % n, retries=retries) for n in range(3)]
            tasks = [asyncio.create_task(call) for call in calls]
            await a.has(b"0", b"1", b"2")
            await a.stop()
            await b.lead()
            await asyncio.gather(*tasks)
            await b.has(b"0", b"1", b"2")


async def test_what_was_sent_once_and_is_late_may_be_stored() -> None:
    async with Member() as a, producer_to(a, repeat_unknown=True) as producer:
        await a.lead()
        a.handlers["PUB"] = silent
        task = asyncio.create_task(producer.publish("t", b"x", timeout=0.5))
        await a.has(b"x")
        await a.stop()
        with pytest.raises(PublishTimeout) as told:
            await task
        assert told.value.sent


async def test_behind_a_publish_that_a_disk_has_refused_the_outcome_is_unknown() -> None:
    async with Member() as a, producer_to(a) as producer:
        await a.lead()

        def no_space(peer: Peer) -> None:
            if len(a.peers) == 1:
                if len(a.publishes()) == 1:
                    refuse(peer, b"No space left on device")
            else:
                peer.respond()

        a.handlers["PUB"] = no_space
        await producer.ping()
        first, second = (producer.publish_nowait("t", body) for body in (b"1", b"2"))
        await first
        with pytest.raises(OutcomeUnknown, match="No space left"):
            await second
        assert a.publishes()[-1] == b"1"


async def test_a_message_that_nsqd_does_not_take_fails_alone() -> None:
    async with Member() as a, producer_to(a) as producer:
        await a.lead()

        def bad_topic(peer: Peer) -> None:
            if peer is a.peers[0]:
                peer.fail(b"E_BAD_TOPIC PUB topic name is not valid")
            else:
                peer.respond()

        a.handlers["PUB"] = bad_topic
        await producer.ping()
        first, second = (producer.publish_nowait("t", body) for body in (b"1", b"2"))
        with pytest.raises(BadTopic):
            await first
        await second
        assert a.publishes().count(b"1") == 1


async def test_a_silent_primary_is_left_when_another_member_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_to_doubt(monkeypatch)
    async with Member() as a, Member() as b, producer_to(a, b) as producer:
        await a.lead()
        a.handlers["PUB"] = silent
        lost = producer.publish_nowait("t", b"1")
        await a.has(b"1")
        await b.lead()
        with pytest.raises(OutcomeUnknown, match=f"silent and {b.address} leads"):
            await lost
        await producer.publish("t", b"2")
        await b.has(b"2")
        assert a.peers[-1].closed.is_set()


async def test_a_slow_primary_is_kept_while_no_other_member_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_to_doubt(monkeypatch)
    async with Member() as a, Member() as b, producer_to(a, b) as producer:
        await a.lead()
        a.handlers["PUB"] = silent
        slow = producer.publish_nowait("t", b"1")
        await a.has(b"1")
        await until(lambda: b.address in producer._publishers._queue.failures)  # type: ignore[union-attr]
        a.peers[-1].respond()
        await slow
        del a.handlers["PUB"]
        await producer.publish("t", b"2")
        assert len(a.peers) == 1
        await b.lead()
        await producer.publish("t", b"3")
        assert not b.peers


async def test_another_spelling_of_the_primary_is_no_other_member(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_to_doubt(monkeypatch)
    async with Member() as a:
        await a.lead()
        a.handlers["PUB"] = silent
        addresses = [a.address, f"localhost:{a.port}"]
        async with Producer(addresses, mode="group", config=CONFIG) as producer:
            slow = producer.publish_nowait("t", b"1")
            await a.has(b"1")
            await until(lambda: len(a.peers) >= 2)
            await until(lambda: a.peers[1].closed.is_set())
            next(peer for peer in a.peers if "PUB t" in peer.commands).respond()
            await slow


async def test_a_primary_that_is_silent_and_then_gone_is_dialled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick_to_doubt(monkeypatch)
    async with Member() as a, Member() as b, producer_to(a, b) as producer:
        await a.lead()
        a.handlers["PUB"] = silent
        lost = producer.publish_nowait("t", b"1")
        await a.has(b"1")
        await until(lambda: b.address in producer._publishers._queue.failures)  # type: ignore[union-attr]
        del a.handlers["PUB"]
        a.peers[-1].drop()
        with pytest.raises(OutcomeUnknown):
            await lost
        await producer.publish("t", b"2")
        await a.has(b"1", b"2")


async def test_a_cancelled_publish_is_not_sent() -> None:
    async with Member() as a, producer_to(a) as producer:
        first = asyncio.create_task(producer.publish("t", b"1"))
        second = asyncio.create_task(producer.publish("t", b"2"))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        await a.lead()
        await second
        await a.has(b"2")


async def test_closing_is_prompt_and_says_what_was_sent() -> None:
    async with Member() as a, Member() as b:
        producer = producer_to(a, b)
        waiting = producer.publish_nowait("t", b"1")
        await producer.close(0)
        with pytest.raises(ConnectFailed, match="closed"):
            await waiting
        with pytest.raises(UsageError, match="closed"):
            await producer.publish("t", b"x")

        await a.lead()
        a.handlers["PUB"] = silent
        producer = producer_to(a, b, repeat_unknown=True)
        sent = producer.publish_nowait("t", b"2")
        await a.has(b"2")
        await producer.close(0)
        with pytest.raises(OutcomeUnknown):
            await sent


async def test_closing_waits_for_what_is_under_way() -> None:
    async with Member() as a:
        producer = producer_to(a)
        futures = [producer.publish_nowait("t", b"%d" % n) for n in range(50)]
        futures[-1].cancel()
        await a.lead()
        await producer.close()
        assert all(future.exception() is None for future in futures[:-1])


async def test_so_many_wait_and_no_more() -> None:
    async with Member() as a, producer_to(a, max_pending=3) as producer:
        futures = [producer.publish_nowait("t", b"%d" % n) for n in range(3)]
        with pytest.raises(PendingFull):
            producer.publish_nowait("t", b"x")
        futures[1].cancel()
        futures[1] = producer.publish_nowait("t", b"3")
        more = [asyncio.create_task(producer.publish("t", b"%d" % n)) for n in range(4, 10)]
        await a.lead()
        await asyncio.gather(*futures, *more)
        await a.has(b"0", b"2", *(b"%d" % n for n in range(3, 10)))


async def test_no_more_than_max_pending_are_unanswered() -> None:
    async with Member() as a, producer_to(a, max_pending=2) as producer:
        await a.lead()
        a.handlers["PUB"] = silent
        tasks = [asyncio.create_task(producer.publish("t", b"%d" % n)) for n in range(4)]
        await a.has(b"0", b"1")
        a.peers[-1].respond()
        await a.has(b"0", b"1", b"2")
        for _ in range(3):
            a.peers[-1].respond()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks[:3])
        await a.has(b"0", b"1", b"2", b"3")
        await tasks[3]


async def test_a_member_that_refuses_the_client_ends_the_search() -> None:
    async with Member({"auth_required": True}) as a, Member() as b, producer_to(a, b) as producer:
        await a.lead()
        with pytest.raises(ConnectFailed, match="auth") as told:
            await producer.publish("t", b"x")
        assert told.value.permanent
        with pytest.raises(ConnectFailed, match="auth"):
            await producer.ping()


async def test_a_message_that_is_too_long_is_not_sent() -> None:
    async with Member({"max_msg_size": 10}) as a, producer_to(a) as producer:
        early = producer.publish_nowait("t", b"x" * 11)
        good = producer.publish_nowait("t", b"x" * 10)
        await a.lead()
        with pytest.raises(UsageError, match="takes 1 to 10"):
            await early
        await good
        with pytest.raises(UsageError, match="takes 1 to 10"):
            await producer.publish("t", b"x" * 11)
        await producer.publish_many("t", [b"x" * 10] * 3)
        assert len(a.peers) == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"nsqd": ["a:1"], "lookupd": "l:1"}, "for a replica group"),
        ({"nsqd": ["a:1"], "repeat_unknown": True}, "for a replica group"),
        ({"lookupd": "l:1", "mode": "group"}, "group is missing"),
        ({"group": "g"}, "no nsqd"),
        ({"group": "g", "lookupd": "nonsense://"}, "nonsense"),
        ({"nsqd": ["a:1", "b:1"], "mode": "grupp"}, "none of all, group"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Producer(config=Config(), **options)  # type: ignore[arg-type]
