"""What the cluster did in the last half hour: rates, depths and latencies, in bounded memory."""

from .history import Chart, History
from .reading import CLUSTER, Key, Observation, Reading
from .sampler import Sampler

__all__ = ["CLUSTER", "Chart", "History", "Key", "Observation", "Reading", "Sampler"]
