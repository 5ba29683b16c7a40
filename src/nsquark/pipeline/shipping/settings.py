"""The settings by which executors run what is shipped to them.

Spark starts the processes of a Python data source by one name of an interpreter, on the driver's machine and
on the executors'. A path that is right on one side is wrong on the other. So the name has no path, and each
side finds it by its own PATH: the driver finds the interpreter of this process, and the executors find that
of the environment that was shipped, or their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

from .files import is_environment

_PYTHON: Final = "python3"
_FOLDER: Final = "nsquark_env"  # where Spark unpacks an environment, within the folder of an executor
_USUAL_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ON_EXECUTORS: Final = "spark.executorEnv."


def ship(path: Path, given: Mapping[str, str], environ: MutableMapping[str, str]) -> dict[str, str]:
    """The settings of Spark that ship a file, which go before those `given`. Changes the environment."""
    run_by_name(environ)
    if is_environment(path.name):
        archives = _joined(",", given.get("spark.archives"), f"{path}#{_FOLDER}")
        return {"spark.archives": archives, **_first_on_path(f"./{_FOLDER}/bin", given)}
    python_path = f"{_ON_EXECUTORS}PYTHONPATH"
    return {
        "spark.submit.pyFiles": _joined(",", given.get("spark.submit.pyFiles"), str(path)),
        python_path: _joined(":", path.name, given.get(python_path)),
    }


def use_python_of_executors(given: Mapping[str, str], environ: MutableMapping[str, str]) -> dict[str, str]:
    """The settings for a path in PYSPARK_PYTHON that only the executors have, such as ./env/bin/python."""
    chosen = environ.get("PYSPARK_PYTHON", "")
    folder, _, name = chosen.rpartition("/")
    if not folder or Path(chosen).exists():
        return {}
    run_by_name(environ, name)
    return _first_on_path(folder, given)


def run_by_name(environ: MutableMapping[str, str], name: str = _PYTHON) -> None:
    """Have Spark start `name`, which is this interpreter on this machine."""
    environ["PYSPARK_PYTHON"] = environ["PYSPARK_DRIVER_PYTHON"] = name
    environ["PATH"] = _joined(":", os.path.dirname(sys.executable), environ.get("PATH"))


def _first_on_path(folder: str, given: Mapping[str, str]) -> dict[str, str]:
    path = f"{_ON_EXECUTORS}PATH"
    return {path: _joined(":", folder, given.get(path, _USUAL_PATH))}


def _joined(separator: str, *parts: str | None) -> str:
    return separator.join(part for part in parts if part)
