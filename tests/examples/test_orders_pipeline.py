"""The example with Spark Declarative Pipelines, run as its README says, against a real nsqd."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.spark.broker import Broker
from tests.spark.interpreter import interpreter
from tests.spark.session import QUICK_START

pytest.importorskip("grpc")
pq = pytest.importorskip("pyarrow.parquet")

EXAMPLE = Path(__file__).parents[2] / "examples" / "orders_pipeline"
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java"),
]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data").start() as running:
        yield running


@pytest.fixture
def project(broker: Broker, tmp_path: Path) -> Path:
    """The example with other paths and another nsqd."""
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project)
    for name in ("spark-pipeline.yml", "conf/spark-defaults.conf"):
        text = (project / name).read_text().replace("/tmp/nsquark-orders", str(tmp_path / "orders"))
        (project / name).write_text(text.replace("127.0.0.1:4151", broker.http_address))
    with (project / "conf/spark-defaults.conf").open("a") as settings:
        settings.write(f"spark.driver.extraJavaOptions {QUICK_START}\n")
    (tmp_path / "orders").mkdir()
    return project


def spark_pipelines(project: Path, command: str) -> None:
    program = Path(sys.executable).with_name("spark-pipelines")
    done = subprocess.run(
        [str(program), command],
        cwd=project,
        env={
            **os.environ,
            "SPARK_CONF_DIR": str(project / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": interpreter(),
        },
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def order(customer: str, country: str, amount: float) -> bytes:
    return json.dumps({"customer": customer, "country": country, "amount": amount}).encode()


def revenue(project: Path) -> dict[str, tuple[int, Decimal]]:
    rows: list[dict[str, Any]] = pq.read_table(
        project.parent / "orders" / "warehouse" / "revenue_gold"
    ).to_pylist()
    return {row["country"]: (row["orders"], row["revenue"]) for row in rows}


def test_it_is_checked_run_and_run_again(broker: Broker, project: Path) -> None:
    broker.publish(
        "orders", [order("ann", "DE", 12.5), order("bob", "FR", 3), b"no order", order("", "DE", -1)]
    )
    spark_pipelines(project, "dry-run")
    assert broker.ask("GET", "/stats?format=json&topic=orders")["topics"][0]["channels"] == []
    spark_pipelines(project, "run")
    assert revenue(project) == {"DE": (1, Decimal("12.50")), "FR": (1, Decimal("3.00"))}
    assert broker.depth("orders", "orders_pipeline") == 0
    broker.publish("orders", [order("cid", "DE", 1)])
    spark_pipelines(project, "run")
    assert revenue(project) == {"DE": (2, Decimal("13.50")), "FR": (1, Decimal("3.00"))}
    assert broker.depth("orders", "orders_pipeline") == 0
