"""NSQ's columns, byte for byte."""

from __future__ import annotations

from .counters import Counters, rates

HEADERS = (
    "------rate------+----------------depth----------------+--------------metadata---------------\n"
    "ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients\n"
)
HEADERS_EVERY = 25  # rounds


def line(old: Counters, new: Counters, interval: float) -> str:
    """One report. Rates are by the interval asked for, however long the round has taken."""
    ingress, egress = rates(old, new, interval)
    return (
        f"{ingress:7d} {egress:7d} |"
        f" {new.depth:7d} {new.memory_depth:7d} {new.backend_depth:7d} {new.in_flight:5d} {new.deferred:5d} |"
        f" {new.requeued:7d} {new.timed_out:7d} {new.messages:12d} {new.clients:7d}\n"
    )
