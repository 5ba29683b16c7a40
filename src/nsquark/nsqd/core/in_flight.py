"""Messages that were delivered together and are not answered yet."""

from __future__ import annotations

from collections.abc import Sequence


class Flight:
    """Messages with ids that follow each other, delivered at one time, with one deadline.

    `first` is the id of the first of them, and `position` its position. Times are of a monotonic clock.
    `published` comes from `kernel.timestamps` where the channel measures latency, and is empty elsewhere.
    """

    __slots__ = ("attempts", "count", "deadline", "delivered", "first", "position", "published")

    def __init__(
        self, first: int, count: int, position: int, attempts: int, delivered: int, deadline: int
    ) -> None:
        self.first = first
        self.count = count
        self.position = position
        self.attempts = attempts
        self.delivered = delivered
        self.deadline = deadline
        self.published: Sequence[tuple[int, int]] = ()

    @property
    def end(self) -> int:
        """The id behind the last. It can be 2**64, which no C integer holds: the sum is Python's."""
        first = self.first
        return first + self.count

    def piece(self, skip: int, count: int) -> Flight:
        """A flight of its own for `count` messages of this one, without the first `skip`."""
        first, position = self.first + skip, self.position + skip
        piece = new_flight(first, count, position, self.attempts, self.delivered, self.deadline)
        piece.published = self.published
        return piece

    def drop_front(self, count: int) -> None:
        """Leave out the first `count` messages; at least one must be left."""
        self.first += count
        self.position += count
        self.count -= count


def new_flight(first: int, count: int, position: int, attempts: int, delivered: int, deadline: int) -> Flight:
    """`Flight(…)`. Where it is compiled, this makes no Python objects of the arguments."""
    flight = Flight.__new__(Flight)
    flight.first = first
    flight.count = count
    flight.position = position
    flight.attempts = attempts
    flight.delivered = delivered
    flight.deadline = deadline
    flight.published = ()
    return flight
