"""What is measured, in the order of the table. Targets are against Go's nsqd, all in its memory."""

import latency
import layers
import memory
import publishing
import storage
import storms
import topics
from measuring import SMOKE, Effort, Measure, Workload

__all__ = ["SMOKE", "WORKLOADS", "Effort", "Measure", "Workload"]

WORKLOADS = [
    *publishing.WORKLOADS,
    *topics.WORKLOADS,
    *storms.WORKLOADS,
    *layers.WORKLOADS,
    *latency.WORKLOADS,
    *storage.WORKLOADS,
    *memory.WORKLOADS,
]
