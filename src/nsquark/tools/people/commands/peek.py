"""`nsquark peek`: messages of a topic's log or of a channel, none of them taken."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import click

from ...log_place import Place
from ..cluster.daemons import Daemon
from ..cluster.nsqds import Cluster
from ..failures import Failure
from ..flags import quantities
from ..flags.options import CHANNEL, PLACE, TOPIC, Command, connecting, json_option
from ..flags.settings import Settings
from ..output import print_table
from ..running import run

_STATES = ("ready", "requeued", "in_flight", "deferred")


@click.command("peek", cls=Command)
@click.argument("topic", type=TOPIC)
@click.argument("channel", type=CHANNEL, required=False)
@click.option("--state", type=click.Choice(_STATES), help="Messages of the channel in this state (ready).")
@click.option("--from", "place", type=PLACE, help="Begin there in the topic's log (default: the newest).")
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=10, show_default=True, help="At most.")
@json_option
@connecting
def command(
    topic: str,
    channel: str | None,
    state: str | None,
    place: Place | None,
    limit: int,
    as_json: bool,
    settings: Settings,
) -> None:
    """Look at messages of a TOPIC's log, or at those that a CHANNEL has not finished.

    Nothing is taken and nothing changes. --from takes earliest, latest, how long ago (10m, 2d), a position,
    or a time (2026-11-01T08:00). With --json a message is one line.
    """
    if channel is None and state is not None:
        raise click.UsageError("--state is of a channel: name one")
    if channel is not None and place is not None:
        raise click.UsageError("--from is for a topic's log: leave out the channel")
    cluster = Cluster(settings)
    found = run(_peek(cluster, topic, channel, state or "ready", place, limit))
    if as_json:
        for nsqd, message in found:
            click.echo(json.dumps({**message, "nsqd": nsqd.address}, ensure_ascii=False))
    elif not found:
        what = f"topic {topic!r}" if channel is None else f"channel {channel!r} of topic {topic!r}"
        click.echo(
            f"there are no {'' if channel is None else state or 'ready'} messages in {what}".replace(
                "  ", " "
            )
        )
    else:
        _show(found, channel is not None)
    cluster.end()


async def _peek(
    cluster: Cluster, topic: str, channel: str | None, state: str, place: Place | None, limit: int
) -> list[tuple[Daemon, dict[str, Any]]]:
    nsqds = await cluster.nsqds(topic)
    if place is not None and place.position is not None and len(nsqds) > 1:
        raise Failure(f"position {place.position} belongs to one nsqd: name it with --nsqd-http")

    async def ask(nsqd: Daemon) -> Any:
        if channel is not None:
            return await nsqd.get("/channel/peek", topic=topic, channel=channel, state=state, limit=limit)
        query: dict[str, Any] = {} if place is None else {"from": await nsqd.log_reader(topic).find(place)}
        return await nsqd.get("/topic/peek", topic=topic, limit=limit, **query)

    what = f"topic {topic!r}" if channel is None else f"channel {channel!r} of topic {topic!r}"
    answers = await cluster.where_there(nsqds, ask, what)
    found = [(nsqd, message) for nsqd, answer in answers for message in answer["messages"]]
    if len(answers) > 1:
        found.sort(key=lambda each: each[1]["timestamp"])
    return found[:limit] if channel is not None or place is not None else found[-limit:]


def _show(found: list[tuple[Daemon, dict[str, Any]]], of_channel: bool) -> None:
    several = len({nsqd.address for nsqd, _ in found}) > 1
    in_flight = any("client" in message for _, message in found)
    deferred = of_channel and any(message.get("due") for _, message in found)
    columns = [">position", "published", *([">attempts"] if of_channel else [])]
    columns += [">due in"] if deferred else []
    columns += ["with", ">for"] if in_flight else []
    columns += (["nsqd"] if several else []) + [">size", "body"]
    rows = []
    for nsqd, message in found:
        row = [str(message["position"]), quantities.clock(message["timestamp"])]
        row += [str(message["attempts"])] if of_channel else []
        row += [_until(message["due"])] if deferred else []
        if in_flight:
            row += [quantities.visible(message["client_id"]), quantities.age_since(message["delivered"])]
        row += ([nsqd.address] if several else []) + [quantities.size(message["size"])]
        rows.append([*row, body_of(message)])
    print_table(columns, rows, flexible="body")


def body_of(message: dict[str, Any]) -> str:
    if "body" in message:
        return quantities.visible(message["body"])
    return quantities.body_text(b64decode(message["body_base64"]))


def _until(due_ns: int | None) -> str:
    import time

    return quantities.age(due_ns / 1e9 - time.time()) if due_ns else ""
