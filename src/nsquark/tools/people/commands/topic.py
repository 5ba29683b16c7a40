"""`nsquark topic`: topics of one nsqd or of a cluster."""

from __future__ import annotations

from typing import Any

import click

from nsquark.http.client.protocol import BadStatus

from ..cluster.figures import TopicFigures, add_up
from ..cluster.nsqds import Cluster
from ..failures import Failure
from ..flags import quantities
from ..flags.options import KEPT_SIZE, KEPT_TIME, TOPIC, Command, confirm, connecting, json_option, yes_option
from ..flags.settings import Settings
from ..output import print_json, print_table
from ..running import run


@click.group("topic")
def command() -> None:
    """Topics: list, create, retention, pause, unpause, empty, delete.

    With several nsqds (--lookupd-http), a command is for all that have the topic.
    """


@command.command("list", cls=Command)
@json_option
@connecting
def list_topics(as_json: bool, settings: Settings) -> None:
    """List topics, with what waits in them."""
    cluster = Cluster(settings)
    topics = run(_all_topics(cluster))
    if as_json:
        print_json([each.as_json() for each in topics.values()])
    elif not topics:
        click.echo("there are no topics")
    else:
        rows = [
            [
                each.name,
                quantities.count(each.depth),
                quantities.count(len(each.channels)),
                quantities.count(each.messages),
                quantities.count(len(each.nsqds)),
                "paused" if each.paused else "",
            ]
            for each in topics.values()
        ]
        print_table(["topic", ">depth", ">channels", ">messages", ">nsqds", ""], rows)
    cluster.end()


async def _all_topics(cluster: Cluster) -> dict[str, TopicFigures]:
    """Those of the nsqds, and those that only an nsqlookupd knows."""
    try:
        topics = add_up(await cluster.stats(await cluster.nsqds()))
    except Failure:
        if not cluster.lookupds:
            raise
        topics = {}  # an nsqlookupd may know topics while it knows no nsqd
    if cluster.lookupds:
        for answer in await cluster.ask_lookupds("/topics"):
            for name in answer.get("topics") or ():
                topics.setdefault(name, TopicFigures(name))
    return dict(sorted(topics.items()))


@command.command("create", cls=Command)
@click.argument("topic", type=TOPIC)
@connecting
def create(topic: str, settings: Settings) -> None:
    """Create a TOPIC.

    With --lookupd-http it is registered there, and an nsqd has it from its first message on.
    """
    cluster = Cluster(settings)

    async def work() -> list[Any]:
        daemons = cluster.lookupds or await cluster.nsqds()
        return await cluster.on_each(daemons, lambda daemon: daemon.post("/topic/create", topic=topic))

    done = run(work())
    click.echo(f"created topic {topic!r} at {_where(done)}")
    cluster.end()


@command.command("retention", cls=Command)
@click.argument("topic", type=TOPIC)
@click.option("--bytes", "kept_bytes", type=KEPT_SIZE, help="Keep so much: 500M, 20g, unlimited, default.")
@click.option("--time", "kept_time", type=KEPT_TIME, help="Keep it so long: 72h, 7d, unlimited, default.")
@click.option("--archive-bytes", type=KEPT_SIZE, help="Keep so much of it in the archive, likewise.")
@click.option("--archive-time", type=KEPT_TIME, help="Keep it so long in the archive, likewise.")
@json_option
@connecting
def retention(
    topic: str,
    kept_bytes: str | None,
    kept_time: str | None,
    archive_bytes: str | None,
    archive_time: str | None,
    as_json: bool,
    settings: Settings,
) -> None:
    """Show or change how much of a TOPIC is kept once all its channels have finished it.

    What is kept can be read again: by Spark, by a channel that is moved back, by `nsquark replay`. With both
    limits a message goes when either is exceeded. `default` is what the nsqd's flags say. 0 is no limit
    beside another one; 0 for both keeps nothing.
    """
    cluster = Cluster(settings)
    given = {
        "bytes": kept_bytes,
        "time": kept_time,
        "archive_bytes": archive_bytes,
        "archive_time": archive_time,
    }
    query: dict[str, Any] = {name: value for name, value in given.items() if value is not None}

    async def work() -> list[Any]:
        return await cluster.where_there(
            await cluster.nsqds(topic),
            lambda nsqd: (nsqd.post if query else nsqd.get)("/topic/retention", topic=topic, **query),
            f"topic {topic!r}",
        )

    done = run(work())
    if as_json:
        print_json([{"nsqd": nsqd.address, **answer} for nsqd, answer in done])
    else:
        rows = [[str(nsqd), *_retention_cells(answer)] for nsqd, answer in done]
        heads = ["nsqd", "bytes kept", "time kept", ">in the log", ">first", ">next"]
        if any(answer.get("archived_bytes") or _archive_limited(answer) for _, answer in done):
            heads += [">in the archive", "archive keeps"]
            rows = [row + _archive_cells(answer) for row, (_, answer) in zip(rows, done, strict=True)]
        print_table(heads, rows)
    cluster.end()


