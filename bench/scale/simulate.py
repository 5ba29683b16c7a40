"""A thousand nodes on paper: what each has to do, what nsqlookupd is asked, how RDY is shared, a rack lost.

    python bench/scale/simulate.py                 the figures of docs/scale.md, in about a minute
    python bench/scale/simulate.py --nodes 200 --rate 20e6

RDY is shared by the client library's own code. The load of a node comes from figures measured on one.
"""

import argparse
import json
import random
from dataclasses import asdict, replace
from typing import Any

from layout import Cluster, bounds, load
from lookups import lookups
from racks import lose_rack, neighbours, place
from sharing import share


def simulate(cluster: Cluster, *, seconds: float, seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    per_channel = cluster.rate / cluster.topics / cluster.consumers_per_channel  # a consumer's part
    room = max(1, round(per_channel * 0.1 * 2))  # twice what is at work at a time, at 0.1 s a message
    few = max(1, cluster.nodes_per_topic // 4)
    rack = max(1, cluster.nodes_per_topic // cluster.racks)
    return {
        "cluster": asdict(cluster),
        "load": asdict(load(cluster)),
        "bounds": bounds(cluster),
        "all topics everywhere": bounds(replace(cluster, nodes_per_topic=cluster.nodes)),
        "lookups": asdict(lookups(cluster.consumers, round(seconds) * 3, seed)),
        "rdy": {
            "even": asdict(_share(cluster, room, seconds, rate=room * 5.0)),
            "skewed": asdict(_share(cluster, room, seconds, rate=room * 5.0, skew=1.0)),
            "overloaded": asdict(_share(cluster, room, seconds, rate=room * 20.0, skew=1.0)),
            "scarce": asdict(_share(cluster, few, seconds, rate=few * 2.0)),
            "rack lost": asdict(_share(cluster, room, seconds, rate=room * 5.0, lose=rack)),
        },
        "racks": {
            "side by side": asdict(lose_rack(cluster, neighbours(cluster, chance))),
            "anywhere": asdict(lose_rack(cluster, place(cluster, spread=False, chance=chance))),
            "spread over racks": asdict(lose_rack(cluster, place(cluster, spread=True, chance=chance))),
        },
    }


def _share(cluster: Cluster, max_in_flight: int, seconds: float, **more: Any) -> Any:
    return share(cluster.nodes_per_topic, max_in_flight, seconds=seconds, **more)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    defaults = Cluster()
    parser.add_argument("--nodes", type=int, default=defaults.nodes)
    parser.add_argument("--racks", type=int, default=defaults.racks)
    parser.add_argument("--rate", type=float, default=defaults.rate, help="messages a second, all of them")
    parser.add_argument("--topics", type=int, default=defaults.topics)
    parser.add_argument("--nodes-per-topic", type=int, default=defaults.nodes_per_topic)
    parser.add_argument("--channels", type=int, default=defaults.channels)
    parser.add_argument("--consumers-per-channel", type=int, default=defaults.consumers_per_channel)
    parser.add_argument("--seconds", type=float, default=120.0, help="of simulated time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--smoke", action="store_true", help="a small cluster for a moment")
    given = parser.parse_args()
    if given.smoke:
        given.nodes, given.racks, given.topics, given.rate, given.seconds = 40, 4, 50, 4e6, 30.0
        given.nodes_per_topic = 8
    if not 0 < given.nodes_per_topic <= given.nodes or not 0 < given.racks <= given.nodes:
        parser.error("--nodes-per-topic and --racks must be between 1 and --nodes")
    cluster = replace(
        defaults,
        nodes=given.nodes,
        racks=given.racks,
        rate=given.rate,
        topics=given.topics,
        nodes_per_topic=given.nodes_per_topic,
        channels=given.channels,
        consumers_per_channel=given.consumers_per_channel,
    )
    figures = simulate(cluster, seconds=given.seconds, seed=given.seed)
    for title, values in figures.items():
        print(f"\n{title}")
        for name, value in values.items():
            print(f"  {name:<40}{_shown(value)}")
    if given.json:
        with open(given.json, "w") as file:
            json.dump(figures, file, indent=2)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    return (
        f"{value:,.3g}"
        if isinstance(value, float) and abs(value) < 1000
        else f"{value:,.0f}"
        if value is not None
        else "-"
    )


if __name__ == "__main__":
    main()
