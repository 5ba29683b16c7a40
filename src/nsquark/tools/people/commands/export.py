"""`nsquark export`: the unfinished messages of a stopped nsqd, for Go's nsqd."""

from __future__ import annotations

from pathlib import Path

import click

from ..flags import quantities
from ..flags.options import json_option
from ..output import print_json, progress

GOES_MAX_MSG_SIZE = 1 << 20  # bytes: the default of Go's --max-msg-size


@click.command("export")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@click.argument("target", type=click.Path(path_type=Path), metavar="TO")
@click.option(
    "--max-bytes-per-file", type=click.IntRange(1), default=100 << 20, show_default=True,
    help="The same as of the nsqd that will open it.",
)  # fmt: skip
@json_option
def command(directory: Path, target: Path, max_bytes_per_file: int, as_json: bool) -> None:
    """Write what the nsqd of data directory DIR has not finished to TO, as Go's nsqd keeps it.

    The nsqd must be stopped. TO must not exist; Go's nsqd starts with it as its --data-path. DIR stays as it
    is. Topics, channels and pauses go along, ids, times and attempts too. Go's nsqd delivers deferred
    messages at once. It has no place for finished messages, staged batches and max_attempts of channels.
    """
    from nsquark.cli.process import allow_many_files
    from nsquark.data_path.export import export

    allow_many_files()  # a file for each channel of a topic
    with progress(f"exporting {directory}", None) as show:
        result = export(
            directory, target, max_bytes_per_file, lambda topic, count: show(0, f"{topic}, {count} messages")
        )
    if as_json:
        print_json(
            {
                "target": str(target),
                "topics": result.topics,
                "messages": result.messages,
                "queues": result.queues,
                "deferred": result.deferred,
                "lost": result.lost,
                "largest": result.largest,
                "staged": result.staged,
            }
        )
        return
    click.echo(
        f"{target}: {result.topics} topics, {result.messages} messages in {len(result.queues)} disk queues"
    )
    if result.deferred:
        click.echo(f"{result.deferred} deferred messages are delivered at once by Go's nsqd", err=True)
    if result.lost:
        click.echo(f"{result.lost} messages are damaged in {directory}, and are not exported", err=True)
    if result.largest > GOES_MAX_MSG_SIZE:
        size = quantities.size(result.largest)
        click.echo(f"the largest message has {size}: give Go's nsqd a --max-msg-size of it or more", err=True)
    if result.staged:
        click.echo(f"batches in {directory / 'staged'} were not published, and are not exported", err=True)
