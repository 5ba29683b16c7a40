"""`nsquark replica`: the primary of a replica group, how far the others are, and how to change it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from nsquark.errors import NsquarkError, UsageError
from nsquark.http.client.protocol import BadStatus

from ..cluster.daemons import Daemon
from ..cluster.nsqds import Cluster, explain
from ..cluster.replica_group import GroupView, ask_member, find_groups, first_view
from ..failures import Failure
from ..flags import quantities
from ..flags.options import SECONDS, Command, connecting, json_option, yes_option
from ..flags.settings import Settings
from ..output import print_json, print_table
from ..running import run

_F = TypeVar("_F", bound=Callable[..., Any])
_HEADER = "X-Nsquark-Replica-Secret"
_LOOK_EVERY = 0.1  # seconds


@click.group("replica")
def command() -> None:
    """Replica groups: status, handover, force.

    Any member's HTTP address will do (--nsqd-http), also that of a member that does not lead.
    """


def _secret_option(command: _F) -> _F:
    return click.option(
        "--replica-secret-file",
        type=click.Path(dir_okay=False),
        help="File with the secret of the group, as nsqd has it.",
    )(command)


def _wait_option(command: _F) -> _F:
    return click.option(
        "--wait", type=SECONDS, default="30s", show_default=True, help="How long to wait for the outcome."
    )(command)


# ---- status


@command.command("status", cls=Command)
@click.option(
    "--in-sync",
    type=click.IntRange(min=1),
    help="Wait until a primary serves and so many members are in sync.",
)
@_wait_option
@json_option
@connecting
def status(in_sync: int | None, wait: float, as_json: bool, settings: Settings) -> None:
    """Show the group of an nsqd, or with --lookupd-http all groups.

    Lag counts the frames that a member has not written yet; a frame is what the primary writes in one turn.
    The exit status is 1 if a group has no primary.
    """
    cluster = Cluster(settings)
    groups = run(find_groups(cluster) if in_sync is None else _find_in_sync(settings, in_sync, wait))
    if as_json:
        print_json([each.told for each in groups])
    else:
        for number, group in enumerate(groups):
            if number:
                click.echo()
            _show(group)
    for group in groups:
        if not group.leader:
            raise Failure(f"replica group {group.name!r} has no primary")
    cluster.end()


async def _find_in_sync(settings: Settings, number: int, wait: float) -> list[GroupView]:
    """The groups, once each has a primary and so many members in sync.

    Raises Failure after `wait` seconds.
    """
    end = time.monotonic() + wait
    while True:
        try:
            groups = await find_groups(Cluster(settings))
        except NsquarkError as error:  # an nsqd that was started just now does not answer yet
            late = str(error)
        else:
            short = next((each for each in groups if each.copies < number), None)
            if short is None:
                return groups
            had = f"{short.copies} of {number} members in sync" if short.leader else "no primary"
            late = f"replica group {short.name!r} has {had}"
            if short.told.get("refusing"):
                late += f", and refuses publishes: {short.told['refusing']}"
        if time.monotonic() > end:
            raise Failure(f"{late}, after {quantities.age(wait)}")
        await asyncio.sleep(_LOOK_EVERY)


def _show(group: GroupView) -> None:
    who = f"{group.leader} leads in term {group.term}" if group.leader else f"no primary, term {group.term}"
    copies = f"{len(group.in_sync)} in sync: {', '.join(group.in_sync) or 'none'}"
    click.echo(f"group {group.name}: {who}; {copies}; {_promise(group)}")
    rows = [
        [
            member.name,
            member.role,
            "yes" if member.in_sync else "no",
            *(
                "-" if value is None else quantities.count(value)
                for value in (member.written, member.synced, member.lag)
            ),
            member.http_address,
        ]
        for member in group.members
    ]
    print_table(["member", "state", "in sync", ">written", ">synced", ">lag", "http"], rows)
    for trouble in group.troubles:
        click.echo(trouble)


def _promise(group: GroupView) -> str:
    """What an OK means."""
    least, ack = group.told.get("min_copies", 1), group.told.get("ack", "written")
    return f"OK when {ack} by all in sync, at least {least}"


# ---- handover


@command.command("handover", cls=Command)
@_secret_option
@_wait_option
@connecting
def handover(replica_secret_file: str | None, wait: float, settings: Settings) -> None:
    """Have another member lead, and wait until it does.

    Nothing that was answered is lost. Publishes are refused for a moment, and consumers connect again.
    """
    headers = _headers(replica_secret_file)

    async def work() -> None:
        before = await _one_group(settings)
        if not before.leader:
            raise Failure(f"replica group {before.name!r} has no primary that could hand over")
        others = [each for each in before.in_sync if each != before.leader]
        if not others:
            raise Failure(
                f"replica group {before.name!r}: no other member is in sync with {before.leader!r}, so that"
                " none can take over"
            )
        click.echo(f"group {before.name}: {before.leader} hands over to {' or '.join(others)}")
        nsqd = Daemon("nsqd", before.leader_address or before.nsqd.address, settings)
        begun = time.monotonic()
        await _post(nsqd, "/replica/handover", headers)
        after = await _until(
            before,
            settings,
            wait,
            lambda now: bool(now.leader) and now.leader != before.leader and now.term > before.term,
            f"no other member leads after {quantities.age(wait)}; see nsquark replica status",
        )
        took = quantities.age(time.monotonic() - begun)
        click.echo(f"group {after.name}: {after.leader} leads in term {after.term}, after {took}")

    run(work())


# ---- force


@command.command("force", cls=Command)
@_secret_option
@_wait_option
@yes_option
@connecting
def force(replica_secret_file: str | None, wait: float, yes: bool, settings: Settings) -> None:
    """Have a member lead that is not in sync, when all that are in sync are lost for good.

    What only they had is lost. Every log gets a new epoch: readers by position get EPOCH_CHANGED, and Spark
    queries stop until they are told to go on. Name the member with --nsqd-http.
    """
    headers = _headers(replica_secret_file)
    if len(settings.nsqd_http) != 1:
        raise UsageError("name the one member that is to lead: --nsqd-http HOST:PORT")
    nsqd = Daemon("nsqd", settings.nsqd_http[0], settings)
    before = run(ask_member(nsqd))
    if before.leader:
        raise Failure(
            f"replica group {before.name!r} has a primary, {before.leader!r}: use nsquark replica handover"
        )
    for line in _cost(before):
        click.echo(line, err=True)
    _confirm_by_name(before, yes)

    async def work() -> None:
        begun = time.monotonic()
        await _post(nsqd, "/replica/force", headers)
        after = await _until(
            before,
            settings,
            wait,
            lambda now: now.leader == before.member and now.term > before.term,
            f"{before.member!r} does not lead after {quantities.age(wait)}; see nsquark replica status",
        )
        took = quantities.age(time.monotonic() - begun)
        click.echo(f"group {after.name}: {after.leader} leads in term {after.term}, after {took}")
        click.echo("every log has a new epoch")

    run(work())


def _cost(group: GroupView) -> list[str]:
    """What is lost when this member leads, a line each."""
    lost = [each for each in group.in_sync if each != group.member]
    names = ", ".join(lost) or "none"
    lines = [
        f"group {group.name} has no primary; in sync were: {', '.join(group.in_sync) or 'none'}; of them"
        f" other members than {group.member}: {names}",
        f"member {group.member} is {group.state}; its directory ends at frame {group.sequence:,} of term"
        f" {group.term}",
    ]
    ahead = [each for each in group.members if each.name in lost and each.written is not None]
    for member in ahead:
        behind = max(0, (member.written or 0) - group.sequence)
        lines.append(f"member {member.name} is there with {behind:,} frames more: start it instead")
    if lost:
        lines.append(
            f"what {' and '.join(lost)} stored behind that is lost, also what was answered OK, unless one of"
            " them comes back and leads instead"
        )
    lines.append(
        "every log gets a new epoch: readers by position get EPOCH_CHANGED, and Spark queries stop until they"
        " are told to go on"
    )
    return lines


def _confirm_by_name(group: GroupView, yes: bool) -> None:
    """Return if a person types the group's name. Raises Failure otherwise."""
    if yes:
        return
    question = f"Type the name of the group to have {group.member} lead it"
    if not sys.stdin.isatty():
        raise UsageError(f"{question}. There is no terminal to ask on: say --yes")
    if click.prompt(question, default="", show_default=False, err=True) != group.name:
        raise Failure("nothing was done")


