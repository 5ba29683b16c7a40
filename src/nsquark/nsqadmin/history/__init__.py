"""What the cluster did in the last half hour: rates, depths and latencies, in bounded memory."""

from nsquark.nsqadmin.history.history import Chart, History
from nsquark.nsqadmin.history.reading import CLUSTER, Key, Observation, Reading
from nsquark.nsqadmin.history.sampler import Sampler

__all__ = ["CLUSTER", "Chart", "History", "Key", "Observation", "Reading", "Sampler"]
