"""A standalone master and two workers, each a process, to run something on.

The workers are as on machines without nsquark: the first Python on their PATH has pyarrow,
and nothing else that is ours.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import which

import pyarrow
import pyspark

from nsquark.pipeline.shipping.files import own_files
from tests.spark.session import QUICK_START
from tests.spark.test_exactly_once import descendants

HOME = Path(pyspark.__file__).parent
WORKERS = ("one", "two")  # and their folders


@dataclass
class Cluster:
    url: str  # of the master
    folder: Path
    environment: dict[str, str]  # of a process on a machine of the cluster

    def executors(self) -> list[int]:
        """How many each worker has had."""
        return [len(list((self.folder / name).glob("app-*/*"))) for name in WORKERS]


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """One whose workers have registered."""
    deploy = "org.apache.spark.deploy"
    local = ("--host", "127.0.0.1", "--webui-port", "0")
    make_bare_environment(folder / "python")
    environment = {
        "PATH": f"{folder / 'python' / 'bin'}:/usr/bin:/bin",
        "JAVA_HOME": os.environ.get("JAVA_HOME") or str(Path(which("java") or "").resolve().parents[1]),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with spark_class(f"{deploy}.master.Master", *local, "--port", "0", environment=environment) as master:
        url = wait_for(master, r"spark://127\.0\.0\.1:\d+")
        worker = (f"{deploy}.worker.Worker", *local, "--cores", "1", "--memory", "600m", url)
        first, second = WORKERS
        with (
            spark_class(*worker, environment={**environment, "SPARK_WORKER_DIR": str(folder / first)}) as one,
            spark_class(
                *worker, environment={**environment, "SPARK_WORKER_DIR": str(folder / second)}
            ) as two,
        ):
            for lines in (one, two):
                wait_for(lines, "Successfully registered with master")
            yield Cluster(url, folder, environment)


def make_bare_environment(folder: Path) -> None:
    """A Python environment with pyarrow alone."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = os.path.realpath(sys.executable)
    packages = folder / "lib" / version / "site-packages"
    for made in (folder / "bin", packages):
        made.mkdir(parents=True)
    for name in ("python", "python3", version):
        (folder / "bin" / name).symlink_to(interpreter)
    (folder / "pyvenv.cfg").write_text(f"home = {os.path.dirname(interpreter)}\n")
    (packages / "pyarrow").symlink_to(Path(pyarrow.__file__).parent)


def small_environment(path: Path) -> Path:
    """An archive of an environment as `nsq_to_spark package` makes it, but with a link to pyarrow."""
    folder = path.parent / f"{path.name}.made"
    make_bare_environment(folder)
    (packages,) = folder.glob("lib/*/site-packages")
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        archive.add(folder, ".")
        for name, source in own_files():
            archive.add(source, str(packages.relative_to(folder) / name))
    return path


@contextmanager
def spark_class(*arguments: str, environment: dict[str, str]) -> Iterator[Iterator[str]]:
    """A daemon of Spark's, and the lines that it logs; it is killed at the end."""
    process = subprocess.Popen(
        [str(HOME / "bin" / "spark-class"), *arguments],
        env={**environment, "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK_START},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        yield iter(process.stderr)
    finally:
        family = [process.pid, *descendants(process.pid)]
        for pid in family:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def wait_for(lines: Iterator[str], pattern: str) -> str:
    seen = []
    for line in lines:
        seen.append(line)
        if found := re.search(pattern, line):
            return found[0]
    raise AssertionError(f"no {pattern!r} in\n{''.join(seen)}")
