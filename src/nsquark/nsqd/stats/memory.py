"""Memory figures of Python and the C library, under the names that NSQ has for Go's."""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import cache

PAUSES = 256  # as many as Go's runtime remembers
LARGE_RESERVE = 64 << 20  # bytes


class GcPauses:
    """How long the cyclic garbage collector took, the last times it ran."""

    def __init__(self) -> None:
        self.newest: deque[int] = deque(maxlen=PAUSES)  # in ns
        self._began = 0

    def watch(self) -> None:
        """From now on; a collection calls us twice."""
        if self._called not in gc.callbacks:
            gc.callbacks.append(self._called)

    def _called(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter_ns()
        elif self._began:
            self.newest.append(time.perf_counter_ns() - self._began)

    def percentile(self, percent: int) -> int:
        """In µs, of the remembered ones; 0 if there are none."""
        if not self.newest:
            return 0
        ranked = sorted(self.newest)
        return ranked[max(0, -(-percent * len(ranked) // 100) - 1)] // 1000


GC_PAUSES = GcPauses()  # a process has one collector


def memory_stats() -> dict[str, int]:
    """NSQ's keys. Resident memory is in use; what the C library holds and has not given out is idle, and what
    the process once had and gave back is released. Python's collector counts objects, so when it runs next
    is not a number of bytes: 0."""
    resident, most = _resident_bytes()
    return {
        "heap_objects": sys.getallocatedblocks(),
        "heap_idle_bytes": _idle_bytes(),
        "heap_in_use_bytes": resident,
        "heap_released_bytes": max(0, most - resident),
        "gc_pause_usec_100": GC_PAUSES.percentile(100),
        "gc_pause_usec_99": GC_PAUSES.percentile(99),
        "gc_pause_usec_95": GC_PAUSES.percentile(95),
        "next_gc_bytes": 0,
        "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
    }


def _resident_bytes() -> tuple[int, int]:
    """(resident now, the most it ever was)"""
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with open("/proc/self/statm", "rb") as file:
            now = int(file.read().split()[1]) * resource.getpagesize()
    except OSError:  # not Linux: all we know is the most it ever was, in bytes on macOS
        return usage, usage
    return now, usage * 1024


def give_back_memory() -> None:
    """Have the C library give back to the system what it holds in reserve. May take a while: for a thread.

    What idle topics let go lies between objects that stay, where the C library keeps it otherwise.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


class Reserve:
    """Gives back to the system what the C library holds in reserve and has not needed for a while.

    Blocks of large bodies are kept for the next ones. After many such clients have gone, they lie between
    objects that stay, and the C library would keep them for good.
    """

    def __init__(self) -> None:
        self._before = 0  # the bytes in reserve at the last look
        self._resident = 0  # memory since it was given back: what is given back still counts as reserve

    def look(self) -> None:
        """Give back a large reserve that was there at the last look, too. For a thread, now and then."""
        resident, _ = _resident_bytes()
        reserve = _idle_bytes()
        self._resident = min(self._resident, resident)
        if min(reserve, self._before) >= LARGE_RESERVE and resident - self._resident >= LARGE_RESERVE:
            give_back_memory()
            self._resident, _ = _resident_bytes()
            reserve = _idle_bytes()
        self._before = reserve


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    import ctypes

    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # not glibc
        return None
    return trim


def _idle_bytes() -> int:
    idle = _mallinfo()
    return idle() if idle is not None else 0


@cache
def _mallinfo() -> Callable[[], int] | None:
    """A function that asks the C library how much it holds in reserve; None where there is none."""
    import ctypes

    class Mallinfo2(ctypes.Structure):
        _fields_ = [
            (name, ctypes.c_size_t)
            for name in (
                "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
                "keepcost",
            )
        ]  # fmt: skip

    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    mallinfo2.restype = Mallinfo2
    return lambda: int(mallinfo2().fordblks)
