"""`nsquark channel`: channels of one nsqd or of a cluster."""

from __future__ import annotations

from typing import Any

import click

from ...log_place import Place
from ..cluster.daemons import Daemon
from ..cluster.figures import ChannelFigures, TopicFigures, add_up
from ..cluster.nsqds import Cluster
from ..failures import Failure
from ..flags import quantities
from ..flags.options import (
    CHANNEL,
    KEPT_TIME,
    PLACE,
    TOPIC,
    UNLIMITED,
    Command,
    confirm,
    connecting,
    json_option,
    yes_option,
)
from ..flags.settings import Settings
from ..output import print_json, print_table
from ..running import run


@click.group("channel")
def command() -> None:
    """Channels: list, create, pause, unpause, seek, hold, empty, delete.

    With several nsqds (--lookupd-http), a command is for all that have the channel.
    """


@command.command("list", cls=Command)
@click.argument("topic", type=TOPIC)
@json_option
@connecting
def list_channels(topic: str, as_json: bool, settings: Settings) -> None:
    """List the channels of a TOPIC, with how much of the log is kept for each."""
    cluster = Cluster(settings)
    found = run(_topic(cluster, topic))
    if as_json:
        print_json(found.as_json()["channels"])
    elif not found.channels:
        click.echo(f"topic {topic!r} has no channels")
    else:
        rows = [
            [
                each.name,
                *(
                    quantities.count(value)
                    for value in (each.depth, each.in_flight, each.deferred, each.messages, each.clients)
                ),
                quantities.size(each.held_bytes),
                "" if each.idle_since is None else quantities.age_since(each.idle_since * 1_000_000_000),
                "paused" if each.paused else "",
            ]
            for each in found.channels.values()
        ]
        heads = [">depth", ">in flight", ">deferred", ">messages", ">clients", ">log kept", ">unread for"]
        print_table(["channel", *heads, ""], rows)
    cluster.end()


@command.command("create", cls=Command)
@click.argument("topic", type=TOPIC)
@click.argument("channel", type=CHANNEL)
@click.option("--from", "place", type=PLACE, help="Begin there in the log, if the channel is new.")
@connecting
def create(topic: str, channel: str, place: Place | None, settings: Settings) -> None:
    """Create a CHANNEL of a TOPIC.

    Without --from it gets what waits in the topic and all that is published from now on. --from takes
    earliest, latest, how long ago (10m, 2d), a position, or a time (2026-11-01T08:00).
    """
    cluster = Cluster(settings)

    async def work() -> list[tuple[Daemon, Any]]:
        nsqds = await cluster.nsqds(topic)
        query = _place_query(place, "from", nsqds) if place is not None else {}
        if cluster.lookupds:
            await cluster.on_each(
                cluster.lookupds, lambda each: each.post("/channel/create", topic=topic, channel=channel)
            )
        return await cluster.where_there(
            nsqds,
            lambda nsqd: nsqd.post("/channel/create", topic=topic, channel=channel, **query),
            f"topic {topic!r}",
        )

    done = run(work())
    for nsqd, answer in done:
        if not answer:
            click.echo(f"created channel {channel!r} of topic {topic!r} at {nsqd}")
        elif answer["created"]:
            click.echo(f"created channel {channel!r} of topic {topic!r} at {nsqd}, {_standing(answer)}")
        else:
            click.echo(
                f"channel {channel!r} of topic {topic!r} was there at {nsqd}, and stays {_standing(answer)}"
            )
    cluster.end()


@command.command("pause", cls=Command)
@click.argument("topic", type=TOPIC)
@click.argument("channel", type=CHANNEL)
@connecting
def pause(topic: str, channel: str, settings: Settings) -> None:
    """Stop delivering messages of a CHANNEL."""
    _change(Cluster(settings), topic, channel, "pause", "paused")


@command.command("unpause", cls=Command)
@click.argument("topic", type=TOPIC)
@click.argument("channel", type=CHANNEL)
@connecting
def unpause(topic: str, channel: str, settings: Settings) -> None:
    """Go on after a pause."""
    _change(Cluster(settings), topic, channel, "unpause", "unpaused")


@command.command("empty", cls=Command)
@click.argument("topic", type=TOPIC)
@click.argument("channel", type=CHANNEL)
@yes_option
@connecting
def empty(topic: str, channel: str, yes: bool, settings: Settings) -> None:
    """Drop all messages that a CHANNEL has not finished."""
    cluster = Cluster(settings)
    found = run(_channel(cluster, topic, channel))
    confirm(f"Drop {found.unfinished:,} unfinished messages of channel {channel!r} of topic {topic!r}?", yes)
    _change(cluster, topic, channel, "empty", "emptied")


