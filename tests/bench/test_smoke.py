"""A benchmark that is never run is already broken: each is run for a moment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def run(script: str, *arguments: str, within: float = 110) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCH / script), "--smoke", *arguments],
        capture_output=True,
        text=True,
        timeout=within,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_kernel_benchmark_runs(tmp_path: Path) -> None:
    pytest.importorskip("nsquark.kernel.fast")
    result = tmp_path / "result.json"
    assert "scan_fins" in run("kernel/functions.py", "--json", str(result))
    assert json.loads(result.read_text())["functions"]["scan_fins"]["ratio"] > 0


def test_the_lookupd_benchmark_runs(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    assert "nodes_p99" in run("lookupd/directory.py", "--json", str(result))
    assert json.loads(result.read_text())["ours"]["lookup_p50"] > 0


def test_the_nsqadmin_benchmark_runs(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    assert "counter" in run("nsqadmin/scale.py", "--json", str(result))
    assert json.loads(result.read_text())["figures"][0]["ours_ms"] > 0


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_the_benchmark_of_pub_runs(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    assert "requests/s" in run("http/pub.py", "--json", str(result))
    assert json.loads(result.read_text())["ours"] > 0


def test_the_benchmark_of_pub_says_that_it_needs_wrk() -> None:
    script = str(BENCH / "http/pub.py")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=110, env={"PATH": "/nonexistent"}
    )
    assert done.returncode == 1
    assert "needs `wrk`, which is not installed" in done.stderr


@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
def test_the_benchmark_of_reading_with_spark_runs(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    assert "nsq to noop / memory to noop" in run("spark/read.py", "--json", str(result), within=280)
    assert json.loads(result.read_text())["ratios"]["nsq to noop / memory to noop"] > 0


@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
def test_the_benchmark_of_writing_with_spark_runs(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    assert "nsq, at least once / discard" in run("spark/write.py", "--json", str(result), within=280)
    assert json.loads(result.read_text())["ratios"]["nsq, exactly once / discard"] > 0


def test_the_benchmark_of_stats_runs(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    assert "worst" in run("http/stats.py", "--json", str(result))
    assert json.loads(result.read_text())["ours"]["/stats?format=json"]["answer_s"] > 0


def test_the_benchmark_of_reading_the_log_runs(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    assert "with the reader" in run("log/read.py", "--json", str(result))
    assert json.loads(result.read_text())["messages_per_s"] > 0


SUBJECTS = {
    "^(mpub|spill-mpub|pipelined|one-by-one.*|http-.*)$": "MPUB of 200",
    "^(at-once|.*-K?M?B|fan-out.*|many-topics)$": "bodies of 1 KB",
    "^(deferred|requeued|timed-out|tls-mpub|snappy-mpub|deflate-mpub)$": "requeued 4 times",
    "^(p50-.*|cold|start-.*|idle|topic|queued|in-flight)$": "p99.9",
}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_daemon_benchmark_runs(subject: str, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    assert SUBJECTS[subject] in run("daemon/compare.py", "--only", subject, "--json", str(result))
    measures = json.loads(result.read_text())["measures"]
    assert all(measure["rounds"]["ours"] for measure in measures)


def test_no_workload_of_the_daemon_benchmark_is_left_out_above() -> None:
    listed = subprocess.run(
        [sys.executable, str(BENCH / "daemon/compare.py"), "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "10000"},
    ).stdout
    names = listed.partition("Measures: ")[2].strip().split(", ")
    # A workload is chosen by any of its measures: these come with another one of theirs.
    companions = re.compile(r".*-cpu|(spill-|tls-|snappy-|deflate-)?sub|p99.*|warm|connection|channel")
    for name in names:
        assert companions.fullmatch(name) or any(re.search(subject, name) for subject in SUBJECTS), name


def test_the_daemon_benchmark_runs_beside_other_queues(tmp_path: Path) -> None:
    """Those that are installed; where none is, it runs without them."""
    result = tmp_path / "result.json"
    page = tmp_path / "page.md"
    only = "^(mpub|pipelined|one-by-one)$"
    run("daemon/compare.py", "--peers", "--only", only, "--json", str(result), "--markdown", str(page))
    assert "| `mpub` | MPUB of 200" in page.read_text()
    written = json.loads(result.read_text())
    for measure in written["measures"]:
        for peer in written["peers"]:
            assert measure["rounds"][peer]


def test_the_sweep_draws_its_plots(tmp_path: Path) -> None:
    assert "7 plots" in run("daemon/sweep.py", "--out", str(tmp_path))
    for plot in tmp_path.glob("*.svg"):
        assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    assert json.loads((tmp_path / "sweep.json").read_text())["size"]["ours"]


def test_the_benchmark_of_stalls_runs(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    assert "unknown_fins" in run("daemon/stalls.py", "--json", str(result))
    assert json.loads(result.read_text())["ours"]["deferred"]["worst_ms"] > 0


def test_the_security_benchmark_runs() -> None:
    output = run("daemon/security.py")
    assert "tls+deflate" in output


def test_the_benchmark_of_the_utilities_runs(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    assert "nsq_to_http" in run("tools/compare.py", "--json", str(result))
    rates = json.loads(result.read_text())["rates"]
    assert rates["nsq_to_nsq"]["ours"][0] > 0
    assert rates["nsq_to_http"]["ours"][0] > 0


def test_the_utilities_lose_nothing_when_they_are_killed() -> None:
    output = run("tools/million.py")
    assert "nsq_to_nsq: 20,000 messages" in output
    assert "nsq_to_http: 20,000 messages" in output
    assert output.count(" 0 lost, 0 changed") == len(output.splitlines())


def test_the_client_benchmark_runs(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    output = run("client/compare.py", "--json", str(result))
    assert "times the rate" in output  # pynsq is always there to compare with
    assert json.loads(result.read_text())["rates"]["nsquark consume"][0] > 0


def test_the_benchmark_of_check_runs(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    assert "check / read" in run("data_path/check.py", "--json", str(result))
    assert json.loads(result.read_text())["ratio"] > 0
