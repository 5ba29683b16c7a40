"""A benchmark that nobody runs is already broken: each is run for a moment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCH / script), "--smoke", *arguments],
        capture_output=True,
        text=True,
        timeout=110,
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


def test_the_daemon_benchmark_runs(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    output = run("daemon/compare.py", "--json", str(result))
    assert "MPUB of 200" in output
    assert json.loads(result.read_text())


def test_the_security_benchmark_runs() -> None:
    output = run("daemon/security.py")
    assert "tls+deflate" in output
