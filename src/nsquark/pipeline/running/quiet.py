"""Leaving out what Spark's processes write to stderr and no user needs."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Final

# Lines that come at every start, whatever the log level is.
_NOISE: Final = (
    b"NOTE: Picked up JDK_JAVA_OPTIONS",
    b"Setting Spark log level to",
    b"Setting default log level to",
    b"To adjust logging level use",
    b"WARNING: Using incubator modules",
)
# The last line of the traceback of a worker whose Spark has ended, and the line between two tracebacks.
_GONE: Final = (b"BrokenPipeError", b"ConnectionResetError", b"EOFError")
_LINK: Final = b"During handling of the above exception"

# PySpark loggers of errors that are raised as well.
_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


def silence_loggers() -> None:
    """Silence the loggers of PySpark in this process. The code that catches their errors reports them."""
    from pyspark.logger import PySparkLogger

    for logger in (logging.getLogger("py4j"), *map(PySparkLogger.getLogger, _LOGGERS)):
        logger.setLevel(logging.CRITICAL + 1)


class StderrFilter:
    """A pipe in place of stderr, and a thread that passes its lines on without the noise."""

    def __init__(self) -> None:
        self._muted = False
        reading, self._writing = os.pipe()
        threading.Thread(
            target=self._pass_on, args=(reading, os.dup(2)), name="stderr filter", daemon=True
        ).start()

    @contextlib.contextmanager
    def in_place_of_stderr(self) -> Iterator[None]:
        """The processes that start within this block write to the pipe as long as they live."""
        kept = os.dup(2)
        os.dup2(self._writing, 2)
        os.close(self._writing)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)

    def mute(self) -> None:
        """Pass on nothing more. Spark's processes complain while they are stopped."""
        self._muted = True

    def _pass_on(self, reading: int, writing: int) -> None:
        with open(reading, "rb") as lines, open(writing, "wb", 0) as out:
            for line in without_noise(lines):
                if not self._muted:
                    with contextlib.suppress(OSError):  # stderr is closed
                        out.write(line)


def without_noise(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines without those of every start, and without tracebacks of workers whose Spark has ended."""
    traceback: list[bytes] = []
    dropped = False
    for line in lines:
        if traceback:
            traceback.append(line)
            if not line.startswith(b" "):  # the error, which ends the traceback
                dropped = line.startswith(_GONE)
                if not dropped:
                    yield from traceback
                traceback = []
        elif line.startswith(b"Traceback (most recent call last)"):
            traceback = [line]
        elif not line.startswith(_NOISE) and not (dropped and (not line.strip() or line.startswith(_LINK))):
            dropped = False
            yield line
    yield from traceback
