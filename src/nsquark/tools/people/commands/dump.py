"""`nsquark dump`: the messages of a segment or a topic, from the disk."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..flags import quantities
from ..flags.options import json_option

if TYPE_CHECKING:
    from nsquark.data_path.dump import StoredMessage


@click.command("dump")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--from", "start", type=click.IntRange(0), default=0, help="Begin at this position.")
@click.option("-n", "--limit", type=click.IntRange(1), help="Print at most so many.")
@click.option("--body", "bodies", is_flag=True, help="Print the bodies alone, each with a newline.")
@json_option
def command(path: Path, start: int, limit: int | None, bodies: bool, as_json: bool) -> None:
    """Print the messages of a segment (….log), or of all segments in a topic's directory.

    Nothing is changed, and no nsqd is asked. Messages are printed up to the first batch that is damaged.
    """
    if bodies and as_json:
        raise click.UsageError("--body and --json exclude each other")
    from nsquark.data_path.dump import messages

    for message in islice(messages(path, start), limit):
        if bodies:
            sys.stdout.buffer.write(message.body + b"\n")
        elif as_json:
            print(json.dumps(_as_json(message), ensure_ascii=False))
        else:
            due = f"  due {quantities.clock(message.due_ns)}" if message.due_ns else ""
            body = quantities.body_text(message.body)
            print(f"{message.position}  {message.id}  {quantities.clock(message.timestamp_ns)}{due}  {body}")


def _as_json(message: StoredMessage) -> dict[str, Any]:
    try:
        body = {"body": message.body.decode("utf-8")}
    except UnicodeDecodeError:
        body = {"body_base64": b64encode(message.body).decode("ascii")}
    return {
        "position": message.position,
        "id": message.id,
        "timestamp": message.timestamp_ns,
        "due": message.due_ns or None,
        **body,
    }
