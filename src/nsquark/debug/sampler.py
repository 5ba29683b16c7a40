"""Where the time goes: threads that look at the stacks of the others, now and then.

A `CpuSampler` weighs what it sees with the processor time that the thread used since the last look, so a
loop that waits for its sockets weighs nothing. The main thread is looked at by a signal, where it is: another
thread would only see it where it lets go of the interpreter's lock. A `BlockWatcher` looks only while the
event loop does not come round. A look takes some microseconds.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from types import CodeType, FrameType

from .profile import Place, Profile, Stack

PERIOD = 0.01
DEEPEST = 128


def stack_of(frame: FrameType | None) -> Stack:
    """From the innermost out; of a very deep one, the inner part."""
    places: list[Place] = []
    while frame is not None and len(places) < DEEPEST:
        code = frame.f_code
        places.append(Place(_name(code), code.co_filename, code.co_firstlineno, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(places)


def _name(code: CodeType) -> str:
    return code.co_qualname


def thread_names() -> dict[int, str]:
    return {thread.ident: thread.name for thread in threading.enumerate() if thread.ident is not None}


class CpuSampler:
    """Profiles all threads but its own, until `seconds` have passed or it is stopped.

    `begin` and `end` are for the main thread; where they are not called, it is looked at like the others.
    """

    def __init__(self, seconds: float) -> None:
        self.profile = Profile([("samples", "count"), ("cpu", "nanoseconds")], round(PERIOD * 1e9))
        self._seconds = seconds
        self._stop = threading.Event()
        self._used: dict[int, int] = {}  # processor time by thread, when it was last looked at
        self._main = 0  # the thread that signals look at
        self._handler: object = None  # of the signal, before

    def stop(self) -> None:
        self._stop.set()

    def begin(self) -> None:
        self._main = threading.get_ident()
        self._used[self._main] = time.thread_time_ns()
        self._handler = signal.signal(signal.SIGPROF, self._signalled)
        signal.setitimer(signal.ITIMER_PROF, PERIOD, PERIOD)

    def end(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        # Not its default, which is death, for a signal that is on its way.
        signal.signal(signal.SIGPROF, self._handler if callable(self._handler) else signal.SIG_IGN)

    def _signalled(self, _signal: int, frame: FrameType | None) -> None:
        used = time.thread_time_ns()
        spent, self._used[self._main] = used - self._used[self._main], used
        self.profile.add("MainThread", stack_of(frame), 1, spent)

    def run(self) -> None:
        """In a thread of its own."""
        begin = time.monotonic()
        self._look(count=False)
        while not self._stop.wait(min(PERIOD, max(0.0, begin + self._seconds - time.monotonic()))):
            self._look()
            if time.monotonic() - begin >= self._seconds:
                break
        self.profile.duration_ns = round((time.monotonic() - begin) * 1e9)

    def _look(self, count: bool = True) -> None:
        own = threading.get_ident()
        names = thread_names()
        # No thread can end meanwhile: that takes the interpreter's lock, which is ours until we call
        # something that gives it away, and none of these does.
        for ident, frame in sys._current_frames().items():
            if ident not in (own, self._main):
                used = _cpu_time(ident)
                spent, self._used[ident] = used - self._used.get(ident, used), used
                if spent > 0 and count:
                    self.profile.add(names.get(ident, str(ident)), stack_of(frame), 1, spent)


def _cpu_time(ident: int) -> int:
    """The processor time a thread has used, in ns; where the system does not tell, the time that passed."""
    if hasattr(time, "pthread_getcpuclockid"):
        return time.clock_gettime_ns(time.pthread_getcpuclockid(ident))
    return time.monotonic_ns()


class BlockWatcher:
    """Profiles what holds up the event loop: looks at it every `period` seconds while it does not turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, period: float) -> None:
        self.profile = Profile([("contentions", "count"), ("delay", "nanoseconds")], round(period * 1e9))
        self._loop = loop
        self._period = period
        self._ident = threading.get_ident()
        self._stop = threading.Event()
        self._turned = time.monotonic()
        self._handle = loop.call_later(period, self._turn)
        threading.Thread(target=self._run, name="block watcher", daemon=True).start()

    def stop(self) -> None:
        """Called on the loop."""
        self._stop.set()
        self._handle.cancel()

    def _turn(self) -> None:
        self._turned = time.monotonic()
        self.profile.duration_ns = time.time_ns() - self.profile.began_ns
        self._handle = self._loop.call_later(self._period, self._turn)

    def _run(self) -> None:
        looked = time.monotonic()
        while not self._stop.wait(self._period):
            now = time.monotonic()
            # It is due to turn once a period, and waits for another thread at times.
            if now - self._turned > 3 * self._period:
                frame = sys._current_frames().get(self._ident)
                self.profile.add("", stack_of(frame), 1, round((now - max(looked, self._turned)) * 1e9))
            looked = now
