"""The Spark archive of the demo stream: installed if need be, started, and announced when it can be asked."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

from . import stream
from .children import Child

# How long a process may take for its end.
PATIENCE: Final = 10.0
# How often a line says that the installation goes on.
SIGN_OF_LIFE: Final = 30.0

_PYTHON: Final = os.path.relpath(sys.executable)
_QUERY = """\
The archive has its first files. Ask it, at any time:

query:    {python} -c "import pyarrow.dataset as d; print(d.dataset('{archive}', \
partitioning='hive').to_table().group_by(['topic', 'hour']).aggregate([('id', 'count')]).to_pylist())"
"""


async def archive(nsqd_http: str, output: str, spark_setup: str) -> None:
    """Until it is cancelled. Whatever fails is told, and everything else goes on without the archive."""
    if spark_setup and not await _install(spark_setup):
        _say(f"There is no Spark here, so topic {stream.TOPIC} is not archived; everything else works.")
        return
    running = await Child.start_module(
        "nsquark.pipeline",
        [
            "archive", f"--nsqd-http-address={nsqd_http}", f"--topic={stream.TOPIC}",
            f"--output={output}", "--channel=archive", "--trigger=5s", "--log-level=warn",
        ],
    )  # fmt: skip
    announcing = asyncio.create_task(_announce(Path(output)))
    try:
        status = await running.wait()
        print(
            f"The archive ended with status {status}; everything else goes on.", file=sys.stderr, flush=True
        )
    finally:
        announcing.cancel()
        await running.stop(PATIENCE)


async def _install(command: str) -> bool:
    """Whether the command succeeded. It says what it does; a line now and then says that it still does."""
    installing = await Child.start("sh", "-c", command)
    ending = asyncio.create_task(installing.wait())
    begun = asyncio.get_running_loop().time()
    try:
        while not (await asyncio.wait([ending], timeout=SIGN_OF_LIFE))[0]:
            passed = asyncio.get_running_loop().time() - begun
            _say(f"Spark: still being installed after {passed:.0f} seconds.")
        return ending.result() == 0
    finally:
        await installing.stop(PATIENCE)


async def _announce(output: Path) -> None:
    """Print the query as soon as there is something to ask."""
    while not await asyncio.to_thread(_has_files, output):  # noqa: ASYNC110 - another process writes them
        await asyncio.sleep(0.5)
    _say(_QUERY.format(python=_PYTHON, archive=output))


def _has_files(output: Path) -> bool:
    return next(output.glob("topic=*/**/*.parquet"), None) is not None


def _say(text: str) -> None:
    print(text, flush=True)
