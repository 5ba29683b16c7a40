"""What the cluster is, asked afresh each time: nodes, and topics and channels merged over them; actions."""

from .actions import Actions, Outcome, Target
from .cluster import Cluster, NodeNotFound
from .inspection import Inspection, explain, failed_at
from .latency import Latency, Percentile
from .node_stats import CounterEntry, NodeStats
from .nodes import Node, NodeTopic
from .overview import ChannelTotals, NodeTotals, Overview, SeenClient, TopicTotals
from .pipelines import Pipeline, Pipelines, ReadChannel, Report
from .replica import Replica, ReplicaMember
from .stats import ChannelStats, ClientStats, TopicStats

__all__ = [
    "Actions",
    "ChannelStats",
    "ChannelTotals",
    "ClientStats",
    "Cluster",
    "CounterEntry",
    "Inspection",
    "Latency",
    "Node",
    "NodeNotFound",
    "NodeStats",
    "NodeTopic",
    "NodeTotals",
    "Outcome",
    "Overview",
    "Percentile",
    "Pipeline",
    "Pipelines",
    "ReadChannel",
    "Replica",
    "ReplicaMember",
    "Report",
    "SeenClient",
    "Target",
    "TopicStats",
    "TopicTotals",
    "explain",
    "failed_at",
]
