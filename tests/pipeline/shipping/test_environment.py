from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pyspark
import pytest

import nsquark.kernel
from nsquark.cli.flags import StartError
from nsquark.pipeline.shipping import write_environment


def test_an_unpacked_environment_has_the_data_source(tmp_path: Path) -> None:
    archive = tmp_path / "env.tar"
    inside = write_environment(archive, ["pytest"])
    assert {"nsquark", "pyarrow", "httptools", "pytest", "pluggy"} <= set(inside)
    assert not {"pyspark", "py4j"} & set(inside)
    assert os.listdir(tmp_path) == ["env.tar"]
    folder = tmp_path / "anywhere"
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="fully_trusted")
    libraries = (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")
    program = "import nsquark.kernel, pyspark_nsq, pluggy; print(nsquark.__file__, nsquark.kernel.COMPILED)"
    done = subprocess.run(
        [folder / "bin" / "python3", "-c", program],
        env={"PYTHONPATH": ":".join(map(str, libraries))},  # as Spark sets it for its Python processes
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout, done.stderr
    path, compiled = done.stdout.split()
    assert path.startswith(str(folder))
    assert compiled == str(nsquark.kernel.COMPILED)


def test_a_package_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="--with: 'no-such-package' is not installed here"):
        write_environment(tmp_path / "env.tar", ["no-such-package"])
    assert os.listdir(tmp_path) == []


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"--output: '.*/nowhere/env\.tar': no such file"):
        write_environment(tmp_path / "nowhere" / "env.tar")
