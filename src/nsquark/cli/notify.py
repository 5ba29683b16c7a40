"""What systemd hears of a daemon whose unit has `Type=notify`: it is ready, it lives, it stops.

systemd names a datagram socket in `NOTIFY_SOCKET`. Without it, all of this does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time


def notify(*lines: str) -> None:
    """Send assignments such as `READY=1`. It never waits, and a failure changes nothing."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # in Linux's namespace of sockets without files
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.sendto("\n".join(lines).encode(), address)


def ready(status: str = "serving") -> None:
    """The daemon serves. From now on the watchdog of the unit, if it has one, is told that it lives."""
    notify("READY=1", f"STATUS={status}")
    _keep_watchdog_quiet()


def reloading() -> None:
    """Settings are read again; `ready` ends that."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


def stopping(status: str = "stopping") -> None:
    notify("STOPPING=1", f"STATUS={status}")


_watched = False


def _keep_watchdog_quiet() -> None:
    """Send `WATCHDOG=1` twice in the time that `WatchdogSec=` allows, as long as the event loop turns."""
    global _watched
    interval = int(os.environ.get("WATCHDOG_USEC", "0") or 0) / 2_000_000
    if _watched or interval <= 0 or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    _watched = True
    loop = asyncio.get_running_loop()

    def beat() -> None:
        notify("WATCHDOG=1")
        loop.call_later(interval, beat)

    beat()
