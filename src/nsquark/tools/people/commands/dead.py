"""`nsquark dead`: dead letters, which wait on the channel `redeliver` of a topic that ends in `.dead`.

A dead letter names the topic and channel it comes from: what belongs together is read from the letters.
"""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any

import click

from nsquark.http.client.protocol import BadStatus
from nsquark.names import EPHEMERAL

from ..cluster.daemons import Daemon
from ..cluster.nsqds import Cluster, explain
from ..failures import Failure
from ..flags import quantities
from ..flags.options import CHANNEL, TOPIC, Command, confirm, connecting, json_option, yes_option
from ..flags.settings import Settings
from ..output import print_json, print_table
from ..running import run
from .peek import body_of

_SUFFIX = ".dead"
_WAITING = "redeliver"
_AT_ONCE = 16
_ID_SIZE = 16
_LETTER = re.compile(r"[0-9a-f]{16}|[0-9]{1,15}")
_HISTORY = ("topic", "channel", "id", "position", "attempts", "timestamp", "died")


@dataclass(slots=True)
class DeadTopic:
    """The dead letters of one channel at one nsqd."""

    nsqd: Daemon
    name: str
    topic: str
    channel: str
    waiting: int
    oldest: int  # when the first of them died, ns since the epoch

    def as_json(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "channel": self.channel,
            "dead_topic": self.name,
            "waiting": self.waiting,
            "oldest": self.oldest,
            "nsqd": self.nsqd.address,
        }


@click.group("dead")
def command() -> None:
    """Dead letters: messages that were delivered as often as nsqd allows (--max-attempts)."""


@command.command("list", cls=Command)
@json_option
@connecting
def list_dead(as_json: bool, settings: Settings) -> None:
    """List the channels that have dead letters."""
    cluster = Cluster(settings)
    found = run(_dead_topics(cluster))
    if as_json:
        print_json([each.as_json() for each in found])
    elif not found:
        click.echo("there are no dead letters")
    else:
        rows = [
            [
                each.topic,
                each.channel,
                quantities.count(each.waiting),
                quantities.age_since(each.oldest),
                each.nsqd.address,
            ]
            for each in found
        ]
        print_table(["topic", "channel", ">letters", ">oldest", "nsqd"], rows)
    cluster.end()


@command.command("show", cls=Command)
@click.argument("topic", type=TOPIC)
@click.argument("channel", type=CHANNEL)
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=10, show_default=True, help="At most.")
@json_option
@connecting
def show(topic: str, channel: str, limit: int, as_json: bool, settings: Settings) -> None:
    """Show dead letters of a CHANNEL, the oldest first, with their history. With --json one a line."""
    cluster = Cluster(settings)
    letters = run(_letters(cluster, topic, channel, limit))
    if as_json:
        for letter in letters:
            click.echo(json.dumps(letter, ensure_ascii=False))
    else:
        rows = [
            [
                quantities.clock(each["died"]),
                str(each["attempts"]),
                str(each["position"]),
                each["id"],
                body_of(each),
            ]
            for each in letters
        ]
        print_table(["died", ">attempts", ">position", "id", "body"], rows, flexible="body")
    cluster.end()


@command.command("send-back", cls=Command)
@click.argument("topic", type=TOPIC)
@click.argument("channel", type=CHANNEL)
@click.option("-n", "--limit", type=click.IntRange(1), help="At most so many, the oldest first: 1 for one.")
@click.option("--id", "letter", metavar="ID", help="The one with this id, or at this position (see `show`).")
@json_option
@connecting
def send_back(
    topic: str, channel: str, limit: int | None, letter: str | None, as_json: bool, settings: Settings
) -> None:
    """Publish dead letters again, for their CHANNEL alone, with attempts from 1: all, a number, or one."""
    if letter is not None and limit is not None:
        raise click.UsageError("--id is for one dead letter: leave out --limit")
    if letter is not None and not _LETTER.fullmatch(letter):
        raise click.UsageError(f"{letter!r} is neither an id nor a position")
    cluster = Cluster(settings)
    if letter is not None:
        work = _send_one_back(cluster, topic, channel, letter)
    else:
        work = _send_back(cluster, topic, channel, limit)
    sent, skipped = run(work, lambda: "interrupted; nsqd may go on with what it was asked for")
    if as_json:
        print_json({"topic": topic, "channel": channel, "redelivered": sent, "skipped": skipped})
    else:
        passed = f", and passed over {skipped:,} that are no dead letters of it" if skipped else ""
        letters = "1 dead letter" if sent == 1 else f"{sent:,} dead letters"
        click.echo(f"sent {letters} back to channel {channel!r} of topic {topic!r}{passed}")
    cluster.end()