def _retention_cells(answer: dict[str, Any]) -> list[str]:
    size, time = answer["retention_bytes"], answer["retention_time"]
    if size or time:  # 0 beside another limit is none: only 0 of both keeps nothing
        size, time = size or -1, time or -1
    return [
        quantities.kept_size(size) + ("" if answer["own_bytes"] is not None else " (flag)"),
        quantities.kept_time(time) + ("" if answer["own_time"] is not None else " (flag)"),
        quantities.size(answer["bytes"]),
        str(answer["first"]),
        str(answer["next"]),
    ]


def _archive_limited(answer: dict[str, Any]) -> bool:
    return any(answer.get(name, -1) >= 0 for name in ("archive_bytes", "archive_time"))


def _archive_cells(answer: dict[str, Any]) -> list[str]:
    """What only the archive has of a topic, and how much it keeps at most."""
    limits = []
    if answer.get("archive_bytes", -1) >= 0:
        limits.append(quantities.kept_size(answer["archive_bytes"]))
    if answer.get("archive_time", -1) >= 0:
        limits.append(quantities.kept_time(answer["archive_time"]))
    return [quantities.size(answer.get("archived_bytes", 0)), ", ".join(limits) or "without limit"]


@command.command("pause", cls=Command)
@click.argument("topic", type=TOPIC)
@connecting
def pause(topic: str, settings: Settings) -> None:
    """Stop passing messages of a TOPIC on to its channels; publishing goes on."""
    _change(topic, settings, "pause", "paused")


@command.command("unpause", cls=Command)
@click.argument("topic", type=TOPIC)
@connecting
def unpause(topic: str, settings: Settings) -> None:
    """Go on after a pause."""
    _change(topic, settings, "unpause", "unpaused")


@command.command("empty", cls=Command)
@click.argument("topic", type=TOPIC)
@yes_option
@connecting
def empty(topic: str, yes: bool, settings: Settings) -> None:
    """Drop what waits in a TOPIC itself, before any channel has it. Channels keep what they have."""
    cluster = Cluster(settings)
    found = run(_find(cluster, topic))
    confirm(f"Drop {quantities.messages(found.depth)} that wait in topic {topic!r}{_at(found)}?", yes)
    _change(topic, settings, "empty", "emptied")


@command.command("delete", cls=Command)
@click.argument("topic", type=TOPIC)
@yes_option
@connecting
def delete(topic: str, yes: bool, settings: Settings) -> None:
    """Delete a TOPIC with its channels, its log and all its messages."""
    cluster = Cluster(settings)
    found = run(_find(cluster, topic))
    channels = f"{len(found.channels)} channel{'' if len(found.channels) == 1 else 's'}"
    waiting = found.depth + sum(each.unfinished for each in found.channels.values())
    confirm(
        f"Delete topic {topic!r} ({channels}, {waiting:,} unfinished messages) and its log{_at(found)}?", yes
    )

    async def work() -> list[Any]:
        # The nsqlookupds first, so that no consumer is sent there meanwhile.
        if cluster.lookupds:
            await cluster.on_each(cluster.lookupds, lambda each: each.post("/topic/delete", topic=topic))
        if not found.nsqds:
            return [(each, None) for each in cluster.lookupds]
        return await cluster.where_there(
            found.nsqds, lambda nsqd: nsqd.post("/topic/delete", topic=topic), f"topic {topic!r}"
        )

    done = run(work())
    click.echo(f"deleted topic {topic!r} at {_where(done)}")
    cluster.end()


async def _find(cluster: Cluster, topic: str) -> TopicFigures:
    """A topic, which must be there."""
    found = add_up(await cluster.stats(await _nsqds(cluster, topic), topic))
    if topic in found:
        return found[topic]
    if cluster.lookupds:
        for answer in await cluster.ask_lookupds("/topics"):
            if topic in (answer.get("topics") or ()):
                return TopicFigures(topic)
    raise Failure(f"there is no topic {topic!r}")


async def _nsqds(cluster: Cluster, topic: str) -> list[Any]:
    try:
        return list(await cluster.nsqds(topic))
    except (Failure, BadStatus):
        if not cluster.lookupds:
            raise
        # Registered by hand, perhaps; or the nsqlookupds do not answer, which the next question tells.
        await cluster.ask_lookupds("/topics")
        return []


def _change(topic: str, settings: Settings, action: str, done: str) -> None:
    cluster = Cluster(settings)

    async def work() -> list[Any]:
        return await cluster.where_there(
            await cluster.nsqds(topic),
            lambda nsqd: nsqd.post(f"/topic/{action}", topic=topic),
            f"topic {topic!r}",
        )

    where = _where(run(work()))
    click.echo(f"{done} topic {topic!r} at {where}")
    cluster.end()


def _at(found: TopicFigures) -> str:
    return f" at {len(found.nsqds)} nsqds" if len(found.nsqds) > 1 else ""


def _where(done: list[Any]) -> str:
    kind = done[0][0].kind
    return str(done[0][0]) if len(done) == 1 else f"{len(done)} {kind}s"
