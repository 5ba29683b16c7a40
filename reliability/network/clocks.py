"""The clock of a running nsqd is set forward and back: timeouts do not mind, due times follow the clock."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path

from reliability.outcome import Outcome
from tests.daemon import Client, Nsqd
from tests.settable_clock import SettableClock

from .loopback import Size

HOUR, YEAR = 3600, 366 * 86400
MSG_TIMEOUT = 2.0
SLACK = 2.5  # seconds: due times by a clock that can be set are looked at every second


def clock_steps(_size: Size) -> Outcome:
    outcome = Outcome("clock steps")
    if shutil.which("cc") is None:
        outcome.skipped = "there is no C compiler"
        return outcome
    with tempfile.TemporaryDirectory() as folder:
        clock = SettableClock(Path(folder))
        with clock.used():
            nsqd = Nsqd(Path(folder) / "data", f"--msg-timeout={MSG_TIMEOUT}s").start()
        with nsqd:
            asyncio.run(_steps(outcome, nsqd, clock))
            outcome.demand(
                not [line for line in nsqd.lines if "Traceback" in line], "nsqd logged a traceback"
            )
    return outcome


async def _steps(outcome: Outcome, nsqd: Nsqd, clock: SettableClock) -> None:
    async with await nsqd.connect() as publisher, await nsqd.connect() as consumer:
        await consumer.sub("t", "c", 1)
        positions = []
        for step in (HOUR, -HOUR, YEAR, -YEAR, 0):
            await _timeout(outcome, publisher, consumer, clock, step)
            positions.append(await _deferred(outcome, publisher, consumer, step))
        outcome.demand(positions == sorted(positions), "ids went back with the clock")
        await _due_times(outcome, publisher, consumer, clock)
    outcome.figures["steps"] = "±1 h, ±1 year"


async def _timeout(
    outcome: Outcome, publisher: Client, consumer: Client, clock: SettableClock, step: int
) -> None:
    """A message in flight while the clock is set: its timeout passes neither sooner nor later."""
    await publisher.pub("t", b"in flight")
    await consumer.message()
    begin = time.monotonic()
    clock.set(step)
    again = await consumer.message()
    took = time.monotonic() - begin
    consumer.fin(again)
    outcome.demand(again.attempts == 2, f"{again.attempts} attempts after one timeout")
    outcome.demand(
        MSG_TIMEOUT - 0.3 <= took <= MSG_TIMEOUT + SLACK,
        f"the clock was set by {step} s, and a timeout of {MSG_TIMEOUT} s took {took:.2f} s",
    )


async def _deferred(outcome: Outcome, publisher: Client, consumer: Client, step: int) -> int:
    """A deferral under a clock that is wrong and runs on: as long as it was asked for. The message's id."""
    begin = time.monotonic()
    await publisher.dpub("t", 500, b"deferred")
    message = await consumer.message()
    took = time.monotonic() - begin
    consumer.fin(message)
    outcome.demand(0.49 <= took <= 0.5 + SLACK, f"{step} s off, a deferral of 0.5 s took {took:.2f} s")
    return int(message.id, 16)


async def _due_times(outcome: Outcome, publisher: Client, consumer: Client, clock: SettableClock) -> None:
    """Due times are of the clock that can be set: they survive restarts, and so they follow it."""
    await publisher.dpub("t", 600_000, b"in ten minutes")
    clock.set(HOUR)
    begin = time.monotonic()
    message = await consumer.message()
    took = time.monotonic() - begin
    consumer.fin(message)
    outcome.figures["due after a step forward"] = f"{took:.1f} s"
    outcome.demand(took <= SLACK, f"due long since, it took {took:.2f} s")
    await publisher.dpub("t", 500, b"soon")
    clock.set(-HOUR)
    try:
        await consumer.message(within=1.5)
        outcome.faults.append("a deferred message came before its time")
    except TimeoutError:
        pass
    clock.set(HOUR)
    begin = time.monotonic()
    consumer.fin(await consumer.message())
    outcome.figures["due after a step back and forth"] = f"{time.monotonic() - begin:.1f} s"
    await consumer.caught_up()
