"""Starting the JVM of a command so that signals for the command stay with the command.

systemd and `timeout` send SIGTERM to all processes of a command at once. A JVM that gets the signal ends at
once, and the command cannot stop its query in order any more. PySpark protects the JVM from SIGINT, and not
from SIGTERM. The JVM needs no signal to end: it notices when the command has ended.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def deaf_to_sigterm() -> Iterator[None]:
    """A JVM that PySpark starts within this block ignores SIGTERM, and so do the processes that it starts.

    HotSpot leaves a signal alone that is ignored when it starts. PySpark offers no argument for that, so its
    `Popen` is replaced for the time of the block.
    """
    from pyspark import java_gateway

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        options["preexec_fn"] = _ignoring_sigterm(options.get("preexec_fn"))
        return subprocess.Popen(command, **options)

    java_gateway.Popen = start  # type: ignore[attr-defined,assignment]
    try:
        yield
    finally:
        java_gateway.Popen = subprocess.Popen  # type: ignore[attr-defined]


def _ignoring_sigterm(before: Callable[[], None] | None) -> Callable[[], None]:
    def prepare() -> None:  # runs in the child, between fork and exec
        if before is not None:
            before()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    return prepare
