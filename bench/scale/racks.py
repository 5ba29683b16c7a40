"""What losing a rack does: which topics have nsqds left, and how much more those have to take."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from layout import Cluster


@dataclass(frozen=True, slots=True)
class Loss:
    """Loads are shares of the mean load of a node before the loss."""

    topics_without_node: int
    fullest_before: float
    fullest_after: float
    waiting: float  # share of the cluster's messages per second whose log stands still until the rack is back


def place(cluster: Cluster, *, spread: bool, chance: random.Random) -> list[list[int]]:
    """The nodes of each topic: anywhere, or `spread` over as many racks as there are."""
    per_rack = cluster.nodes // cluster.racks
    placed = []
    for _ in range(cluster.topics):
        if spread:
            racks = chance.sample(range(cluster.racks), cluster.racks)
            chosen = [
                racks[number % cluster.racks] * per_rack + chance.randrange(per_rack)
                for number in range(cluster.nodes_per_topic)
            ]
        else:
            chosen = chance.sample(range(cluster.nodes), cluster.nodes_per_topic)
        placed.append(chosen)
    return placed


def neighbours(cluster: Cluster, chance: random.Random) -> list[list[int]]:
    """As it grows by hand: the nodes of a topic stand side by side."""
    return [
        [(first + number) % cluster.nodes for number in range(cluster.nodes_per_topic)]
        for first in (chance.randrange(cluster.nodes) for _ in range(cluster.topics))
    ]


def lose_rack(cluster: Cluster, placed: list[list[int]], *, skew: float = 0.7) -> Loss:
    """Lose each rack in turn; the worst of them all. Topics have Zipf's rates."""
    weights = [1 / (number + 1) ** skew for number in range(cluster.topics)]
    whole = sum(weights)
    rates = [weight / whole for weight in weights]
    per_rack = cluster.nodes // cluster.racks
    before = _loads(cluster, placed, rates, ())
    worst = Loss(0, max(before), max(before), 0.0)
    for rack in range(cluster.racks):
        gone = range(rack * per_rack, (rack + 1) * per_rack)
        after = _loads(cluster, placed, rates, gone)
        without = sum(all(node in gone for node in nodes) for nodes in placed)
        waiting = sum(
            rate * sum(node in gone for node in nodes) / len(nodes)
            for rate, nodes in zip(rates, placed, strict=True)
        )
        worst = Loss(
            max(worst.topics_without_node, without),
            worst.fullest_before,
            max(worst.fullest_after, max(after)),
            max(worst.waiting, waiting),
        )
    return worst


def _loads(cluster: Cluster, placed: list[list[int]], rates: list[float], gone: Iterable[int]) -> list[float]:
    """Each node's load; the producers of a topic go to those of its nodes that are there."""
    lost = set(gone)
    loads = [0.0] * cluster.nodes
    for rate, nodes in zip(rates, placed, strict=True):
        left = [node for node in nodes if node not in lost]
        for node in left:
            loads[node] += rate / len(left) * cluster.nodes
    return loads
