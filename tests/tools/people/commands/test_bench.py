"""`nsquark bench`: figures come out, and nothing is left behind."""

from __future__ import annotations

import json
from array import array
from itertools import pairwise

import pytest

from nsquark.tools.people.bench_workloads import WORKLOADS, Result
from tests.tools.people.command import Running, failure, output


@pytest.mark.parametrize("workload", list(WORKLOADS))
def test_a_workload_measures_and_tidies_up(at: list[str], workload: str) -> None:
    told = json.loads(output("bench", workload, "--seconds", "200ms", "--rate", "200", "--json", *at))
    (result,) = told["results"]
    assert result["workload"] == workload
    assert result["messages"] > 0
    assert result["messages_per_second"] > 0
    if workload != "sub" and workload != "fanout":
        latency = result["latency_us"]
        assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
        assert sum(bucket["share"] for bucket in result["histogram_us"]) == pytest.approx(1, abs=0.001)
    assert "nsquark_bench" not in output("topic", "list", *at)


def test_a_person_sees_a_histogram(at: list[str]) -> None:
    text = output("bench", "one", "--seconds", "100ms", *at)
    assert "messages/s" in text
    assert "p99.9" in text
    assert "█" in text
    assert max(map(len, text.splitlines())) <= 80


def test_ctrl_c_tidies_up(at: list[str]) -> None:
    with Running("bench", "mpub", "pub", "--seconds", "30s", *at) as running:
        while "nsquark_bench_mpub" not in output("topic", "list", *at):
            pass
        status, _, stderr = running.interrupt()
    assert (status, stderr) == (130, "interrupted: nothing was measured\n")
    assert "nsquark_bench" not in output("topic", "list", *at)


def test_it_does_not_touch_a_topic_that_is_there(at: list[str]) -> None:
    output("topic", "create", "nsquark_bench_one", *at)
    assert "nsquark_bench_one" in failure("bench", "one", "--json", *at)
    assert "nsquark_bench_one" in output("topic", "list", *at)
    output("topic", "delete", "nsquark_bench_one", "-y", *at)


def test_percentiles_and_buckets() -> None:
    result = Result("x", "", 10, 4, 2.0, array("d", [0.001, 0.0025, 0.003, 0.1]))
    assert result.rate == 2
    assert result.percentiles() == {"p50": 0.003, "p90": 0.1, "p99": 0.1, "p99.9": 0.1, "max": 0.1}
    histogram = result.histogram()
    assert [share for *_, share in histogram if share] == [0.25, 0.5, 0.25]
    assert all(low < high for low, high, _ in histogram)
    assert all(before[1] == after[0] for before, after in pairwise(histogram))
