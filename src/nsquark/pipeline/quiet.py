"""Spark's processes write to our stderr, and some of it is of no use to anybody: that is left out."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Final

# What is said at every start, whatever the log level.
_NOISE: Final = (
    b"NOTE: Picked up JDK_JAVA_OPTIONS",
    b"Setting Spark log level to",
    b"Setting default log level to",
    b"To adjust logging level use",
    b"WARNING: Using incubator modules",
)
# How the traceback of a worker ends whose Spark has gone, and what stands between two of them.
_GONE: Final = (b"BrokenPipeError", b"ConnectionResetError", b"EOFError")
_LINK: Final = b"During handling of the above exception"


# They log errors that are raised as well.
_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


def silence_loggers() -> None:
    """Of PySpark, in this process. Whoever gets their errors tells of them."""
    from pyspark.logger import PySparkLogger

    for logger in (logging.getLogger("py4j"), *map(PySparkLogger.getLogger, _LOGGERS)):
        logger.setLevel(logging.CRITICAL + 1)


class Filter:
    """A pipe, and a thread that passes on what is worth it."""

    def __init__(self) -> None:
        self._muted = False
        reading, self._writing = os.pipe()
        threading.Thread(
            target=self._pass_on, args=(reading, os.dup(2)), name="stderr filter", daemon=True
        ).start()

    @contextlib.contextmanager
    def in_place_of_stderr(self) -> Iterator[None]:
        """For the processes that are started meanwhile, as long as they live."""
        kept = os.dup(2)
        os.dup2(self._writing, 2)
        os.close(self._writing)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)

    def mute(self) -> None:
        """From here on nothing passes: everything is about to be stopped, and complains about it."""
        self._muted = True

    def _pass_on(self, reading: int, writing: int) -> None:
        with open(reading, "rb") as lines, open(writing, "wb", 0) as out:
            for line in worth_it(lines):
                if not self._muted:
                    with contextlib.suppress(OSError):  # nobody reads it
                        out.write(line)


def worth_it(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Without what is said at every start, and without the tracebacks of workers whose Spark has gone."""
    traceback: list[bytes] = []
    dropped = False
    for line in lines:
        if traceback:
            traceback.append(line)
            if not line.startswith(b" "):  # the error, at its end
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
