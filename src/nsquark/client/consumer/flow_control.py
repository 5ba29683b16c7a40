"""How many messages a consumer asks its nsqds for: RDY and backoff, with their timers.

The decisions are made by `RdySharing` and `BackoffState`, which know no clock. This module calls them when
something has happened, or when a time has come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ..backoff import BackoffState, Signal, Step
from ..config import Config
from ..events import BackoffChanged, Event
from .rdy import RdyShare, RdySharing

logger = logging.getLogger(__name__)


class FlowControl:
    def __init__(
        self,
        name: str,
        config: Config,
        send_rdy: Callable[[RdyShare, int], None],
        emit: Callable[[Event], None],
    ) -> None:
        """`name` is `topic/channel`, for the log."""
        self.usual_max_in_flight = 1 if config.max_in_flight is None else config.max_in_flight
        self.backoff = BackoffState(config.backoff)
        self.sharing = RdySharing(
            self.usual_max_in_flight,
            send_rdy,
            idle_timeout=config.low_rdy_idle_timeout,
            hold_timeout=config.low_rdy_timeout,
        )
        self._may_grow = config.max_in_flight is None
        self._name = name
        self._emit = emit
        self._stopped = False
        self._interval = config.rdy_redistribute_interval
        self._loop = asyncio.get_running_loop()
        self._settle_timer: asyncio.TimerHandle | None = None
        self._pause_timer: asyncio.TimerHandle | None = None
        self._interval_timer = self._loop.call_later(self._interval, self._redistribute)

    def stop(self) -> None:
        """Send no more RDY."""
        self._stopped = True
        self.sharing.waiting = False
        for timer in (self._interval_timer, self._settle_timer, self._pause_timer):
            if timer is not None:
                timer.cancel()

    # ---- RDY

    def add(self, share: RdyShare) -> None:
        if not self._stopped:
            self.sharing.add(share, self._loop.time())
            self._wait_for_settling()

    def retire(self, share: RdyShare) -> None:
        """Give this connection no more RDY; its messages in flight still count."""
        self.sharing.retire(share, self._loop.time())
        self._wait_for_settling()

    def remove(self, share: RdyShare) -> None:
        self.sharing.remove(share, self._loop.time())
        self._wait_for_settling()

    def messages_received(self, share: RdyShare, now: float) -> None:
        self.sharing.message(share, now)
        if self.sharing.waiting:
            self._wait_for_settling()

    def distribute(self) -> None:
        self.sharing.distribute(self._loop.time())
        self._wait_for_settling()

    def change_max_in_flight(self, max_in_flight: int) -> None:
        if max_in_flight != self.sharing.max_in_flight:
            self.sharing.change(max_in_flight, self._loop.time())
            self._wait_for_settling()

    def make_room(self, workers: int) -> None:
        """Let as many messages be in flight as there are workers, unless the config says how many."""
        usual = self.usual_max_in_flight
        if workers <= usual:
            return
        if not self._may_grow:
            logger.warning(
                "%s: max_in_flight is %d, so no more than %d of %d workers have a message at a time",
                self._name,
                usual,
                usual,
                workers,
            )
            return
        self.usual_max_in_flight = workers
        if self.sharing.max_in_flight == usual:  # the caller has neither paused nor changed it
            self.change_max_in_flight(workers)

    def _wait_for_settling(self) -> None:
        """Distribute again when a lowered RDY has settled, if a connection waits for its share."""
        if self.sharing.waiting and self._settle_timer is None and not self._stopped:
            now = self._loop.time()
            when = self.sharing.next_wake(now)
            if when is not None:
                self._settle_timer = self._loop.call_later(when - now, self._settled)

    def _settled(self) -> None:
        self._settle_timer = None
        self.distribute()

    def _redistribute(self) -> None:
        self._interval_timer = self._loop.call_later(self._interval, self._redistribute)
        self.sharing.tick(self._loop.time())
        self._wait_for_settling()

    # ---- backoff

    def signal(self, signal: Signal) -> None:
        """Take an answer of a handler into account."""
        step = self.backoff.signal(signal)
        if step is Step.NOTHING or self._stopped:
            return
        now = self._loop.time()
        if step is Step.RESUME:
            logger.info("%s: no more backoff", self._name)
            self.sharing.resume(now)
            self._wait_for_settling()
            self._emit(BackoffChanged(0, 0.0))
        else:
            level, pause = self.backoff.level, self.backoff.pause
            logger.warning("%s: backing off for %.3f s, level %d", self._name, pause, level)
            self.sharing.pause(now)
            self._pause_timer = self._loop.call_later(pause, self._pause_over)
            self._emit(BackoffChanged(level, pause))

    def _pause_over(self) -> None:
        self.backoff.pause_over()
        self.sharing.test(self._loop.time())
        self._wait_for_settling()
