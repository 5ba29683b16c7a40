"""`nsquark check`: whether a data directory is sound. Exit code 0: yes, 1: no, 3: the next start mends it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..flags import quantities
from ..flags.options import confirm, json_option, yes_option
from ..output import print_json, print_table, progress

if TYPE_CHECKING:
    from nsquark.data_path.findings import Report

BROKEN, MENDABLE = 1, 3
_MARKS: Final = {0: "note   ", 1: "warning", 2: "ERROR  "}


@click.command("check")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--repair", "repairs", is_flag=True, help="Move aside what is broken; nothing is deleted.")
@yes_option
@json_option
def command(directory: Path, repairs: bool, yes: bool, as_json: bool) -> int:
    """Read everything in a data directory of nsqd and say whether it is sound.

    Every batch, journal and stage is checked by its CRC, positions must follow each other, journals must fit
    their logs, and nsquark.dat must be ahead of both. Nothing is changed without --repair.

    The exit code is 0 if all is sound, 1 if something is lost or broken, and 3 if nsqd's next start mends
    what was found without losing anything that was answered.
    """
    from nsquark.data_path.check import check, repair
    from nsquark.data_path.findings import Level

    with progress(f"reading {directory}", None) as show:
        report = check(directory, lambda topic, size: show(0, f"{topic}, {quantities.size(size)}"))
    mendable = [each for each in report.findings if each.repair is not None]
    if repairs and mendable:
        if not as_json:
            _show_findings(report)
        confirm(f"Repair {len(mendable)} of {len(report.findings)} findings in {directory}?", yes)
        repair(report)
    if as_json:
        print_json(_as_json(report))
    else:
        _show(report)
    return {Level.NOTE: 0, Level.WARNING: MENDABLE, Level.ERROR: BROKEN}[report.worst]


def _show(report: Report) -> None:
    if report.topics:
        columns = ["topic", "channel", ">segments", ">size", ">positions", ">unfinished", "oldest message"]
        print_table(columns, _rows(report))
        click.echo()
    _show_findings(report)
    found = {0: "sound", 1: "nsqd's next start mends it", 2: "broken"}[report.worst]
    counts = f"{len(report.topics)} topics, {quantities.size(report.bytes_read)} read"
    click.echo(f"{report.data_path}: {found} ({counts}, {len(report.findings)} findings)")


def _rows(report: Report) -> list[list[str]]:
    rows = []
    for topic in report.topics:
        oldest = "" if topic.oldest_ns is None else quantities.clock(topic.oldest_ns)
        positions = f"{topic.first}-{topic.end}"
        rows.append([topic.name, "", str(topic.segments), quantities.size(topic.size), positions, "", oldest])
        for channel in topic.channels:
            rows.append(["", channel.name, "", "", f"{channel.oldest}-", str(channel.unfinished), ""])
    return rows


def _show_findings(report: Report) -> None:
    for finding in report.findings:
        path = finding.path
        if path.is_relative_to(report.data_path):
            path = path.relative_to(report.data_path)
        done = f" [{finding.repaired}]" if finding.repaired else ""
        click.echo(f"{_MARKS[finding.level]} {path}: {finding.text}{done}")


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "data_path": str(report.data_path),
        "verdict": ("sound", "mendable", "broken")[report.worst],
        "in_use": report.in_use,
        "bytes_read": report.bytes_read,
        "topics": [
            {
                "topic": topic.name,
                "segments": topic.segments,
                "bytes": topic.size,
                "first": topic.first,
                "end": topic.end,
                "lost": topic.lost,
                "oldest_ns": topic.oldest_ns,
                "newest_ns": topic.newest_ns,
                "channels": [
                    {"channel": each.name, "unfinished": each.unfinished, "oldest": each.oldest}
                    for each in topic.channels
                ],
            }
            for topic in report.topics
        ],
        "findings": [
            {
                "level": each.level.name.lower(),
                "path": str(each.path),
                "text": each.text,
                "repaired": each.repaired or None,
            }
            for each in report.findings
        ],
    }
