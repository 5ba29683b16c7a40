"""A run: one series after the other until there are enough rounds, each on a new data directory."""

from __future__ import annotations

import contextlib
import logging
import shlex
import shutil
import ssl
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.daemon import Nsqd
from tests.security.certificates import Authority

from .checking.findings import Finding
from .forks import ForkedNsqd, Launcher
from .series import Series, Settings

ROUNDS_IN_SERIES = 25


@dataclass
class Result:
    rounds: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    seed: int = 0  # of the series with the findings
    log: list[str] = field(default_factory=list)  # of its nsqd
    folder: Path | None = None  # its data, and its history


async def run(
    rounds: int,
    seed: int,
    settings: Settings,
    command: str = "",
    mutant: str = "",
    progress: Callable[[Result], None] | None = None,
) -> Result:
    """Run so many rounds, or until something is found.

    `command` starts nsqd. Without it, nsqd or a `mutant` of it is forked.
    """
    asyncios = logging.getLogger("asyncio")
    level = asyncios.level
    asyncios.setLevel(logging.ERROR)  # it warns of writes to connections that are gone
    result = Result()
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="nsquark-crashes-"))
    try:
        tls, flags = _certificates(folder / "certificates")
        with contextlib.ExitStack() as stack:
            launcher = None if command else stack.enter_context(Launcher(mutant))
            while result.rounds < rounds and not result.findings:
                data_path = folder / f"data-{seed}"
                series = Series(_nsqd(data_path, command, launcher), str(seed), settings, tls, flags)
                await _run_series(series, min(ROUNDS_IN_SERIES, rounds - result.rounds), result)
                result.seconds = time.monotonic() - began
                if result.findings:
                    result.seed, result.folder = seed, folder
                    result.log = [line for line in series.nsqd.lines if "_FAILED " not in line][-20:]
                    text = "".join(f"{event}\n" for event in series.record.events)
                    (folder / "history").write_text(text)
                else:
                    shutil.rmtree(data_path)
                if progress is not None:
                    progress(result)
                seed += 1
    finally:
        asyncios.setLevel(level)
        if result.folder is None:
            shutil.rmtree(folder)
    return result


async def _run_series(series: Series, rounds: int, result: Result) -> None:
    try:
        await series.run(rounds)
    finally:
        if hasattr(series.nsqd, "process"):
            series.nsqd.kill()
    result.rounds += series.rounds
    result.counts.update(series.record.counts)
    result.findings += series.findings


def _nsqd(data_path: Path, command: str, launcher: Launcher | None) -> Nsqd:
    if launcher is not None:
        return ForkedNsqd(launcher, data_path)
    nsqd = Nsqd(data_path)
    nsqd.program = shlex.split(command)
    return nsqd


def _certificates(folder: Path) -> tuple[ssl.SSLContext, list[str]]:
    authority = Authority(folder)
    certificate, key = authority.sign("nsqd")
    return authority.client_context(), [
        f"--tls-cert={certificate}",
        f"--tls-key={key}",
        "--https-address=127.0.0.1:0",
        "--drain-timeout=0s",
    ]
