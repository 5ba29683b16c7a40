"""Holders against a plain dictionary of ids."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark.nsqd.core.consumer import Consumer
from nsquark.nsqd.core.holders import MANY, Holders
from nsquark.nsqd.core.in_flight import Flight
from tests.nsqd.harness import Reader


def in_flight(consumer: Consumer, first: int, count: int) -> None:
    consumer.add(Flight(first, count, first, 1, 0, 0))


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_last_consumer_that_got_an_id_and_has_it_still_is_found(draw: random.Random) -> None:
    readers = [Reader() for _ in range(3)]
    consumers = [reader.consumer for reader in readers]
    owner: dict[int, Consumer] = {}

    def deliver() -> tuple[int, int, Consumer]:
        first = draw.randrange(60)
        end = first + draw.randint(1, 15)
        consumer = draw.choice(consumers)
        for message in range(first, end):
            if message in owner:  # only a message that is in flight nowhere is delivered
                owner[message].take(message, 1)
        in_flight(consumer, first, end - first)
        owner.update(dict.fromkeys(range(first, end), consumer))
        return first, end, consumer

    deliver()
    holders = Holders(consumers)
    for _ in range(12):
        deliveries = [deliver() for _ in range(draw.randint(0, 3))]
        if owner and draw.random() < 0.5:
            message = draw.choice(sorted(owner))
            owner.pop(message).take(message, 1)
        for message in range(80):
            assert holders.find(message, deliveries) is owner.get(message)
        assert not deliveries


def test_holders_are_outgrown_after_many_deliveries() -> None:
    consumer = Reader().consumer
    holders = Holders([consumer])
    assert not holders.outgrown
    assert holders.find(0, [(number, number + 1, consumer) for number in range(MANY)]) is None
    assert not holders.outgrown
    holders.find(0, [(MANY, MANY + 1, consumer)])
    assert holders.outgrown
