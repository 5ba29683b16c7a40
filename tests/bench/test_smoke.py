"""A benchmark that nobody runs is already broken: each is run for a moment."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

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


def test_the_daemon_benchmark_runs(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    output = run("daemon/compare.py", "--json", str(result))
    assert "MPUB of 200" in output
    assert json.loads(result.read_text())


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
