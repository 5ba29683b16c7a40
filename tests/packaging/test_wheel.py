"""The sdist has what the wheel is built from; the wheel alone, in an empty environment, is all of nsquark."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from nsquark import kernel
from nsquark.kernel.single_source import CYTHON_MODULES, PYTHON_MODULES
from tests.tools.people.command import environment

ROOT = Path(__file__).parents[2]
PROJECT = ["pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md"]
PORTS = [
    f"--{name}-address=127.0.0.1:0"
    for name in ("nsqd-tcp", "nsqd-http", "lookupd-tcp", "lookupd-http", "admin-http")
]

pytestmark = [
    pytest.mark.skipif(not kernel.COMPILED, reason="the compiled kernel is not in use"),
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("packaging"),
]


class Packages(NamedTuple):
    sdist: Path
    wheel: Path
    bin: Path  # of an environment that has the wheel


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    folder = tmp_path_factory.mktemp("packaging")
    tree = folder / "tree"
    tree.mkdir()
    for name in PROJECT:
        shutil.copy2(ROOT / name, tree)
    left_out = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", tree / "src", ignore=left_out)
    take_compiled_modules(tree)
    sdist = build("sdist", tree, folder / "dist")
    run(["tar", "-xf", str(sdist), "-C", str(folder)])
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    take_compiled_modules(unpacked)
    wheel = build("wheel", unpacked, folder / "dist")
    return Packages(sdist, wheel, install(wheel, folder / "venv"))


def take_compiled_modules(tree: Path) -> None:
    """What `make` has compiled from the same sources is not compiled again."""
    for path in (ROOT / "build").glob("lib.*"):
        shutil.copytree(path, tree / "build" / path.name, ignore=shutil.ignore_patterns("*.py"))
    if (ROOT / "build" / "cython").exists():
        shutil.copytree(ROOT / "build" / "cython", tree / "build" / "cython")


def build(kind: str, tree: Path, output: Path) -> Path:
    run([sys.executable, "-m", "build", f"--{kind}", "--no-isolation", f"--outdir={output}", str(tree)])
    (built,) = output.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return built


def install(wheel: Path, place: Path) -> Path:
    """An environment that has the wheel, and finds its dependencies among those of this interpreter."""
    venv.create(place, with_pip=False)
    python = str(place / "bin" / "python")
    run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            "-q",
            "--no-deps",
            "--no-index",
            str(wheel),
        ]
    )
    (site_packages,) = place.glob("lib/python*/site-packages")
    # A path in a .pth is only a path: other .pth files there, such as the one of this clone, are not read.
    (site_packages / "dependencies.pth").write_text(
        f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n"
    )
    return place / "bin"


def run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        words, capture_output=True, text=True, cwd="/", env=environment(PIP_NO_INPUT="1"), timeout=500
    )  # fmt: skip
    assert done.returncode == 0, done
    return done


def test_the_sdist_has_the_sources_and_nothing_that_was_built(packages: Packages) -> None:
    with tarfile.open(packages.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for module in (*CYTHON_MODULES, *PYTHON_MODULES):
        suffix = ".pyx" if module in CYTHON_MODULES else ".pxd"
        assert f"src/{module.replace('.', '/')}{suffix}" in names
    assert {"LICENSE", "CHANGELOG.md", "setup.py", "src/nsquark/kernel/crc32c.h"} <= names
    assert not [name for name in names if name.endswith((".so", ".c", ".pyc"))]


def test_the_wheel_has_every_module_compiled_and_no_source_of_them(packages: Packages) -> None:
    names = zipfile.ZipFile(packages.wheel).namelist()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for module in (*CYTHON_MODULES, *PYTHON_MODULES):
        assert f"{module.replace('.', '/')}{suffix}" in names
    assert {"nsquark/py.typed", "pyspark_nsq/py.typed", "nsquark/kernel/fast.pyi"} <= set(names)
    assert not [name for name in names if name.endswith((".pyx", ".pxd", ".c", ".h"))]


def test_the_wheel_has_what_the_clone_has(packages: Packages) -> None:
    """Nothing that a program reads at run time is left behind."""
    names = set(zipfile.ZipFile(packages.wheel).namelist())
    built_from = {".pyx", ".pxd", ".h", ".so", ".pyc", ".c"}
    missing = [
        str(path.relative_to(ROOT / "src"))
        for package in ("nsquark", "pyspark_nsq")
        for path in (ROOT / "src" / package).rglob("*")
        if path.is_file()
        and path.suffix not in built_from
        and str(path.relative_to(ROOT / "src")) not in names
    ]
    assert missing == []


def test_every_command_of_the_wheel_runs(packages: Packages) -> None:
    names = re.findall(
        r"^(\S+) = ",
        zipfile.ZipFile(packages.wheel).read(metadata(packages, "entry_points.txt")).decode(),
        re.M,
    )
    assert {"nsqd", "nsqlookupd", "nsqadmin", "nsquark", "nsq_to_spark", "to_nsq"} <= set(names)
    for name in names:
        assert run([str(packages.bin / name), "--version"]).stdout.startswith(f"{name} ")


def test_the_wheel_runs_with_its_own_compiled_kernel(packages: Packages) -> None:
    assert run([str(packages.bin / "nsquark"), "--version"]).stdout.endswith(", compiled kernel\n")
    where = run([str(packages.bin / "python"), "-c", "import nsquark.kernel.fast as k; print(k.__file__)"])
    assert where.stdout.startswith(str(packages.bin.parent))


def test_the_extras_are_there(packages: Packages) -> None:
    text = zipfile.ZipFile(packages.wheel).read(metadata(packages, "METADATA")).decode()
    extras = set(re.findall(r"^Provides-Extra: (\S+)$", text, re.M))
    assert {"spark", "admin", "otel"} <= extras
    needed = {line for line in re.findall(r"^Requires-Dist: (.+)$", text, re.M) if "extra ==" not in line}
    assert not [line for line in needed if re.match("pyspark|starlette|uvicorn|jinja2|mkdocs", line)]


def metadata(packages: Packages, file: str) -> str:
    (found,) = (
        name for name in zipfile.ZipFile(packages.wheel).namelist() if name.endswith(f".dist-info/{file}")
    )
    return found


def test_the_wheel_serves(packages: Packages, tmp_path: Path) -> None:
    running = subprocess.Popen(
        [str(packages.bin / "nsquark"), "up", "--json", f"--data-path={tmp_path}", *PORTS],
        stdout=subprocess.PIPE, text=True, cwd="/", env=environment(),
    )  # fmt: skip
    with running:
        try:
            assert running.stdout is not None
            at = json.loads(running.stdout.readline())
            run([str(packages.bin / "nsquark"), "pub", "test", "hello", "--nsqd-tcp", at["nsqd_tcp"]])
            words = ["tail", "test", "--to", "latest", "--nsqd-http", at["nsqd_http"]]
            assert run([str(packages.bin / "nsquark"), *words]).stdout == "hello\n"
            for url in (f"http://{at['nsqd_http']}/openapi.yaml", f"http://{at['admin_http']}/"):
                with urllib.request.urlopen(url, timeout=60) as answer:
                    assert answer.status == 200
        finally:
            running.terminate()
    assert running.returncode == 0