# ---- what they share


async def _one_group(settings: Settings) -> GroupView:
    cluster = Cluster(settings)
    groups = await find_groups(cluster)
    if len(groups) > 1:
        names = ", ".join(repr(each.name) for each in groups)
        raise Failure(f"there are {len(groups)} replica groups, {names}: name a member with --nsqd-http")
    return groups[0]


async def _until(
    before: GroupView, settings: Settings, wait: float, done: Callable[[GroupView], bool], late: str
) -> GroupView:
    """Ask the members until one says that it is done. Raises Failure after `wait` seconds."""
    try:
        async with asyncio.timeout(wait):
            while True:
                now = await first_view(before, settings)
                if now is not None and done(now):
                    return now
                await asyncio.sleep(_LOOK_EVERY)
    except TimeoutError:
        raise Failure(f"replica group {before.name!r}: {late}") from None


async def _post(nsqd: Daemon, path: str, headers: dict[str, str]) -> None:
    try:
        await nsqd.post(path, headers=headers)
    except BadStatus as error:
        if error.status == 403:
            what = "has another secret than" if headers else "wants the group's secret: give"
            raise Failure(f"{nsqd} {what} --replica-secret-file") from None
        raise Failure(f"{nsqd}: {explain(error)}") from None


def _headers(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        return {_HEADER: Path(path).read_text("ascii").strip()}
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no plain text"
        raise UsageError(f"--replica-secret-file {path}: {reason}") from None
