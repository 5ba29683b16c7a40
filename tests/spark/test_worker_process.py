"""Python processes of Spark, with Spark's part played by this test: it closes their sockets."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest


def run_worker(module: str, folder: Path) -> str:
    """A worker of `pyspark.daemon` whose socket is closed; what it has written to stderr."""
    # The path of a socket must be short, and that of a test's folder may not be.
    with tempfile.TemporaryDirectory() as sockets:
        return _run_worker(module, folder, sockets)


def _run_worker(module: str, folder: Path, sockets: str) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))),
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": sockets,
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
    }
    errors = folder / "stderr"
    with errors.open("wb") as stderr:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "pyspark.daemon", module],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
        )  # fmt: skip
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    try:
        (length,) = struct.unpack(">i", daemon.stdout.read(4))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(daemon.stdout.read(length).decode())
            connection.settimeout(60)
            (pid,) = struct.unpack(">i", connection.recv(4))
            worker = os.pidfd_open(pid)
        with open(worker, "rb", 0):
            assert select.select([worker], [], [], 60)[0], "the worker has not ended"
    finally:
        daemon.stdin.close()
        daemon.wait(60)
        daemon.stdout.close()
    return errors.read_text()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux has it")
def test_a_worker_whose_socket_is_closed_ends_without_a_traceback(tmp_path: Path) -> None:
    probe = "import nsquark.spark\nfrom pyspark.worker import main\n"
    (tmp_path / "pyspark_probe.py").write_text(probe)
    assert run_worker("pyspark_probe", tmp_path) == ""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux has it")
def test_any_other_failure_of_a_worker_is_printed(tmp_path: Path) -> None:
    (tmp_path / "pyspark_probe.py").write_text("import nsquark.spark\nmain = lambda *_: int('x')\n")
    assert run_worker("pyspark_probe", tmp_path).startswith("Traceback")


# Prints whether a collection of garbage looks at a module.
LOOK = (
    "import gc, sys, nsquark.spark\n"
    "looks = any(each is nsquark.spark.__dict__ for each in gc.get_objects())\n"
    "main = lambda *_: None\n"
    "print(looks, file=sys.stderr)\n"
)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux has it")
def test_a_worker_does_not_look_at_modules_when_it_collects_garbage(tmp_path: Path) -> None:
    (tmp_path / "pyspark_probe.py").write_text(LOOK)
    assert run_worker("pyspark_probe", tmp_path).split()[0] == "False"


def test_a_process_that_is_not_one_of_spark_collects_garbage_as_ever() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.split() == ["True"]


def test_the_process_of_a_query_says_nothing_of_a_closed_socket(tmp_path: Path) -> None:
    """Run as the main module of a query's source, which leaves its errors to `sys.excepthook`."""
    package = tmp_path / "main.py"
    package.write_text(
        "import importlib.machinery, sys\n"
        "name = 'pyspark.sql.streaming.python_streaming_source_runner'\n"
        "sys.modules['__main__'].__spec__ = importlib.machinery.ModuleSpec(name, None)\n"
        "import nsquark.spark\n"
        "raise {'gone': BrokenPipeError, 'other': ValueError}[sys.argv[1]]\n"
    )
    for argument, expected in (("gone", False), ("other", True)):
        done = subprocess.run(
            [sys.executable, package, argument], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 1
        assert bool(done.stderr) is expected
