"""nsqlookupd's `/metrics`: what Prometheus scrapes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from time import monotonic_ns
from typing import TYPE_CHECKING

from nsquark.debug.prometheus import CONTENT_TYPE, daemon_registry
from nsquark.http import Request, Response
from nsquark.kernel import KERNEL
from nsquark.version import NSQ_VERSION, VERSION

from .directory import Directory

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric


class Metrics:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._start_time = time.time()
        self._registry: CollectorRegistry | None = None

    async def get(self, _request: Request) -> Response:
        # Counted on the event loop, written in a thread: the import of prometheus-client takes a while.
        counts = self._counts()
        body = await asyncio.get_running_loop().run_in_executor(None, self._write, counts)
        return Response(200, body, (("Content-Type", CONTENT_TYPE),))

    def _counts(self) -> dict[str, tuple[str, float]]:
        directory, now = self._directory, monotonic_ns()
        registrations, visible = directory.registrations, directory.visible
        active = sum(visible.active(peer, now) for peer in registrations.peers)
        return {
            "start_time_seconds": ("When nsqlookupd was started, since the epoch.", self._start_time),
            "connections": ("TCP clients.", len(directory.connections)),
            "producers": ("nsqds that are registered and were heard of lately.", active),
            "silent_producers": (
                "nsqds that are registered and were not heard of for --inactive-producer-timeout.",
                len(registrations.peers) - active,
            ),
            "topics": ("Topics.", len(registrations.topics)),
            "channels": ("Channels.", sum(map(len, registrations.channels.values()))),
        }

    def _write(self, counts: dict[str, tuple[str, float]]) -> bytes:
        from prometheus_client import generate_latest

        self._latest = counts
        if self._registry is None:
            self._registry = daemon_registry(self._own)
        return generate_latest(self._registry)

    def _own(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

        versions = {"version": NSQ_VERSION, "nsquark_version": VERSION, "kernel": KERNEL}
        yield InfoMetricFamily("nsqlookupd", "What runs here.", value=versions)
        for name, (told, value) in self._latest.items():
            yield GaugeMetricFamily(f"nsqlookupd_{name}", told, value=value)
