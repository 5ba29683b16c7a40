"""How RDY is shared over the connections of a consumer. No sockets, no timers: time is an argument.

The one rule: over all connections, at most `max_in_flight` messages are in flight. RDY alone does not bound
them: a connection whose RDY was lowered keeps the messages it has, and nsqd may have sent more before it
read the lower RDY. So each connection counts with its `bound`, and a share grows only into the room that the
bounds leave.

Up to `max_in_flight` connections share it evenly, and the remainder is spread. A connection that has been
silent for `idle_timeout` keeps 1 and lends the rest to the busy ones, until its next message. With more
connections than `max_in_flight`, RDY 1 is passed round. While the consumer backs off, at most one connection
has RDY, which is 1.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

# Seconds after lowering RDY in which messages may come that nsqd sent before it read the lower RDY.
SETTLE = 0.25


class RdyShare:
    """One connection's share of `max_in_flight`, and what decides it."""

    __slots__ = ("in_flight", "last_message", "last_rdy", "max_rdy", "rdy", "settled_at", "settling")

    def __init__(self, max_rdy: int, now: float) -> None:
        self.max_rdy = max_rdy
        self.rdy = 0  # the RDY that was sent last
        self.in_flight = 0
        self.last_message = now
        self.last_rdy = float("-inf")  # when it last got RDY
        self.settling = 0  # the bound before RDY was lowered, which holds until `settled_at`
        self.settled_at = now

    def bound(self, now: float) -> int:
        """The most messages that may be in flight on this connection."""
        return max(self.rdy, self.in_flight, self.settling if now < self.settled_at else 0)


class Mode(enum.Enum):
    NORMAL = enum.auto()
    PAUSED = enum.auto()  # no connection gets RDY
    TESTING = enum.auto()  # one connection gets one message


