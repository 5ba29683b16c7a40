"""The series that nsqd sends through statsd, and the pages that show Graphite's pictures of them."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import parse_qs, urlsplit

import pytest

from nsquark.nsqadmin.cluster.latency import Latency, Percentile
from nsquark.nsqadmin.pages.parts.graphite import Graph, Graphite, graphite_of, timeframe_of
from tests.nsqadmin.served import Cluster, serving

LATENCY = Latency(3, [Percentile(0.99, 1, 1, 1, 3, 1), Percentile(0.5, 1, 1, 1, 3, 1)])


def made(url: str = "http://graphite.example", proxied: str = "", **options: object) -> Graphite:
    defaults: dict[str, object] = {
        "statsd_prefix": "nsq.%s",
        "counter_format": "stats.counters.%s.count",
        "gauge_format": "stats.gauges.%s",
        "interval": 60.0,
    }
    graphite = graphite_of(url, proxied, **{**defaults, **options})  # type: ignore[arg-type]
    assert graphite is not None
    return graphite


def asked(graph: Graph) -> dict[str, list[str]]:
    return parse_qs(urlsplit(graph.small).query)


def test_a_gauge_is_summed_over_all_nodes() -> None:
    depth = made().of_topic("orders", Latency(), "2h")[0]
    query = asked(depth)
    assert query["target"] == ['summarize(sumSeries(stats.gauges.nsq.*.topic.orders.depth),"60sec","avg")']
    assert (query["from"], query["until"], query["colorList"]) == (["-2h"], ["-1min"], ["e5484d"])
    assert depth.small.startswith("http://graphite.example/render?")


def test_a_counter_is_shown_by_the_second() -> None:
    messages = made(interval=10.0).of_channel("orders", "e#ephemeral", Latency(), "24h")[3]
    key = "stats.counters.nsq.*.topic.orders.channel.eephemeral.message_count.count"
    assert asked(messages)["target"] == [f'summarize(scale(sumSeries({key}),0.1),"10sec","avg")']


def test_latency_has_a_line_for_each_percentile_in_ms() -> None:
    latency = made().of_topic("orders", LATENCY, "2h")[-1]
    assert asked(latency)["target"] == [
        f"summarize(scale(averageSeries(stats.gauges.nsq.*.topic.orders.e2e_processing_latency_{each}),0.000001)"
        ',"60sec","avg")'
        for each in (99, 50)
    ]


def test_a_node_goes_by_its_key() -> None:
    heap, _, runs, _ = made().of_node("nsqd1.example:4151", "2h")
    assert "stats.gauges.nsq.nsqd1_example_4151.mem.heap_in_use_bytes" in asked(heap)["target"][1]
    assert "scale(stats.counters.nsq.nsqd1_example_4151.mem.gc_runs.count," in asked(runs)["target"][0]


@pytest.mark.parametrize(
    ("options", "series"),
    [
        ({"statsd_prefix": "nsq.%s."}, "stats.gauges.nsq.*.topic.t.depth"),
        ({"statsd_prefix": ""}, "stats.gauges.topic.t.depth"),
        ({"gauge_format": ""}, "nsq.*.topic.t.depth"),
    ],
)
def test_prefix_and_formats_are_those_of_statsd(options: dict[str, object], series: str) -> None:
    assert made(**options).series("topic.t", "depth") == series


def test_a_login_stays_with_nsqadmin() -> None:
    graphite = made("https://me:secret@graphite.example:8080/base/")
    assert graphite.render == "https://graphite.example:8080/base/render"
    assert graphite.origin == "https://graphite.example:8080"


@pytest.mark.parametrize("url", ["", "graphite", "javascript:alert(1)", "http://[::1"])
def test_what_is_no_address_has_no_graphs(url: str) -> None:
    options = {"statsd_prefix": "", "counter_format": "", "gauge_format": ""}
    assert graphite_of(url, "", interval=60.0, **options) is None


@pytest.mark.parametrize(
    ("asked", "taken"), [("168h", "168h"), ("off", "off"), ("", "2h"), ("-1 or 1", "2h")]
)
def test_a_timeframe_is_one_of_those_offered(asked: str, taken: str) -> None:
    assert timeframe_of(asked) == taken


async def test_pages_show_graphites_pictures_and_the_policy_lets_them(daemons: Cluster) -> None:
    await daemons.fill()
    node = f"/nodes/127.0.0.1:{daemons.nsqds[0].http_port}"
    paths = ("/topics/orders", "/topics/orders/archive", node, "/counter")
    async with serving(*daemons.flags, "--graphite-url=http://graphite.example/base") as admin:
        for path in paths:
            answer = await admin.get(f"{path}?t=12h")
            pictures = re.findall(r'<img src="([^"]*)"', answer.body.decode())
            assert pictures, path
            for address in map(unescape, pictures):
                assert address.startswith("http://graphite.example/base/render?"), path
                assert "from=-12h" in address
            assert answer.headers["content-security-policy"].endswith(
                "; img-src 'self' http://graphite.example"
            )
            assert b"<img" not in (await admin.get(f"{path}?t=off")).body


async def test_through_the_proxy_pictures_come_from_nsqadmin_alone(daemons: Cluster) -> None:
    await daemons.fill()
    flags = ("--graphite-url=http://me:secret@graphite.example", "--proxy-graphite", "--base-path=/ops")
    async with serving(*daemons.flags, *flags) as admin:
        answer = await admin.get("/ops/topics/orders")
        assert re.findall(r'<img src="([^"?]*)', answer.body.decode()) == ["/ops/render"] * 2
        assert "img-src" not in answer.headers["content-security-policy"]
        assert b"graphite.example" not in answer.body
