"""The queue alone: which publishes go back to its front, which fail, and in what order."""

import asyncio
from collections import deque

import pytest

from nsquark.client.config import DEFAULT_CONFIG
from nsquark.client.producer.group.members import GroupMembers
from nsquark.client.producer.group.publish_queue import PublishQueue
from nsquark.errors import (
    BadTopic,
    ConnectFailed,
    ConnectionLost,
    OutcomeUnknown,
    PendingFull,
    PubFailed,
    PublishTimeout,
)

LOST = ConnectionLost("the peer has closed")


def queue_of(repeat_unknown: bool = False, max_pending: int = 100) -> PublishQueue:
    members = GroupMembers(["127.0.0.1:1"], None, [], DEFAULT_CONFIG, lambda event: None)
    return PublishQueue(members, max_pending, repeat_unknown, lambda: "127.0.0.1:1")


def add(
    queue: PublishQueue, *bodies: bytes, timeout: float = 60, retries: int = 0
) -> list[asyncio.Future[bytes]]:
    return [queue.add([body], 1, timeout, retries) for body in bodies]


def send_all(queue: PublishQueue) -> None:
    while queue.waiting:
        queue.sent.append(queue.waiting.popleft())


def bodies(publishes: deque) -> list[bytes]:  # type: ignore[type-arg]
    return [each.command[0] for each in publishes]


async def test_what_never_went_to_a_socket_is_sent_first_and_in_order() -> None:
    queue = queue_of()
    sent, unsent, other = add(queue, b"1", b"2", b"3")
    send_all(queue)
    add(queue, b"4")
    queue.take_back(3, 1, None, LOST)
    assert bodies(queue.waiting) == [b"2", b"3", b"4"]
    with pytest.raises(OutcomeUnknown):
        sent.result()
    assert not unsent.done()
    assert not other.done()


async def test_only_what_has_no_answer_is_taken_back() -> None:
    queue = queue_of()
    add(queue, b"1", b"2", b"3")
    send_all(queue)
    queue.answered_but(2)
    queue.take_back(2, 0, None, LOST)
    assert bodies(queue.waiting) == [b"2", b"3"]


@pytest.mark.parametrize(("repeat_unknown", "retries"), [(True, 0), (False, 1)])
async def test_a_publish_that_may_be_repeated_is(repeat_unknown: bool, retries: int) -> None:
    queue = queue_of(repeat_unknown)
    (future,) = add(queue, b"1", retries=retries)
    for _ in range(1 if retries else 5):
        send_all(queue)
        queue.take_back(1, 1, None, LOST)
        assert bodies(queue.waiting) == [b"1"]
    if retries:
        send_all(queue)
        queue.take_back(1, 1, None, LOST)
        assert isinstance(future.exception(), OutcomeUnknown)


async def test_what_a_disk_refuses_waits_again_and_its_reason_is_kept_until_one_is_stored() -> None:
    queue = queue_of()
    first, behind = add(queue, b"1", b"2")
    send_all(queue)
    queue.take_back(2, 2, PubFailed(b"PUB failed disk is full"), LOST)
    # What is behind a failed write to another topic may be stored: its outcome is not known.
    assert bodies(queue.waiting) == [b"1"]
    assert not first.done()
    assert isinstance(behind.exception(), OutcomeUnknown)
    assert "disk is full" in queue.reasons()
    send_all(queue)
    queue.answered_but(0)
    assert "disk is full" not in queue.reasons()


async def test_a_publish_that_nsqd_refuses_fails_and_those_behind_it_were_not_stored() -> None:
    queue = queue_of()
    first, behind = add(queue, b"1", b"2")
    send_all(queue)
    queue.take_back(2, 2, BadTopic(b"PUB topic name"), LOST)
    assert isinstance(first.exception(), BadTopic)
    assert bodies(queue.waiting) == [b"2"]
    assert not behind.done()


async def test_without_a_primary_only_what_was_never_sent_is_surely_not_stored() -> None:
    queue = queue_of(repeat_unknown=True)
    sent, _ = add(queue, b"1", b"2")
    queue.sent.append(queue.waiting.popleft())
    queue.take_back(1, 1, None, LOST)
    futures = [each.future for each in queue.waiting]
    queue.fail_waiting(ConnectFailed("no primary"))
    assert not queue.waiting
    assert isinstance(sent.exception(), OutcomeUnknown)
    assert isinstance(futures[1].exception(), ConnectFailed)


async def test_room_is_counted_without_what_was_cancelled() -> None:
    queue = queue_of(max_pending=2)
    first, _ = add(queue, b"1", b"2")
    with pytest.raises(PendingFull):
        queue.check_room()
    first.cancel()
    queue.check_room()


async def test_a_late_publish_fails_and_says_whether_it_was_sent() -> None:
    queue = queue_of()
    waiting, sent = add(queue, b"1", b"2", timeout=0)
    queue.sent.append(queue.waiting.pop())
    with pytest.raises(PublishTimeout) as late:
        await waiting
    assert not late.value.sent
    with pytest.raises(PublishTimeout) as unanswered:
        await sent
    assert unanswered.value.sent
    assert not queue.waiting


async def test_the_newest_publishes_are_told_and_cancelled_ones_hide_none() -> None:
    queue = queue_of()
    first, second, third = add(queue, b"1", b"2", b"3")
    queue.sent.append(queue.waiting.popleft())
    assert queue.unanswered() == [third, first]
    third.cancel()
    first.cancel()
    assert queue.unanswered() == [second]
