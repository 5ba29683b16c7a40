"""The clock of a process, set by a test while the process runs."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Stands before the C library's clock_gettime: what is in the file is added to the time since the epoch.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static volatile long *offset;

__attribute__((constructor)) static void start(void) {
    int fd = open(getenv("CLOCK_OFFSET"), O_RDONLY);
    offset = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
}

int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(which, now);
    if (which == CLOCK_REALTIME && offset) now->tv_sec += *offset;
    return result;
}
"""


class SettableClock:
    """`with clock.used():` around the start of a process gives it this clock; `set` moves it at any time."""

    def __init__(self, folder: Path) -> None:
        source, library, offset = folder / "clock.c", folder / "clock.so", folder / "offset"
        source.write_text(SHIM)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        offset.write_bytes(bytes(mmap.PAGESIZE))
        with open(offset, "r+b") as file:
            self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self._environment = {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(offset)}

    def set(self, seconds: int) -> None:
        """So many seconds ahead of the real time, or behind it."""
        self._page[:8] = struct.pack("=q", seconds)

    @contextmanager
    def used(self) -> Iterator[None]:
        before = dict(os.environ)
        os.environ.update(self._environment)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
