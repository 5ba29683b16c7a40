"""What a consumer has in flight, against a dictionary of ids."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark.nsqd.core.consumer import NEVER, Consumer
from nsquark.nsqd.core.in_flight import Flight
from nsquark.nsqd.core.topic import Topic
from tests.nsqd.harness import Clock, Harness

Known = tuple[int, int, int, int]  # position, attempts, delivered, deadline


def consumer() -> Consumer:
    return Consumer(cast(Any, None), lambda frames: None, 1000)


def messages(flights: list[Flight]) -> dict[int, Known]:
    """Each message by its id."""
    found: dict[int, Known] = {}
    for flight in flights:
        assert flight.first < flight.end
        for number in range(flight.first, flight.end):
            assert number not in found
            position = flight.position + number - flight.first
            found[number] = (position, flight.attempts, flight.delivered, flight.deadline)
    return found


def check(holder: Consumer, model: dict[int, Known]) -> None:
    assert messages(holder.flights) == model
    firsts = [flight.first for flight in holder.flights]
    assert firsts == sorted(firsts)
    assert all(deadline >= holder.next_deadline for _, _, _, deadline in model.values())


@settings(max_examples=300)
@given(st.integers(0, 2**64).map(random.Random))
def test_a_consumer_holds_what_was_added_and_not_taken(draw: random.Random) -> None:
    holder, model = consumer(), dict[int, Known]()
    base = draw.choice([0, 2**64 - 129])  # ids are any 64 bits
    for _ in range(draw.randint(1, 25)):
        first = base + draw.randrange(90)
        end = first + draw.choice([1, 1, 2, 10, 40])
        match draw.randrange(6):
            case 0 | 1 | 2:
                while end > first and any(number in model for number in range(first, end)):
                    end -= 1
                if first < end:
                    known = (
                        draw.randrange(1000),
                        draw.randint(1, 3),
                        draw.randrange(50),
                        draw.randrange(100),
                    )
                    holder.add(Flight(first, end - first, *known))
                    model |= {number: (known[0] + number - first, *known[1:]) for number in range(first, end)}
            case 3:
                taken = holder.take(first, end - first)
                assert [piece.first for piece in taken] == sorted(piece.first for piece in taken)
                expected = {number: model.pop(number) for number in range(first, end) if number in model}
                assert messages(taken) == expected
            case 4:
                # TOUCH: what is taken comes back at once with another deadline
                for taken_piece in holder.take(first, 1):
                    taken_piece.deadline = draw.randrange(200)
                    holder.add(taken_piece)
                    model[first] = (*model[first][:3], taken_piece.deadline)
            case _:
                now = draw.randrange(120)
                most = draw.choice([0, 1, 2, 100])
                late = holder.overdue(now, most)
                due = {number: each for number, each in model.items() if each[3] <= now}
                assert messages(late).items() <= due.items()
                assert len(late) == most or messages(late) == due
                model = {number: each for number, each in model.items() if number not in messages(late)}
                assert holder.next_deadline == min((each[3] for each in model.values()), default=NEVER)
        check(holder, model)
        for number in (first, end % 2**64, (end + 1) % 2**64):
            flight = holder.find(number)
            assert (flight is not None) == (number in model)
            assert flight is None or flight.first <= number < flight.end


def test_finishing_in_order_only_moves_the_beginning() -> None:
    holder = consumer()
    flight = Flight(10, 10, 110, 1, 5, 99)
    holder.add(flight)
    for number in range(10, 19):
        [taken] = holder.take(number, 1)
        assert (taken.first, taken.end, taken.position) == (number, number + 1, number + 100)
        assert holder.flights == [flight]
    assert (flight.first, flight.end, flight.position) == (19, 20, 119)
    assert len(holder.take(19, 1)) == 1
    assert holder.flights == []


def test_taking_from_the_middle_leaves_two_pieces() -> None:
    holder = consumer()
    holder.add(Flight(10, 10, 0, 3, 5, 99))
    [taken] = holder.take(13, 2)
    assert (taken.first, taken.end, taken.position, taken.attempts) == (13, 15, 3, 3)
    assert (taken.delivered, taken.deadline) == (5, 99)
    assert [(flight.first, flight.end, flight.position) for flight in holder.flights] == [
        (10, 13, 0),
        (15, 20, 5),
    ]


def test_taking_over_several_flights_gives_their_pieces_in_order() -> None:
    holder = consumer()
    for first in (30, 10, 20):
        holder.add(Flight(first, 5, first, 1, 0, first))
    taken = holder.take(12, 20)
    assert [(piece.first, piece.end) for piece in taken] == [(12, 15), (20, 25), (30, 32)]
    assert [(flight.first, flight.end) for flight in holder.flights] == [(10, 12), (32, 35)]
    assert holder.take(0, 10) == holder.take(12, 20) == holder.take(35, 65) == []


def test_what_is_taken_may_be_added_while_it_is_walked() -> None:
    for first, end in ((10, 11), (10, 15), (5, 11), (5, 15)):
        holder = consumer()
        holder.add(Flight(first, end - first, 0, 1, 0, 50))
        for rounds, taken in enumerate(holder.take(10, 1)):
            assert rounds == 0
            taken.deadline = 99
            holder.add(taken)
        assert messages(holder.flights)[10] == (10 - first, 1, 0, 99)
        assert set(messages(holder.flights)) == set(range(first, end))


def test_a_consumer_has_room_while_it_reads_and_belongs_to_a_channel(tmp_path: Path) -> None:
    topic = Topic(Harness(tmp_path, Clock()), "t", tmp_path / "t")
    channel = topic.channel("c")
    holder = consumer()
    holder.ready_count, holder.in_flight_count = 5, 0
    assert holder.room() == 0
    channel.add_consumer(holder)
    holder.ready_count, holder.in_flight_count = 5, 2
    assert holder.room() == 3
    holder.writable = False
    assert holder.room() == 0
    holder.writable = True
    channel.remove_consumer(holder)
    holder.ready_count = 5
    assert holder.room() == 0
    topic.close()
