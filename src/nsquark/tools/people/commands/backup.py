"""`nsquark backup`: a consistent copy of a data directory, also of a running nsqd's."""

from __future__ import annotations

from pathlib import Path

import click

from ..failures import Failure
from ..flags import quantities
from ..flags.options import json_option
from ..output import print_json, progress


@click.command("backup")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@click.argument("target", type=click.Path(path_type=Path), metavar="TO")
@click.option("--verify", is_flag=True, help="Check the copy, every byte of it.")
@json_option
def command(directory: Path, target: Path, verify: bool, as_json: bool) -> None:
    """Copy nsqd's data directory DIR to TO, which must not exist. nsqd may go on meanwhile.

    Segments that are not written to any more are linked where that is possible, so that the copy takes no
    room for them. To restore, give the copy to nsqd as its --data-path, or copy it back.
    """
    from nsquark.data_path.backup import back_up
    from nsquark.data_path.check import check
    from nsquark.data_path.findings import Level

    with progress(f"copying {directory}", None):
        result = back_up(directory, target)
    if verify:
        with progress(f"checking {target}", None):
            report = check(target)
        if report.worst is Level.ERROR:
            worst = next(each for each in report.findings if each.level is Level.ERROR)
            raise Failure(f"the copy in {target} is not sound: {worst.path}: {worst.text}")
    if as_json:
        print_json(
            {
                "target": str(target),
                "topics": result.topics,
                "linked": result.linked,
                "copied": result.copied,
                "copied_bytes": result.copied_bytes,
                "skipped": result.skipped,
                "verified": verify,
            }
        )
        return
    skipped = (
        f", left out since they were deleted meanwhile: {', '.join(result.skipped)}" if result.skipped else ""
    )
    click.echo(
        f"{target}: {result.topics} topics, {result.linked} files linked,"
        f" {result.copied} copied ({quantities.size(result.copied_bytes)})"
        f"{', verified' if verify else ''}{skipped}"
    )
