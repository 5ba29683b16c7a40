"""How RDY is shared over the connections of a consumer. No sockets, no timers: time is an argument.

The one rule: what may be in flight never adds up to more than `max_in_flight`. RDY alone does not say what
may be in flight: a connection whose RDY was lowered still has what it had, and for a moment may have more on
its way. So each connection is counted with its `bound`, and a share grows only into what no bound covers.

Up to `max_in_flight` connections share it evenly, the remainder spread; one that has been silent for
`idle_timeout` keeps 1 and lends the rest to those that are busy, until its next message. With more
connections than that, RDY 1 goes round. While the consumer backs off, one connection has RDY 1 at most.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

# How long after RDY was lowered messages may still come that were sent before nsqd had heard of it.
SETTLE = 0.25


class Lane:
    """A connection as RDY sees it."""

    __slots__ = ("in_flight", "last_message", "last_rdy", "max_rdy", "rdy", "settled_at", "settling")

    def __init__(self, max_rdy: int, now: float) -> None:
        self.max_rdy = max_rdy
        self.rdy = 0  # as sent last
        self.in_flight = 0
        self.last_message = now
        self.last_rdy = float("-inf")  # when it was last given any
        self.settling = 0
        self.settled_at = now

    def bound(self, now: float) -> int:
        """The most that may be in flight here."""
        return max(self.rdy, self.in_flight, self.settling if now < self.settled_at else 0)


class Mode(enum.Enum):
    NORMAL = enum.auto()
    PAUSED = enum.auto()  # nobody gets anything
    TESTING = enum.auto()  # one connection gets one message


class RdySharing:
    """Decides, and calls `send` with each RDY that is to be sent, the lower ones first."""

    def __init__(
        self,
        max_in_flight: int,
        send: Callable[[Lane, int], None],
        *,
        idle_timeout: float = 10.0,
        hold_timeout: float = 30.0,
        settle: float = SETTLE,
    ) -> None:
        self.max_in_flight = max_in_flight
        self.mode = Mode.NORMAL
        self.lanes: list[Lane] = []  # in the order they came
        self.waiting = False  # somebody would get more if an answer or time made room
        self._send = send
        self._idle_timeout = idle_timeout
        self._hold_timeout = hold_timeout
        self._settle = settle

    # ---- what happens

    def add(self, lane: Lane, now: float) -> None:
        self.lanes.append(lane)
        self.share(now)

    def retire(self, lane: Lane, now: float) -> None:
        """It gets nothing more; what it has in flight still counts."""
        lane.max_rdy = 0
        self.share(now)

    def remove(self, lane: Lane, now: float) -> None:
        """Its connection is gone, and what was in flight there with it."""
        if lane in self.lanes:
            self.lanes.remove(lane)
            self.share(now)

    def change(self, max_in_flight: int, now: float) -> None:
        self.max_in_flight = max_in_flight
        self.share(now)

    def pause(self, now: float) -> None:
        self.mode = Mode.PAUSED
        self.waiting = False
        for lane in self.lanes:
            self._set(lane, 0, now)

    def test(self, now: float) -> None:
        self.mode = Mode.TESTING
        self.share(now)

    def resume(self, now: float) -> None:
        self.mode = Mode.NORMAL
        self.share(now)

    def message(self, lane: Lane, now: float) -> None:
        """Messages have come. Whoever was idle takes back what it had lent."""
        was_idle = now - lane.last_message > self._idle_timeout
        lane.last_message = now
        if was_idle and self.mode is Mode.NORMAL:
            self.share(now)

    def tick(self, now: float) -> None:
        """Once in each rdy_redistribute_interval: move on what is held too long, lend what is not used."""
        if self.mode is Mode.PAUSED or not self.lanes:
            return
        if self._scarce() and len(self._serving()) > 1:
            for lane in self.lanes:
                if lane.rdy and (self._is_idle(lane, now) or now - lane.last_rdy > self._hold_timeout):
                    self._set(lane, 0, now)
        self.share(now)

    def next_wake(self, now: float) -> float | None:
        """When to call `share` again if nothing else happens."""
        times = [lane.settled_at for lane in self.lanes if lane.settled_at > now] if self.waiting else []
        return min(times, default=None)

    def is_starved(self) -> bool:
        """Whether some connection has about all in flight that it may have: no more will come there."""
        return any(lane.in_flight and lane.in_flight >= int(0.85 * lane.rdy) for lane in self.lanes)

    # ---- what follows

    def _scarce(self) -> bool:
        return self.mode is Mode.TESTING or len(self._serving()) > self.max_in_flight

    def _serving(self) -> list[Lane]:
        return [lane for lane in self.lanes if lane.max_rdy]

    def _is_idle(self, lane: Lane, now: float) -> bool:
        return now - lane.last_message > self._idle_timeout

    def share(self, now: float) -> None:
        """Send every RDY that differs from what it should be, as far as there is room."""
        self.waiting = False
        if self.mode is Mode.PAUSED or not self.lanes:
            return
        targets = self._tokens() if self._scarce() else self._shares(now)
        for lane, target in targets.items():
            if target < lane.rdy:
                self._set(lane, target, now)
        total = sum(lane.bound(now) for lane in self.lanes)
        # those with nothing come first: who has some can wait
        for lane in sorted((lane for lane in targets if targets[lane] > lane.rdy), key=lambda lane: lane.rdy):
            others = total - lane.bound(now)
            room = min(targets[lane], self.max_in_flight - others)
            if room > lane.rdy:
                self._set(lane, room, now)
                total = others + lane.bound(now)
            if room < targets[lane]:
                self.waiting = True

    def _tokens(self) -> dict[Lane, int]:
        """RDY 1 for as many as may be: whoever has it keeps it, then whoever went without longest."""
        count = min(self.max_in_flight, 1 if self.mode is Mode.TESTING else len(self.lanes))
        order = sorted(self._serving(), key=lambda lane: (not lane.rdy, lane.last_rdy))
        targets = dict.fromkeys(self.lanes, 0)
        targets.update((lane, 1) for lane in order[:count])
        return targets

    def _shares(self, now: float) -> dict[Lane, int]:
        idle = [lane for lane in self.lanes if self._is_idle(lane, now)]
        busy = [lane for lane in self.lanes if lane not in idle]
        if not busy or not idle:
            return _spread(self.max_in_flight, self.lanes)
        targets = _spread(self.max_in_flight - len(idle), busy)
        # the idle keep 1 each, and what the busy may not take
        targets.update(_spread(self.max_in_flight - sum(targets.values()), idle))
        return targets

    def _set(self, lane: Lane, rdy: int, now: float) -> None:
        if rdy == lane.rdy:
            return
        if rdy < lane.rdy:
            lane.settling = lane.bound(now)
            lane.settled_at = now + self._settle
        if rdy:
            lane.last_rdy = now
        lane.rdy = rdy
        self._send(lane, rdy)


def _spread(total: int, lanes: Iterable[Lane]) -> dict[Lane, int]:
    """Even shares of the total, the remainder to the first, and nobody gets more than its `max_rdy`."""
    targets: dict[Lane, int] = {}
    rest = list(lanes)
    while rest:
        share, remainder = divmod(total, len(rest))
        limited = [lane for lane in rest if lane.max_rdy <= share]
        if not limited:
            targets.update((lane, share + (place < remainder)) for place, lane in enumerate(rest))
            break
        for lane in limited:
            targets[lane] = lane.max_rdy
            total -= lane.max_rdy
        rest = [lane for lane in rest if lane not in limited]
    return targets
