from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark

from nsquark.pipeline.shipping import write_library


def test_the_data_source_is_imported_from_the_zip_alone(tmp_path: Path) -> None:
    """With pyspark and pyarrow, and nothing else that is installed: no httptools, no compiled kernel."""
    library = tmp_path / "nsquark.zip"
    assert write_library(library) > 300
    packages = Path(pyspark.__file__).parents[1]
    for name in ("pyspark", "pyarrow", "py4j"):
        (tmp_path / name).symlink_to(packages / name)
    program = (
        "import nsquark.kernel, pyspark_nsq, importlib.util as u\n"
        "print(pyspark_nsq.__file__, nsquark.kernel.COMPILED, u.find_spec('httptools'))\n"
        "print(pyspark_nsq.DefaultSource.name())\n"
    )
    environment = {"PYTHONPATH": f"{library}:{tmp_path}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == [f"{library}/pyspark_nsq/__init__.py", "False", "None", "nsq"], done.stderr


def test_the_same_modules_make_the_same_zip(tmp_path: Path) -> None:
    for name in ("one.zip", "two.zip"):
        write_library(tmp_path / name)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as library:
        assert {Path(name).suffix for name in library.namelist()} == {".py"}
