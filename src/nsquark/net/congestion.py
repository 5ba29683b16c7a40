"""Connections within one machine: nothing is congested there, so that pacing them is nothing but cost.

Where the system's congestion control is BBR, the system delays every few segments with a timer. On loopback
the interrupts cost about as much as everything else that nsqd does for a /log/read. Reno, which every Linux
has and every process may choose, sends as fast as the other side reads.
"""

from __future__ import annotations

import contextlib
import os
import socket

_PACING = b"bbr"  # and its successors' names
_NAME = 16  # bytes of an algorithm's name in Linux


def do_not_pace(descriptor: int) -> None:
    """Have a connection to this very machine not be paced; any other stays as it is."""
    if not hasattr(socket, "TCP_CONGESTION"):
        return
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as sock:
        if sock.family not in (socket.AF_INET, socket.AF_INET6):
            return
        used = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME)
        if used.startswith(_PACING) and sock.getpeername()[0] == sock.getsockname()[0]:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
