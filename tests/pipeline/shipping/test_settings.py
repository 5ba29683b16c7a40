from __future__ import annotations

import os
import sys
from pathlib import Path

from nsquark.pipeline.shipping import ship, use_python_of_executors

HERE = os.path.dirname(sys.executable)


def test_an_environment_is_unpacked_and_found_by_the_path_of_the_executors() -> None:
    environ = {"PATH": "/bin", "PYSPARK_PYTHON": "/elsewhere/python"}
    given = {"spark.archives": "data.zip", "spark.executorEnv.PATH": "/opt/bin"}
    assert ship(Path("/x/env.tar.gz"), given, environ) == {
        "spark.archives": "data.zip,/x/env.tar.gz#nsquark_env",
        "spark.executorEnv.PATH": "./nsquark_env/bin:/opt/bin",
    }
    assert environ == {
        "PATH": f"{HERE}:/bin", "PYSPARK_PYTHON": "python3", "PYSPARK_DRIVER_PYTHON": "python3",
    }  # fmt: skip


def test_a_zip_is_on_the_python_path_of_the_executors() -> None:
    given = {"spark.submit.pyFiles": "mine.zip", "spark.executorEnv.PYTHONPATH": "/opt/mine"}
    assert ship(Path("/x/nsquark.zip"), given, {}) == {
        "spark.submit.pyFiles": "mine.zip,/x/nsquark.zip",
        "spark.executorEnv.PYTHONPATH": "nsquark.zip:/opt/mine",
    }


def test_a_python_that_only_the_executors_have_is_found_by_name() -> None:
    for folder in ("./env/bin", "/nowhere/env/bin"):
        environ = {"PATH": "/bin", "PYSPARK_PYTHON": f"{folder}/python"}
        settings = use_python_of_executors({}, environ)
        assert settings["spark.executorEnv.PATH"].startswith(f"{folder}:/")
        assert (environ["PYSPARK_PYTHON"], environ["PATH"]) == ("python", f"{HERE}:/bin")


def test_any_other_python_stays_as_it_is() -> None:
    for chosen in (sys.executable, "python3"):
        environ = {"PYSPARK_PYTHON": chosen}
        assert use_python_of_executors({}, environ) == {}
        assert environ == {"PYSPARK_PYTHON": chosen}
    assert use_python_of_executors({}, {}) == {}
