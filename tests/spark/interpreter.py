"""The Python of Spark's processes, quick to start.

Spark puts archives in front of the PYTHONPATH of its Python processes, PySpark among them. What is imported
from an archive is compiled each time, which takes almost half a second in each of the ten processes of a
small program. The PySpark of this environment is the same, so the interpreter leaves the archives out.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

LEAN_PYTHON = f"""#!/bin/sh
set -f
IFS=:
kept=
for each in $PYTHONPATH; do
    case $each in */pyspark.zip|*/py4j-*.zip|*.jar) ;; *) kept=$kept${{kept:+:}}$each ;; esac
done
export PYTHONPATH="$kept"
exec {shlex.quote(sys.executable)} "$@"
"""


def interpreter() -> str:
    """The path of an interpreter for Spark's processes on this machine."""
    path = Path(sys.prefix) / "spark-python"
    try:
        if not path.exists() or path.read_text() != LEAN_PYTHON:
            made = path.with_name(f"{path.name}.{os.getpid()}")  # two test processes may come here at once
            made.write_text(LEAN_PYTHON)
            made.chmod(0o755)
            made.rename(path)
    except OSError:
        return sys.executable
    return str(path)
