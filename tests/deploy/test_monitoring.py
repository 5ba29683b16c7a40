"""The alerts and the dashboard: every metric and label in them is in `/metrics` of running daemons."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.daemon import Nsqd, Nsqlookupd, until
from tests.replica_group import needs_etcd, replica_group

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "nsquark.rules.yaml"
DASHBOARD = DEPLOY / "grafana" / "nsquark.json"

_METRIC = re.compile(r"\b(?:nsqd|nsqlookupd|process|python)_[a-z0-9_]+|\bup\b")
_LABELS = re.compile(r"\bby \(([^)]*)\)")
_MATCHER = re.compile(r"(\w+)=~?\"")
# Prometheus itself makes these.
OF_GROUPS = "nsqd_replica_"
OWN_METRICS, OWN_LABELS = {"up"}, {"instance", "job"}


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def dashboard_expressions() -> Iterator[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["definition"]
    for annotation in dashboard["annotations"]["list"]:
        yield annotation["expr"]


def expressions() -> list[str]:
    return [*(rule["expr"] for rule in rules()), *dashboard_expressions()]


async def told(*bodies: bytes) -> dict[str, set[str]]:
    """The names of the samples, each with its labels."""
    found: dict[str, set[str]] = defaultdict(set)
    for body in bodies:
        for family in text_string_to_metric_families(body.decode()):
            for sample in family.samples:
                found[sample.name] |= set(sample.labels)
    return found


@pytest.fixture
async def metrics(tmp_path: Path, nsqlookupd: Nsqlookupd) -> dict[str, set[str]]:
    """What a node that has done some of everything tells."""
    with Nsqd(tmp_path / "data").start("--e2e-processing-latency-percentile=0.99", "--sync-every=1") as nsqd:
        client = await nsqd.connect()
        await client.pub("t", b"x")
        await client.sub("t", "ch", rdy=1)
        client.fin(await client.message())
        await client.caught_up()
        report = b'{"query_id":"q","state":"running","lag_messages":1,"lag_seconds":2,"batch_ms":3}'
        await nsqd.post("/channel/report?topic=t&channel=ch", report)

        async def complete() -> bool:
            _, body = await nsqd.http("GET", "/metrics")
            return b"nsqd_fsync_seconds_bucket" in body and b"nsqd_topic_delivery_seconds_bucket" in body

        await until(complete)
        _, nsqds = await nsqd.http("GET", "/metrics")
        _, lookupds = await nsqlookupd.http("GET", "/metrics")
        return await told(nsqds, lookupds)


async def test_every_metric_and_label_is_told(metrics: dict[str, set[str]]) -> None:
    check([each for each in expressions() if OF_GROUPS not in each], metrics)


@needs_etcd
async def test_every_metric_of_a_replica_group_is_told(tmp_path: Path) -> None:
    with replica_group(tmp_path) as group:
        a, b = await asyncio.to_thread(group.pair)
        bodies = [member.ask("GET", "/metrics")[1] for member in (a, b)]
    found = [each for each in expressions() if OF_GROUPS in each]
    assert len(found) >= 7
    check(found, await told(*bodies))


def check(expressions: list[str], metrics: dict[str, set[str]]) -> None:
    labels = set().union(*metrics.values()) | OWN_LABELS
    for expression in expressions:
        # What follows a quote is a label's value.
        bare = re.sub(r'"[^"]*"', '""', expression)
        names = set(_METRIC.findall(bare)) - OWN_METRICS
        assert names <= metrics.keys(), expression
        used = {each.strip() for group in _LABELS.findall(bare) for each in group.split(",")}
        used |= set(_MATCHER.findall(bare))
        assert used <= labels, expression


def test_every_expression_has_a_metric() -> None:
    assert len(expressions()) > 50
    assert all(_METRIC.search(expression) for expression in expressions())


def test_an_alert_says_what_to_do_about_it() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", str(RULES)], check=True, capture_output=True)
