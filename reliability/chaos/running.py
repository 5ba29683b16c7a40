"""A run: one series after the other until there are enough failovers, each with a new group."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from reliability.outcome import percentile

from .findings import Finding
from .group import LEASE, Settings
from .series import Series

SERIES = 10  # failovers


@dataclass
class Result:
    failovers: int = 0
    changes: int = 0  # failovers to another member
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    gaps: dict[str, list[float]] = field(default_factory=dict)  # by fault, of the primary alone
    findings: list[Finding] = field(default_factory=list)
    seed: int = 0  # of the series with the findings
    log: list[str] = field(default_factory=list)  # of its nsqds
    folder: Path | None = None  # its data, and its history

    @property
    def all_gaps(self) -> list[float]:
        return sorted(gap for gaps in self.gaps.values() for gap in gaps)

    def gap_lines(self) -> list[str]:
        """Times without service after the loss of the primary alone, by fault."""
        lines = []
        for name, gaps in (*sorted(self.gaps.items()), ("all", self.all_gaps)):
            gaps = sorted(gaps)
            if gaps:
                lines.append(
                    f"{name}: {len(gaps)}, p50 {percentile(gaps, 0.5):.2f} s, longest {gaps[-1]:.2f} s"
                )
        return lines

    @property
    def over_promise(self) -> int:
        return sum(gap > LEASE + 2.0 for gap in self.all_gaps)


async def run(
    failovers: int, seed: int, settings: Settings, progress: Callable[[Result], None] | None = None
) -> Result:
    """Run so many failovers, or until something is found."""
    loggers = [logging.getLogger(name) for name in ("asyncio", "nsquark", "nsq", "tornado")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL)  # connections that break are what is tried
    result = Result()
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="nsquark-chaos-"))
    try:
        while result.failovers < failovers and not result.findings:
            part = replace(settings, failovers=min(SERIES, failovers - result.failovers))
            place = folder / f"series-{seed}"
            place.mkdir()
            series = Series(place, str(seed), part)
            await series.run()
            _add(result, series)
            result.seconds = time.monotonic() - began
            if result.findings:
                result.seed, result.folder, result.log = seed, folder, series.log
                (folder / "history").write_text("".join(f"{event}\n" for event in series.record.events))
            else:
                shutil.rmtree(place)
            if progress is not None:
                progress(result)
            seed += 1
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
        if result.folder is None:
            shutil.rmtree(folder)
    return result


def _add(result: Result, series: Series) -> None:
    result.failovers += series.failovers
    result.changes += series.changes
    result.counts.update(series.record.counts)
    result.findings += series.findings
    for lost, gap in series.record.checker.gaps:
        if lost.alone:
            result.gaps.setdefault(lost.fault, []).append(gap)
