"""`/metrics`: what Prometheus's own parser makes of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from nsquark.nsqd.stats import metrics
from tests.daemon import until
from tests.nsqd.api import Api, running


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running(tmp_path, e2e_processing_latency_percentile=[0.99]) as api:
        yield api


async def scrape(api: Api) -> dict[str, Metric]:
    answer = await api.get("/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = list(text_string_to_metric_families(answer.body.decode()))
    assert len({family.name for family in families}) == len(families)
    return {family.name: family for family in families}


def values(family: Metric, suffix: str = "") -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for sample in family.samples
        if sample.name == family.name + suffix
    }


async def test_topics_and_channels(api: Api) -> None:
    await api.done("/mpub?topic=a", b"one\nthree")
    await api.done("/topic/create?topic=b.c%23ephemeral")
    client = await api.client()
    await client.sub("a", "x", rdy=1)
    message = await client.message()
    client.req(message)
    client.fin(await client.message())
    await client.message()
    await api.done("/channel/create?topic=a&channel=y%23ephemeral")
    await api.done("/channel/pause?topic=a&channel=y%23ephemeral")
    told = await scrape(api)
    assert values(told["nsqd_topic_messages"], "_total") == {("a",): 2, ("b.c#ephemeral",): 0}
    assert values(told["nsqd_topic_message_bytes"], "_total")["a",] == 8
    assert values(told["nsqd_topic_depth"]) == {("a",): 0, ("b.c#ephemeral",): 0}
    assert values(told["nsqd_topic_log_bytes"])["a",] == api.broker.topics["a"].log.size > 8
    assert values(told["nsqd_topic_log_messages"])["a",] == 2
    assert values(told["nsqd_channel_messages"], "_total") == {("a", "x"): 2, ("a", "y#ephemeral"): 0}
    assert values(told["nsqd_channel_requeued"], "_total")["a", "x"] == 1
    assert values(told["nsqd_channel_held_messages"]) == {("a", "x"): 2, ("a", "y#ephemeral"): 0}
    assert values(told["nsqd_channel_held_bytes"])["a", "x"] == api.broker.topics["a"].log.size
    assert values(told["nsqd_channel_held_segments"])["a", "x"] == 1
    assert values(told["nsqd_channel_holds_log"])["a", "x"] == 1
    idle = values(told["nsqd_channel_idle_seconds"])
    assert idle["a", "x"] == 0 < idle["a", "y#ephemeral"] < 3600
    assert values(told["nsqd_channel_in_flight"])["a", "x"] == 1
    assert values(told["nsqd_channel_clients"])["a", "x"] == 1
    assert values(told["nsqd_channel_paused"]) == {("a", "x"): 0, ("a", "y#ephemeral"): 1}
    latency = values(told["nsqd_channel_e2e_processing_latency_seconds"])
    assert 0 < latency["a", "x", "0.99"] < 20


@pytest.mark.parametrize("name", ["publish", "delivery"])
async def test_histograms_of_topics_that_have_any(api: Api, name: str) -> None:
    client = await api.client()
    await client.sub("a", "x", rdy=10)
    await api.done("/topic/create?topic=silent")
    for _ in range(3):
        await api.done("/mpub?topic=a", b"x\ny")
        for _ in range(2):
            client.fin(await client.message())
    family = (await scrape(api))[f"nsqd_topic_{name}_seconds"]
    assert family.type == "histogram"
    assert values(family, "_count") == {("a",): 6}
    assert 0 < values(family, "_sum")["a",] < 20
    buckets = values(family, "_bucket")
    counts = [count for (_, bound), count in buckets.items()]
    assert counts == sorted(counts)
    assert buckets["a", "+Inf"] == 6
    assert len(buckets) == 23


async def test_the_node_the_process_and_python(api: Api) -> None:
    await api.done("/topic/create?topic=a")
    await api.client()
    told = await scrape(api)
    (info,) = told["nsqd_info"].samples
    assert info.labels["version"] == "1.3.0"
    assert values(told["nsqd_healthy"]) == {(): 1}
    assert values(told["nsqd_topics"]) == {(): 1}
    assert values(told["nsqd_channels"]) == {(): 0}
    assert values(told["process_resident_memory_bytes"])[()] > 1_000_000
    assert "python_gc_collections" in told
    api.broker.unhealthy("disk on fire")
    assert values((await scrape(api))["nsqd_healthy"]) == {(): 0}


async def test_fsyncs_and_the_lag_of_the_loop(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "LAG_INTERVAL", 0.001)
    await api.done("/pub?topic=a", b"x")
    api.broker.syncer.request(api.broker.topics["a"])
    await until(lambda: api.broker.syncer.times.count)
    first = await scrape(api)
    assert values(first["nsqd_fsync_seconds"], "_count")[()] >= 1
    assert values(first["nsqd_fsync_seconds"], "_bucket")["+Inf",] >= 1

    async def measured() -> bool:
        return values((await scrape(api))["nsqd_event_loop_lag_seconds"], "_count")[()] > 3

    await until(measured)


async def test_what_pipelines_report(api: Api) -> None:
    await api.done("/topic/create?topic=a")
    await api.done("/channel/create?topic=a&channel=x")
    assert "nsqd_channel_pipeline_lag_messages" not in await scrape(api)
    body = b'{"query_id":"q","state":"running","lag_messages":12,"log_lag_messages":3,"batch_ms":250}'
    await api.done("/channel/report?topic=a&channel=x", body)
    told = await scrape(api)
    assert values(told["nsqd_channel_pipeline_lag_messages"]) == {("a", "x"): 12}
    assert values(told["nsqd_channel_pipeline_log_lag_messages"]) == {("a", "x"): 3}
    assert values(told["nsqd_channel_pipeline_batch_seconds"]) == {("a", "x"): 0.25}
    assert values(told["nsqd_channel_pipeline_lag_seconds"]) == {}
    received = values(told["nsqd_channel_pipeline_report_timestamp_seconds"])["a", "x"]
    assert abs(received - api.broker.start_time) < 100


async def test_a_large_node_is_told_in_small_pieces(api: Api) -> None:
    for number in range(20):
        topic = api.broker.topic(f"t{number:02}")
        for channel in range(10):
            topic.channel(f"c{channel}")
        topic.publish_times.observe(1)
    pieces = list(metrics.family_pieces(api.broker))
    assert max(map(len, pieces)) < 2000
    assert len(values((await scrape(api))["nsqd_channel_depth"])) == 200


@pytest.mark.parametrize("module", ["prometheus_client", "ddsketch", "ctypes", "tracemalloc"])
def test_a_daemon_starts_without_what_few_ask_for(module: str) -> None:
    code = f"import sys, nsquark.nsqd.__main__; print({module!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