@command.command("drop", cls=Command)
@click.argument("topic", type=TOPIC)
@click.argument("channel", type=CHANNEL)
@yes_option
@connecting
def drop(topic: str, channel: str, yes: bool, settings: Settings) -> None:
    """Forget all dead letters of a CHANNEL."""
    cluster = Cluster(settings)
    found = run(_of(cluster, topic, channel))
    waiting = sum(each.waiting for each in found)
    confirm(f"Drop {waiting:,} dead letters of channel {channel!r} of topic {topic!r}?", yes)

    async def work() -> None:
        for each in found:
            await each.nsqd.post("/channel/empty", topic=each.name, channel=_WAITING)

    run(work())
    click.echo(f"dropped {waiting:,} dead letters of channel {channel!r} of topic {topic!r}")
    cluster.end()


# ---- sending them back


async def _send_back(cluster: Cluster, topic: str, channel: str, limit: int | None) -> tuple[int, int]:
    """How many went back, and how many were passed over."""
    sent = skipped = 0
    for dead in await _of(cluster, topic, channel):
        left = None if limit is None else limit - sent
        if left == 0:
            break
        try:
            answer = await dead.nsqd.post(
                "/channel/redeliver", patience=600.0, topic=topic, channel=channel, limit=left
            )
        except BadStatus as error:
            raise Failure(f"{dead.nsqd}: {explain(error)}; {sent:,} were sent back before") from None
        sent += answer["redelivered"]
        skipped += answer["skipped"]
    return sent, skipped


async def _send_one_back(cluster: Cluster, topic: str, channel: str, letter: str) -> tuple[int, int]:
    """The nsqd that has the letter sends it back. Raises Failure if none has it."""
    found = await _of(cluster, topic, channel)
    if len(found) > 1 and len(letter) != _ID_SIZE:
        raise Failure(
            f"{len(found)} nsqds have dead letters, and each its own position {letter}: give the id"
        )
    for dead in found:
        try:
            # An nsqd of before --id would send back all of them, but for the limit.
            answer = await dead.nsqd.post(
                "/channel/redeliver", patience=600.0, topic=topic, channel=channel, limit=1, id=letter
            )
        except BadStatus as error:
            if error.message == "DEAD_LETTER_NOT_FOUND":
                continue
            raise Failure(f"{dead.nsqd}: {explain(error)}") from None
        return answer["redelivered"], answer["skipped"]
    raise Failure(f"channel {channel!r} of topic {topic!r} has no dead letter {letter}")


# ---- finding them


async def _dead_topics(cluster: Cluster) -> list[DeadTopic]:
    """Every topic of dead letters in which any wait."""
    nsqds = await cluster.nsqds()
    waiting = []
    for nsqd, answer in await cluster.stats(nsqds):
        for topic in answer.get("topics") or ():
            name = topic["topic_name"]
            if name.removesuffix(EPHEMERAL).endswith(_SUFFIX):
                waiting += [
                    (nsqd, name, each) for each in topic["channels"] if each["channel_name"] == _WAITING
                ]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def describe(nsqd: Daemon, name: str, channel: dict[str, Any]) -> DeadTopic | None:
        async with gate:
            letters = await _peek(nsqd, name, 10)
        if not letters or not channel["depth"]:
            return None
        first = letters[0]
        return DeadTopic(nsqd, name, first["topic"], first["channel"], channel["depth"], first["died"])

    found = await asyncio.gather(*(describe(*each) for each in waiting))
    return sorted(filter(None, found), key=lambda each: (each.topic, each.channel, each.nsqd.address))


async def _of(cluster: Cluster, topic: str, channel: str) -> list[DeadTopic]:
    """The dead letters of one channel. Raises Failure if there are none."""
    found = [each for each in await _dead_topics(cluster) if (each.topic, each.channel) == (topic, channel)]
    if not found:
        raise Failure(f"channel {channel!r} of topic {topic!r} has no dead letters")
    return found


async def _letters(cluster: Cluster, topic: str, channel: str, limit: int) -> list[dict[str, Any]]:
    letters: list[dict[str, Any]] = []
    for dead in await _of(cluster, topic, channel):
        letters += [{**each, "nsqd": dead.nsqd.address} for each in await _peek(dead.nsqd, dead.name, limit)]
    letters.sort(key=lambda each: int(each["died"]))
    return letters[:limit]


async def _peek(nsqd: Daemon, dead_topic: str, limit: int) -> list[dict[str, Any]]:
    """The history and the body of each letter that waits, without what is none."""
    answer = await nsqd.get("/channel/peek", topic=dead_topic, channel=_WAITING, limit=limit)
    letters = []
    for message in answer["messages"]:
        body = message["body"].encode() if "body" in message else b64decode(message["body_base64"])
        line, _, rest = body.partition(b"\n")
        try:
            letter = json.loads(line)
            letter = {
                key: letter[key]
                for key in ("topic", "channel", "id", "position", "attempts", "timestamp", "died")
            }
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # any client may publish to any topic
        if "body" in message:
            letter["body"] = rest.decode()
        else:
            letter["body_base64"] = b64encode(rest).decode("ascii")
        letters.append(letter)
    return letters
