"""What `make` would do, asked without doing it: which target needs what, in any order."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STAMPS = (".created", ".runtime", ".tools", ".kernel", ".package", ".bytecode", ".java", ".spark")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The Makefile with what it looks at, and a virtual environment of stamps."""
    for name in ("Makefile", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    for path in ROOT.glob("requirements*.lock"):
        shutil.copy(path, tmp_path)
    shutil.copytree(ROOT / "src" / "nsquark" / "kernel", tmp_path / "src" / "nsquark" / "kernel")
    (tmp_path / ".venv").mkdir()
    return tmp_path


def stamp(tree: Path, names: Iterable[str]) -> None:
    """Newer than everything else, each newer than those before it."""
    for age, name in enumerate(names):
        path = tree / ".venv" / name
        path.touch()
        subprocess.run(["touch", "-d", f"+{age + 1} seconds", str(path)], check=True)


def steps(tree: Path, *words: str) -> str:
    return subprocess.run(
        ["make", "-n", *words], cwd=tree, capture_output=True, text=True, check=True, timeout=100
    ).stdout  # fmt: skip


def test_running_installs_neither_tools_nor_spark_nor_java(tree: Path) -> None:
    wanted = steps(tree, "run")
    assert "-r requirements.lock" in wanted
    assert "build_ext" in wanted
    assert "requirements-dev.lock" not in wanted
    assert "requirements-spark.lock" not in wanted
    assert "openjdk" not in wanted
    assert wanted.index("--editable") < wanted.index("-m nsquark.demo")


def test_a_second_run_only_runs(tree: Path) -> None:
    stamp(tree, (".created", ".runtime", ".kernel", ".package", ".bytecode"))
    wanted = steps(tree, "run")
    assert "pip" not in wanted
    assert "build_ext" not in wanted
    assert "nsquark.demo" in wanted


def test_developing_after_running_installs_what_is_missing(tree: Path) -> None:
    stamp(tree, (".created", ".runtime", ".kernel", ".package", ".bytecode", ".java"))
    wanted = steps(tree, "setup")
    assert "-r requirements-dev.lock" in wanted
    assert "build_ext" not in wanted


def test_running_after_developing_installs_nothing(tree: Path) -> None:
    stamp(tree, STAMPS)
    assert "pip" not in steps(tree, "run")
    assert "pip" not in steps(tree, "setup")


def test_a_changed_module_is_compiled_and_nothing_is_installed(tree: Path) -> None:
    stamp(tree, STAMPS)
    changed = tree / "src" / "nsquark" / "kernel" / "fast.pyx"
    subprocess.run(["touch", "-d", "+100 seconds", str(changed)], check=True)
    wanted = steps(tree, "setup")
    assert "build_ext" in wanted
    assert "pip" not in wanted


def test_a_long_step_says_what_it_does_and_how_long_it_takes(tree: Path) -> None:
    said = [line for line in steps(tree, "setup", ".venv/.spark").splitlines() if "usually" in line]
    assert len(said) >= 4
