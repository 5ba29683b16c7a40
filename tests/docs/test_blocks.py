"""Every shell and Python block of the README and of the tutorial is run as it stands, in its order.

Only what a machine may have in use is replaced: the five usual ports, and the folder of the commands.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.demo.test_main import PORTS, Demo
from tests.spark.interpreter import interpreter
from tests.tools.people.command import Running, environment

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PATIENCE = 300  # seconds for a block, Spark's start included

pytestmark = [pytest.mark.timeout(1200), pytest.mark.xdist_group("blocks")]


class Block(NamedTuple):
    language: str
    code: str

    @property
    def needs_spark(self) -> bool:
        return "spark" in self.code.replace("nsquark", "")


def blocks(page: str) -> list[Block]:
    found = re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    return [Block(*each) for each in found if each[0] in ("sh", "python")]


class Machine:
    """Runs blocks beside running servers; `at` has the address for each usual one."""

    def __init__(self, folder: Path, at: Mapping[str, str]) -> None:
        self.folder = folder
        self.at = dict(at)
        self.environment = environment(
            PATH=f"{BIN}:{os.environ['PATH']}",
            HOME=str(folder),
            NSQUARK_NSQD_HTTP=at["127.0.0.1:4151"],
            NSQUARK_NSQD_TCP=at["127.0.0.1:4150"],
            PYSPARK_PYTHON=interpreter(),
            SPARK_LOCAL_IP="127.0.0.1",
        )

    def run(self, block: Block) -> str:
        code = block.code.replace(".venv/bin/", f"{BIN}/")
        for usual, real in self.at.items():
            code = code.replace(usual, real)
        shell = ["bash", "-e", "-o", "pipefail", "-c"] if block.language == "sh" else [sys.executable, "-c"]
        done = subprocess.run(
            [*shell, code],
            capture_output=True, text=True, cwd=self.folder, env=self.environment, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, f"{block.code}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def spark_runs() -> bool:
    return shutil.which("java") is not None or "JAVA_HOME" in os.environ


# ---- the README


@pytest.fixture(scope="module")
def first_minute(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """What `make run` starts, without Spark, which other tests start."""
    folder = tmp_path_factory.mktemp("readme")
    demo = Demo(folder, "--spark-setup=false")
    nsqd_tcp = demo.says(r"^nsqd +(TCP .*)$")
    lookupd = demo.says(r"^nsqlookupd +(TCP .*)$")
    admin = demo.says(r"^nsqadmin +http://(.*)/$")
    ports = re.findall(r"127\.0\.0\.1:\d+", f"{nsqd_tcp} {lookupd}")
    usual = [f"127.0.0.1:{port}" for port in (4150, 4151, 4160, 4161)]
    demo.says("^(Topic demo gets)")
    yield Machine(folder, {**dict(zip(usual, ports, strict=True)), "127.0.0.1:4171": admin})
    demo.kill()


def test_the_first_block_is_make_run() -> None:
    """tests/demo has what that starts."""
    assert blocks("README.md")[0] == Block("sh", "make run\n")


def test_the_readme_works_when_pasted(first_minute: Machine) -> None:
    said = [first_minute.run(block) for block in blocks("README.md")[1:] if not block.needs_spark]
    assert said[0].startswith("OK")
    assert "hello" in said[0]
    assert said[1] == "b'hello'\n"
    assert "b'42'\n" in said


def test_the_readmes_spark_works_when_pasted(first_minute: Machine) -> None:
    if not spark_runs():
        pytest.skip("Spark needs Java")
    with_spark = [block for block in blocks("README.md") if block.needs_spark]
    # One session for the Python blocks: each goes on where the one before it ended.
    python = "".join(block.code for block in with_spark if block.language == "python")
    assert re.search(r"\|\s*(apple|bread|cheese|grapes|milk)\|", first_minute.run(Block("python", python)))
    for block in with_spark:
        if block.language == "sh":
            first_minute.run(block)
    assert list((first_minute.folder / "data" / "events").rglob("*.parquet"))


# ---- the tutorial


def test_the_tutorial_works_when_pasted(tmp_path: Path) -> None:
    first, *others = blocks("docs/tutorial.md")
    program, *words = shlex.split(first.code)
    assert program == "nsquark"
    place = words.index("--")
    said = {}
    words[words.index("tutorial-data")] = str(tmp_path / "tutorial-data")
    with Running(*words[:place], "--json", *PORTS, *words[place:]) as running:
        at = json.loads(running.line())
        machine = Machine(
            tmp_path,
            {
                "127.0.0.1:4150": at["nsqd_tcp"],
                "127.0.0.1:4151": at["nsqd_http"],
                "127.0.0.1:4161": at["lookupd_http"],
                "127.0.0.1:4171": at["admin_http"],
            },
        )
        for number, block in enumerate(others):
            if not block.needs_spark or spark_runs():
                said[number] = machine.run(block)
    assert "bill apple\nbill bread\nbill cheese\n" in said.values()
    assert any("piano" in text for text in said.values())
