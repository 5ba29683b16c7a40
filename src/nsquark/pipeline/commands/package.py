"""`package`: writes the file that executors get if nsquark is not installed there."""

from __future__ import annotations

import logging
from pathlib import Path

from ..flags.subcommands import Package
from ..shipping import is_environment, write_environment, write_library

logger = logging.getLogger(__name__)


def run(options: Package) -> None:
    """Raises StartError."""
    path = Path(options.output)
    if is_environment(path.name):
        inside = ", ".join(write_environment(path, options.with_))
        hint = f"spark-submit --archives {path.name}#env with PYSPARK_PYTHON=./env/bin/python"
    else:
        inside = f"{write_library(path)} modules"
        hint = f"spark-submit --py-files {path.name}"
    logger.info("%s: %.1f MB, %s", path, path.stat().st_size / 1e6, inside)
    logger.info("use it with --ship=%s, or with %s: see docs/clusters.md", path, hint)
