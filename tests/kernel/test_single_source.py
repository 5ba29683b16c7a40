"""Modules that are compiled from their own `.py` run the way the kernel runs: compiled, or not."""

import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from nsquark import kernel
from nsquark.kernel.single_source import KERNEL, PYTHON_MODULES

LIST_FILES = """
import pkgutil, importlib, sys
from nsquark.kernel.single_source import CYTHON_MODULES
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.iter_modules(package.__path__, name + "."):
        if module.name not in CYTHON_MODULES:  # those have no other source
            print(importlib.import_module(module.name).__file__)
"""


def run(code: str, *arguments: str, pure: bool, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"NSQUARK_PURE": "1" if pure else "", "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True
    )


def a_package_with_an_extension_module_that_cannot_be_loaded(folder: Path) -> None:
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from nsquark.kernel import choose_sources\nchoose_sources(__path__)\nfrom .module import KIND\n"
    )
    (package / "module.py").write_text("KIND = 'source'\n")
    (package / f"module{EXTENSION_SUFFIXES[0]}").write_bytes(b"no library")


def test_with_the_pure_kernel_an_extension_module_is_left_alone(tmp_path: Path) -> None:
    a_package_with_an_extension_module_that_cannot_be_loaded(tmp_path)
    done = run("import package; print(package.KIND)", pure=True, folder=tmp_path)
    assert (done.stdout, done.stderr) == ("source\n", "")


@pytest.mark.skipif(not kernel.COMPILED, reason="the compiled kernel is not in use")
def test_with_the_compiled_kernel_an_extension_module_is_taken(tmp_path: Path) -> None:
    a_package_with_an_extension_module_that_cannot_be_loaded(tmp_path)
    done = run("import package", pure=False, folder=tmp_path)
    assert "ImportError" in done.stderr
    assert f"module{EXTENSION_SUFFIXES[0]}" in done.stderr


def test_a_package_is_imported_from_a_zip(tmp_path: Path) -> None:
    a_package_with_an_extension_module_that_cannot_be_loaded(tmp_path)
    zipped = shutil.make_archive(str(tmp_path / "zipped"), "zip", tmp_path, "package")
    done = run("import package; print(package.KIND)", pure=True, folder=Path(zipped))
    assert (done.stdout, done.stderr) == ("source\n", "")


# Every package that has compiled modules has to choose its sources.
PACKAGES = sorted({module.rpartition(".")[0] for module in PYTHON_MODULES})


def test_with_the_pure_kernel_log_core_and_http_are_python_throughout(tmp_path: Path) -> None:
    done = run(LIST_FILES, *PACKAGES, pure=True, folder=tmp_path)
    files = done.stdout.splitlines()
    assert {"topic_log.py", "topic.py", "reader.py", "leading.py", "recorder.py", "standby.py"} <= {
        Path(file).name for file in files
    }, done.stderr
    assert [file for file in files if not file.endswith(".py")] == []


@pytest.mark.skipif(not kernel.COMPILED, reason="the compiled kernel is not in use")
def test_with_the_compiled_kernel_every_module_with_a_pxd_is_compiled() -> None:
    root = Path(kernel.__file__).parents[1]
    single = [pxd.with_suffix("") for pxd in root.rglob("*.pxd") if pxd.with_suffix(".py").exists()]
    assert [path for path in single if not any(path.parent.glob(f"{path.name}.*.so"))] == []


def start_nsqd(folder: Path) -> str:
    """What nsqd says when it is started without a data directory, with the modules in this folder."""
    nsqd = [sys.executable, "-m", "nsquark.nsqd", f"--data-path={folder}/none"]
    environment = os.environ | {"NSQUARK_PURE": "", "PYTHONPATH": str(folder)}
    started = subprocess.run(nsqd, env=environment, capture_output=True, text=True)
    assert started.returncode == 1
    assert "Traceback" not in started.stderr
    return started.stderr


def test_every_module_with_a_pxd_is_listed() -> None:
    root = Path(kernel.__file__).parents[2]
    modules = [".".join(pxd.relative_to(root).with_suffix("").parts) for pxd in root.rglob("*.pxd")]
    assert sorted(modules) == sorted({KERNEL, *PYTHON_MODULES})


@pytest.mark.skipif(not kernel.COMPILED, reason="the compiled kernel is not in use")
@pytest.mark.parametrize("missing", ["log/cursor", "nsqd/core/channel", "http/server/reader", "kernel/fast"])
def test_where_one_module_is_not_compiled_none_is(tmp_path: Path, missing: str) -> None:
    shutil.copytree(Path(kernel.__file__).parents[1], tmp_path / "nsquark")
    (extension,) = (tmp_path / "nsquark").glob(f"{missing}.*.so")
    extension.unlink()
    done = run(LIST_FILES, *PACKAGES, pure=False, folder=tmp_path)
    files = done.stdout.splitlines()
    assert {"topic_log.py", "topic.py", "records.py"} <= {Path(file).name for file in files}, done.stderr
    assert [file for file in files if not file.startswith(str(tmp_path)) or not file.endswith(".py")] == []
    assert "no such file or directory" in start_nsqd(tmp_path).lower()


@pytest.mark.skipif(not kernel.COMPILED, reason="the compiled kernel is not in use")
def test_without_the_poll_of_linux_everything_else_runs_compiled(tmp_path: Path) -> None:
    shutil.copytree(Path(kernel.__file__).parents[1], tmp_path / "nsquark")
    (extension,) = (tmp_path / "nsquark/nsqd/protocol").glob("socket_poll.*.so")
    extension.unlink()
    code = "import nsquark.nsqd.server; from nsquark import kernel; print(kernel.__file__, kernel.COMPILED)"
    done = run(code, pure=False, folder=tmp_path)
    assert done.stdout.split() == [f"{tmp_path}/nsquark/kernel/__init__.py", "True"], done.stderr


@pytest.mark.skipif(not kernel.COMPILED, reason="the compiled kernel is not in use")
def test_a_compiled_module_that_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    shutil.copytree(Path(kernel.__file__).parents[1], tmp_path / "nsquark")
    (extension,) = (tmp_path / "nsquark/log").glob("cursor.*.so")
    extension.write_bytes(b"no library")
    (line,) = start_nsqd(tmp_path).splitlines()
    assert line.startswith("nsqd: a compiled module cannot be loaded: ")
    assert line.endswith(". Install again, or set NSQUARK_PURE=1.")