@command.command("delete", cls=Command)
@click.argument("topic", type=TOPIC)
@click.argument("channel", type=CHANNEL)
@yes_option
@connecting
def delete(topic: str, channel: str, yes: bool, settings: Settings) -> None:
    """Delete a CHANNEL with all that it has not finished; its consumers are disconnected."""
    cluster = Cluster(settings)
    found = run(_channel(cluster, topic, channel))
    consumers = f" and disconnect {found.clients} consumers" if found.clients else ""
    confirm(
        f"Delete channel {channel!r} of topic {topic!r} with {found.unfinished:,} unfinished"
        f" messages{consumers}?",
        yes,
    )

    async def forget() -> None:
        for lookupd in cluster.lookupds:
            try:
                await lookupd.post("/channel/delete", topic=topic, channel=channel)
            except Exception as error:
                if getattr(error, "status", 0) != 404:
                    cluster.trouble(error)

    if cluster.lookupds:
        run(forget())
    _change(cluster, topic, channel, "delete", "deleted")


@command.command("seek", cls=Command)
@click.argument("topic", type=TOPIC)
@click.argument("channel", type=CHANNEL)
@click.argument("place", type=PLACE)
@yes_option
@connecting
def seek(topic: str, channel: str, place: Place, yes: bool, settings: Settings) -> None:
    """Move a CHANNEL to a PLACE in its topic's log, forwards or back.

    PLACE is earliest, latest, how long ago (10m, 2d), a position, or a time (2026-11-01T08:00, local unless
    it says otherwise). Everything before it counts as finished, everything from there on is delivered.
    """
    cluster = Cluster(settings)
    found = run(_channel(cluster, topic, channel))
    confirm(
        f"Move channel {channel!r} of topic {topic!r}, which has {found.unfinished:,} unfinished messages?",
        yes,
    )

    async def work() -> list[tuple[Daemon, Any]]:
        nsqds = await cluster.nsqds(topic)
        query = _place_query(place, "to", nsqds)
        return await cluster.where_there(
            nsqds,
            lambda nsqd: nsqd.post("/channel/seek", topic=topic, channel=channel, **query),
            f"channel {channel!r} of topic {topic!r}",
        )

    for nsqd, answer in run(work()):
        click.echo(f"moved channel {channel!r} of topic {topic!r} at {nsqd}: now {_standing(answer)}")
    cluster.end()


@command.command("hold", cls=Command)
@click.argument("topic", type=TOPIC)
@click.argument("channel", type=CHANNEL)
@click.argument("unread", type=KEPT_TIME, metavar="TIMEOUT")
@connecting
def hold(topic: str, channel: str, unread: str, settings: Settings) -> None:
    """Say how long the log is kept for a CHANNEL that is not read.

    TIMEOUT is a length of time (72h, 7d), `unlimited`, or `default` for what nsqd's --channel-hold-timeout
    says. After it the topic's retention alone decides what is kept. The channel stays.
    """
    cluster = Cluster(settings)
    to = "0" if unread == UNLIMITED else unread

    async def work() -> list[tuple[Daemon, Any]]:
        return await cluster.where_there(
            await cluster.nsqds(topic),
            lambda nsqd: nsqd.post("/channel/hold_timeout", topic=topic, channel=channel, to=to),
            f"channel {channel!r} of topic {topic!r}",
        )

    for nsqd, answer in run(work()):
        kept = quantities.kept_time(answer["hold_timeout"] or -1)
        click.echo(f"channel {channel!r} of topic {topic!r} at {nsqd}: unread, the log is kept {kept}")
    cluster.end()


def _place_query(place: Place, name: str, nsqds: list[Daemon]) -> dict[str, Any]:
    """How nsqd is told a place. A position means something at one nsqd only."""
    if place.position is not None and len(nsqds) > 1:
        raise Failure(
            f"position {place.position} belongs to one nsqd, and the topic is at {len(nsqds)}:"
            f" name one, such as --nsqd-http {nsqds[0].address}"
        )
    if place.time_ns is not None:
        return {"timestamp_ms": place.time_ns // 1_000_000}
    return {name: place.word or place.position}


def _standing(answer: dict[str, Any]) -> str:
    return f"at position {answer['next']} with a depth of {answer['depth']:,}"


async def _topic(cluster: Cluster, topic: str) -> TopicFigures:
    found = add_up(await cluster.stats(await cluster.nsqds(topic), topic))
    if topic not in found:
        raise Failure(f"there is no topic {topic!r}")
    return found[topic]


async def _channel(cluster: Cluster, topic: str, channel: str) -> ChannelFigures:
    found = await _topic(cluster, topic)
    if channel not in found.channels:
        raise Failure(f"there is no channel {channel!r} of topic {topic!r}")
    return found.channels[channel]


def _change(cluster: Cluster, topic: str, channel: str, action: str, done: str) -> None:
    async def work() -> list[tuple[Daemon, Any]]:
        return await cluster.where_there(
            await cluster.nsqds(topic),
            lambda nsqd: nsqd.post(f"/channel/{action}", topic=topic, channel=channel),
            f"channel {channel!r} of topic {topic!r}",
        )

    answers = run(work())
    where = str(answers[0][0]) if len(answers) == 1 else f"{len(answers)} nsqds"
    click.echo(f"{done} channel {channel!r} of topic {topic!r} at {where}")
    cluster.end()
