"""What the `/metrics` of all daemons have in common: the collectors of prometheus-client.

prometheus-client is imported when a daemon is first scraped: it takes a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def daemon_registry(own: Callable[[], Iterator[Metric]]) -> CollectorRegistry:
    """The metrics of the process and of Python, and a daemon's `own`."""
    from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
    from prometheus_client.registry import Collector

    class OwnCollector(Collector):
        def collect(self) -> Iterator[Metric]:
            return own()

    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(OwnCollector())
    return registry
