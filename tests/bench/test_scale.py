"""The simulation of a large cluster: its parts by themselves, and all of it for a moment."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SCALE = Path(__file__).parents[2] / "bench" / "scale"


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Its modules import each other as scripts do, from their folder."""
    monkeypatch.syspath_prepend(str(SCALE))
    yield
    for name in ("layout", "lookups", "racks", "sharing"):
        sys.modules.pop(name, None)


def test_it_runs_and_writes_its_figures(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, str(SCALE / "simulate.py"), "--smoke", "--json", str(result)],
        capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(result.read_text())
    assert figures["rdy"]["even"]["used"] > 0.9
    assert figures["racks"]["spread over racks"]["topics_without_node"] == 0


def test_rdy_is_shared_by_the_clients_own_rule_and_never_exceeds_max_in_flight() -> None:
    from sharing import share

    for more in ({"skew": 0.0}, {"skew": 1.0}, {"skew": 0.0, "lose": 3}):
        result = share(8, 40, rate=300.0, seconds=40.0, **more)
        assert 0 < result.highest <= 40
        assert result.used > 0.5
    assert result.steady_again is not None


def test_with_less_rdy_than_nsqds_every_nsqd_has_its_turn() -> None:
    from sharing import share

    scarce = share(8, 2, rate=4.0, seconds=120.0)
    assert scarce.highest <= 2
    assert share(8, 8, rate=4.0, seconds=120.0).longest_wait < scarce.longest_wait


def test_a_rack_takes_no_topic_with_it_if_topics_are_spread() -> None:
    import random

    from layout import Cluster
    from racks import lose_rack, neighbours, place

    cluster = Cluster(nodes=40, racks=4, topics=100, nodes_per_topic=4)
    spread = lose_rack(cluster, place(cluster, spread=True, chance=random.Random(1)))
    beside = lose_rack(cluster, neighbours(cluster, random.Random(1)))
    assert spread.topics_without_node == 0 < beside.topics_without_node
    assert spread.fullest_after > spread.fullest_before
    assert spread.waiting == pytest.approx(0.25)


def test_polls_spread_out_after_all_consumers_started_at_once() -> None:
    from lookups import lookups

    result = lookups(6000, 600)
    assert result.first_second == 6000
    assert result.mean == 100
    assert result.worst_second_later < 6000


def test_the_bounds_follow_from_the_load() -> None:
    from dataclasses import replace

    from layout import Cluster, bounds, load

    cluster = Cluster()
    assert load(cluster).node_rate == pytest.approx(100_000)
    twice = bounds(replace(cluster, rate=cluster.rate * 2))
    assert twice["nsqd's processor"] == pytest.approx(bounds(cluster)["nsqd's processor"] / 2)
