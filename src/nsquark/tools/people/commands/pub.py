"""`nsquark pub`: publish words, lines or files."""

from __future__ import annotations

import sys
import time

import click

from nsquark.client import Producer

from ..cluster.nsqds import Cluster
from ..failures import not_answering, say
from ..flags import quantities
from ..flags.options import SECONDS, SIZE, TOPIC, Command, connecting
from ..flags.settings import Settings
from ..messages.message_source import Lines, Words
from ..messages.publishing import Publishing
from ..output import progress
from ..running import run


@click.command("pub", cls=Command)
@click.argument("topic", type=TOPIC)
@click.argument("messages", nargs=-1)
@click.option(
    "-f", "--file", "files", multiple=True, type=click.Path(), help="Publish its lines; - is stdin."
)
@click.option("--whole", is_flag=True, help="A file (or stdin) is one message, line feeds and all.")
@click.option(
    "--defer", type=SECONDS, default=0.0, metavar="DURATION", help="Deliverable after so long (10s)."
)
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="At most so many messages a second.")
@click.option("--max-msg-size", type=SIZE, default=1 << 20, metavar="SIZE", help="nsqd's, if not 1M.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing unless it fails.")
@connecting
def command(
    topic: str,
    messages: tuple[str, ...],
    files: tuple[str, ...],
    whole: bool,
    defer: float,
    rate: float | None,
    max_msg_size: int,
    quiet: bool,
    settings: Settings,
) -> None:
    """Publish to a TOPIC: each of MESSAGES, or each line of files, or each line of stdin.

    A message counts as published when nsqd has stored it. Empty lines are left out. With several nsqds the
    batches go to them in turn.

    \b
    nsquark pub orders '{"id": 1}' '{"id": 2}'
    nsquark pub orders --rate 100 < orders.jsonl
    nsquark pub images --whole -f cat.png
    """
    if messages and files:
        raise click.UsageError("messages and --file exclude each other")
    if whole and messages:
        raise click.UsageError("--whole is for files and stdin")
    source = Words(messages) if messages else Lines(files or ("-",), whole=whole, max_size=max_msg_size)
    if not messages and not files and sys.stdin.isatty() and not quiet:
        say("each line is a message; Ctrl-D ends")
    told = _Told(topic)
    run(_publish(source, told, settings, defer, rate or 0.0, max_msg_size, quiet), told.interrupted)
    if not quiet:
        left_out = f"; {source.empty:,} empty ones left out" if source.empty else ""
        say(told.so_far() + left_out)


class _Told:
    """What can be said of a publish that may be interrupted."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.publishing: Publishing | None = None
        self.begun = time.monotonic()

    def so_far(self) -> str:
        stored = self.publishing.stored if self.publishing is not None else 0
        seconds = time.monotonic() - self.begun
        rate = (
            f" in {quantities.age(seconds)}, {stored / seconds:,.0f}/s"
            if stored > 1 and seconds > 0.5
            else ""
        )
        return f"published {quantities.messages(stored)} to topic {self.topic!r}{rate}"

    def interrupted(self) -> str:
        return f"interrupted: {self.so_far()}; the last few may have been stored besides"


async def _publish(
    source: Lines | Words,
    told: _Told,
    settings: Settings,
    defer: float,
    rate: float,
    max_msg_size: int,
    quiet: bool,
) -> None:
    addresses = await Cluster(settings).tcp_addresses()
    config = settings.client_config(max_msg_size=max_msg_size, max_body_size=max(5 << 20, max_msg_size + 8))
    producer = Producer(addresses, mode="round-robin", config=config)
    try:
        try:
            await producer.ping(settings.timeout)
        except (OSError, TimeoutError) as error:
            raise not_answering(", ".join(addresses), error) from None
        publishing = told.publishing = Publishing(
            producer, told.topic, settings.timeout, delay=defer, rate=rate
        )
        told.begun = time.monotonic()
        # A person that types lines sees them; a bar would come in between.
        typed = source.total_bytes is None and sys.stdin.isatty()
        shown = isinstance(source, Lines) and not quiet and not typed
        with progress(f"publishing to {told.topic}", source.total_bytes, shown) as update:
            async for bodies in source.runs():
                await publishing.publish(bodies)
                update(source.read_bytes, quantities.messages(publishing.stored))
            await publishing.drain()
    finally:
        await producer.close(0.3)
