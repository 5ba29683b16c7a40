"""`nsquark stat`: topics and channels as they are now."""

from __future__ import annotations

import asyncio
import sys
import time

import click

from ..cluster.figures import TopicFigures, add_up, published
from ..cluster.nsqds import Cluster
from ..failures import Failure
from ..flags import quantities
from ..flags.options import CHANNEL, TOPIC, Command, connecting, json_option
from ..flags.settings import Settings
from ..output import print_json, print_table
from ..running import run

_LONG = (">in flight", ">deferred", ">requeued", ">timed out", ">messages", ">clients")
_SHORT = (">in flt", ">defer", ">requ", ">t/out", ">msgs", ">clients")
_AT_ONCE = 16  # questions for the oldest message of a channel


@click.command("stat", cls=Command)
@click.argument("topic", type=TOPIC, required=False)
@click.argument("channel", type=CHANNEL, required=False)
@click.option("--oldest", is_flag=True, help="Also tell how old the oldest unfinished message is.")
@json_option
@connecting
def command(topic: str | None, channel: str | None, oldest: bool, as_json: bool, settings: Settings) -> None:
    """Show topics and channels: all, those of a TOPIC, or one CHANNEL.

    The figures of several nsqds are added up.
    """
    cluster = Cluster(settings)
    topics = run(_gather(cluster, topic, channel, oldest))
    if topic is not None and topic not in topics:
        raise Failure(f"there is no topic {topic!r}" if channel is None else _no_channel(topic, channel))
    if channel is not None and topic is not None and channel not in topics[topic].channels:
        raise Failure(_no_channel(topic, channel))
    if as_json:
        print_json([each.as_json() for each in topics.values()])
    else:
        _show(topics, oldest)
    cluster.end()


def _no_channel(topic: str, channel: str) -> str:
    return f"there is no channel {channel!r} of topic {topic!r}"


async def _gather(
    cluster: Cluster, topic: str | None, channel: str | None, oldest: bool
) -> dict[str, TopicFigures]:
    topics = add_up(await cluster.stats(await cluster.nsqds(topic), topic, channel))
    if oldest:
        gate = asyncio.Semaphore(_AT_ONCE)
        now = time.time()

        async def find(found: TopicFigures, name: str) -> None:
            async with gate:
                since = await published(found.nsqds, found.name, name)
            if since is not None:
                found.channels[name].oldest = max(0.0, now - since / 1e9)

        await asyncio.gather(
            *(
                find(each, name)
                for each in topics.values()
                for name, channel_figures in each.channels.items()
                if channel_figures.unfinished
            )
        )
    return topics


def _show(topics: dict[str, TopicFigures], oldest: bool) -> None:
    """Whole words and numbers for a pipe, which has room for them; short ones for a terminal."""
    on_terminal = sys.stdout.isatty()
    shown = quantities.short if on_terminal else quantities.count
    columns = ["topic / channel", ">depth", *(_SHORT if on_terminal else _LONG)]
    columns += [*([">oldest"] if oldest else []), ""]
    rows = []
    for topic in topics.values():
        cells = [topic.name, shown(topic.depth), "", "", "", "", shown(topic.messages), ""]
        rows.append([*cells, *([""] if oldest else []), "paused" if topic.paused else ""])
        for channel in topic.channels.values():
            figures = (
                channel.depth,
                channel.in_flight,
                channel.deferred,
                channel.requeued,
                channel.timed_out,
                channel.messages,
                channel.clients,
            )
            age = [quantities.age(channel.oldest) if channel.oldest is not None else "-"] if oldest else []
            rows.append([f"  {channel.name}", *map(shown, figures), *age, "paused" if channel.paused else ""])
    if not rows:
        click.echo("there are no topics")
        return
    if not any(row[-1] for row in rows):  # nothing is paused: the column would say nothing
        columns.pop()
        rows = [row[:-1] for row in rows]
    print_table(columns, rows)
