"""What is printed and written at the end: the table, and the JSON with every round."""

import os
import platform
import re
import subprocess
from dataclasses import asdict
from pathlib import Path

import load
import servers
from contest import ROOT, Contest, shown
from measuring import Effort, Measure

MET = {True: "yes", False: "NO", None: "-"}


def table(contest: Contest, measures: list[Measure]) -> str:
    sides = ["other", "sink", "ours"] if contest.other else ["sink", "ours"]
    rows = [["workload", "unit", *sides, *(["ratio", "95 %", "target", "met"] if contest.other else [])]]
    for measure in measures:
        row = [measure.title, measure.unit, *(shown(contest.figure(who, measure)) for who in sides)]
        if contest.other:
            ratio = contest.ratio(measure)
            row += [
                "-" if ratio is None else f"{ratio:.3g}",
                "-" if (within := contest.interval(measure)) is None else "{:.3g}–{:.3g}".format(*within),
                bound(measure),
                "-" if ratio is None else MET[measure.met(ratio)],
            ]
        rows.append(row)
    return aligned(rows)


def table_of_peers(contest: Contest, measures: list[Measure]) -> str:
    """What the workloads with an equal there come to with other queues, and ours divided by it."""
    names = [peer.name for peer in contest.peers]
    rows = [["workload", "unit", "ours", *(cell for name in names for cell in (name, "ratio", "95 %"))]]
    for measure in measures:
        if not any(measure.name in contest.figures.get(name, {}) for name in names):
            continue
        row = [measure.title, measure.unit, shown(contest.figure("ours", measure))]
        for name in names:
            row += [
                shown(contest.figure(name, measure)),
                "-" if (ratio := contest.ratio(measure, name)) is None else f"{ratio:.3g}",
                "-"
                if (within := contest.interval(measure, name)) is None
                else "{:.3g}–{:.3g}".format(*within),
            ]
        rows.append(row)
    return "\n".join([aligned(rows), "", *(peer.setting for peer in contest.peers)])


def aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def report(contest: Contest, measures: list[Measure], effort: Effort, rounds: int) -> dict[str, object]:
    """Everything a reader needs to judge the figures, ready for JSON."""
    return {
        "commit": commit(),
        "python": platform.python_version(),
        "kernel": "compiled" if os.environ.get("NSQUARK_PURE", "") in ("", "0") else "pure",
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "message_size": load.MESSAGE_SIZE,
        "seconds": effort.seconds,
        "effort": asdict(effort),
        "rounds": rounds,
        "figure": "median of the rounds",
        "ours": servers.version(contest.ours),
        "other": servers.version(contest.other) if contest.other else None,
        "peers": {peer.name: peer.setting for peer in contest.peers},
        "other_flags": contest.other_flags if contest.other else None,
        "measures": [
            {
                "name": measure.name,
                "title": measure.title,
                "unit": measure.unit,
                "rounds": {
                    who: figures[measure.name]
                    for who, figures in contest.figures.items()
                    if measure.name in figures
                },
                **{who: contest.figure(who, measure) for who in ("other", "sink", "ours")},
                "ratio": (ratio := contest.ratio(measure)),
                "interval": contest.interval(measure),
                "target": measure.target,
                "more_is_better": measure.more_is_better,
                "met": None if ratio is None else measure.met(ratio),
            }
            for measure in measures
        ],
        "errors": contest.errors,
    }


def markdown(contest: Contest, measures: list[Measure]) -> str:
    """The table of `table` without the sink, for a page of the docs."""
    lines = [
        "| measure | what | unit | other | ours | ratio | 95 % | target | met |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for measure in measures:
        ratio, within = contest.ratio(measure), contest.interval(measure)
        cells = [
            f"`{measure.name}`",
            measure.title.strip(),
            measure.unit,
            shown(contest.figure("other", measure)),
            shown(contest.figure("ours", measure)),
            "-" if ratio is None else f"{ratio:.3g}",
            "-" if within is None else "{:.3g}–{:.3g}".format(*within),
            bound(measure),
            "-" if ratio is None else MET[measure.met(ratio)],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def bound(measure: Measure) -> str:
    if measure.target is None:
        return "-"
    return f"{'>=' if measure.more_is_better else '<='} {measure.target:.3g}"


def commit() -> str | None:
    """The commit under test, marked if the tree has changes that are not in it; None outside a checkout."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    return described.stdout.strip() or None


def cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()