class RdySharing:
    """Decides the RDY of each connection, and calls `send` with each that changes, lowered ones first."""

    def __init__(
        self,
        max_in_flight: int,
        send: Callable[[RdyShare, int], None],
        *,
        idle_timeout: float = 10.0,
        hold_timeout: float = 30.0,
        settle: float = SETTLE,
    ) -> None:
        self.max_in_flight = max_in_flight
        self.mode = Mode.NORMAL
        self.shares: list[RdyShare] = []  # in the order in which the connections came
        self.waiting = False  # a connection would get more if an answer or time made room
        self._send = send
        self._idle_timeout = idle_timeout
        self._hold_timeout = hold_timeout
        self._settle = settle

    # ---- events

    def add(self, share: RdyShare, now: float) -> None:
        self.shares.append(share)
        self.distribute(now)

    def retire(self, share: RdyShare, now: float) -> None:
        """Give this connection no more RDY. Its messages in flight still count."""
        share.max_rdy = 0
        self.distribute(now)

    def remove(self, share: RdyShare, now: float) -> None:
        """The connection is gone, and its messages in flight with it."""
        if share in self.shares:
            self.shares.remove(share)
            self.distribute(now)

    def change(self, max_in_flight: int, now: float) -> None:
        self.max_in_flight = max_in_flight
        self.distribute(now)

    def pause(self, now: float) -> None:
        self.mode = Mode.PAUSED
        self.waiting = False
        for share in self.shares:
            self._set(share, 0, now)

    def test(self, now: float) -> None:
        self.mode = Mode.TESTING
        self.distribute(now)

    def resume(self, now: float) -> None:
        self.mode = Mode.NORMAL
        self.distribute(now)

    def message(self, share: RdyShare, now: float) -> None:
        """Messages have come. A connection that was idle takes back the RDY that it had lent."""
        was_idle = now - share.last_message > self._idle_timeout
        share.last_message = now
        if was_idle and self.mode is Mode.NORMAL:
            self.distribute(now)

    def tick(self, now: float) -> None:
        """Call this every `rdy_redistribute_interval`: take RDY from connections that hold or waste it."""
        if self.mode is Mode.PAUSED or not self.shares:
            return
        if self._scarce() and len(self._serving()) > 1:
            for share in self.shares:
                if share.rdy and (self._is_idle(share, now) or now - share.last_rdy > self._hold_timeout):
                    self._set(share, 0, now)
        self.distribute(now)

    def next_wake(self, now: float) -> float | None:
        """When to call `distribute` again if nothing else happens."""
        times = [share.settled_at for share in self.shares if share.settled_at > now] if self.waiting else []
        return min(times, default=None)

    def is_starved(self) -> bool:
        """Whether some connection has nearly as many messages in flight as its RDY: no more come there."""
        return any(share.in_flight and share.in_flight >= int(0.85 * share.rdy) for share in self.shares)

    # ---- decisions

    def _scarce(self) -> bool:
        return self.mode is Mode.TESTING or len(self._serving()) > self.max_in_flight

    def _serving(self) -> list[RdyShare]:
        return [share for share in self.shares if share.max_rdy]

    def _is_idle(self, share: RdyShare, now: float) -> bool:
        return now - share.last_message > self._idle_timeout

    def distribute(self, now: float) -> None:
        """Send every RDY that differs from its target, as far as `max_in_flight` leaves room."""
        self.waiting = False
        if self.mode is Mode.PAUSED or not self.shares:
            return
        targets = self._tokens() if self._scarce() else self._even_shares(now)
        for share, target in targets.items():
            if target < share.rdy:
                self._set(share, target, now)
        total = sum(share.bound(now) for share in self.shares)
        growing = [share for share in targets if targets[share] > share.rdy]
        # A connection without RDY comes first; one that has some can wait.
        for share in sorted(growing, key=lambda share: share.rdy):
            others = total - share.bound(now)
            room = min(targets[share], self.max_in_flight - others)
            if room > share.rdy:
                self._set(share, room, now)
                total = others + share.bound(now)
            if room < targets[share]:
                self.waiting = True

    def _tokens(self) -> dict[RdyShare, int]:
        """RDY 1 for as many connections as allowed: those that have it, then those without it longest."""
        count = min(self.max_in_flight, 1 if self.mode is Mode.TESTING else len(self.shares))
        order = sorted(self._serving(), key=lambda share: (not share.rdy, share.last_rdy))
        targets = dict.fromkeys(self.shares, 0)
        targets.update((share, 1) for share in order[:count])
        return targets

    def _even_shares(self, now: float) -> dict[RdyShare, int]:
        idle = [share for share in self.shares if self._is_idle(share, now)]
        busy = [share for share in self.shares if share not in idle]
        if not busy or not idle:
            return _spread(self.max_in_flight, self.shares)
        targets = _spread(self.max_in_flight - len(idle), busy)
        # The idle ones keep 1 each, and what the `max_rdy` of the busy ones leaves.
        targets.update(_spread(self.max_in_flight - sum(targets.values()), idle))
        return targets

    def _set(self, share: RdyShare, rdy: int, now: float) -> None:
        if rdy == share.rdy:
            return
        if rdy < share.rdy:
            share.settling = share.bound(now)
            share.settled_at = now + self._settle
        if rdy:
            share.last_rdy = now
        share.rdy = rdy
        self._send(share, rdy)


def _spread(total: int, shares: Iterable[RdyShare]) -> dict[RdyShare, int]:
    """Even shares of the total. The first get the remainder, and none gets more than its `max_rdy`."""
    targets: dict[RdyShare, int] = {}
    rest = list(shares)
    while rest:
        part, remainder = divmod(total, len(rest))
        limited = [share for share in rest if share.max_rdy <= part]
        if not limited:
            targets.update((share, part + (place < remainder)) for place, share in enumerate(rest))
            break
        for share in limited:
            targets[share] = share.max_rdy
            total -= share.max_rdy
        rest = [share for share in rest if share not in limited]
    return targets
