"""A replica group as one of its members tells it by `GET /replica`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nsquark.errors import NsquarkError
from nsquark.http.client.protocol import BadStatus

from ..failures import Failure
from ..flags.settings import Settings
from .daemons import Daemon, NotOurs
from .nsqds import Cluster, explain

IN_NO_GROUP = "is in no replica group"


@dataclass(frozen=True, slots=True)
class MemberStanding:
    """One member. `lag`, `written` and `synced` are frames, None where they are not known."""

    name: str
    role: str
    in_sync: bool
    written: int | None
    synced: int | None
    lag: int | None
    http_address: str


@dataclass(frozen=True, slots=True)
class GroupView:
    """What `nsqd`, a member, says of its group."""

    nsqd: Daemon
    told: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.told["group"])

    @property
    def member(self) -> str:
        return str(self.told.get("member", ""))

    @property
    def state(self) -> str:
        return str(self.told.get("state", ""))

    @property
    def term(self) -> int:
        return int(self.told.get("term") or 0)

    @property
    def sequence(self) -> int:
        return int(self.told.get("sequence") or 0)

    @property
    def in_sync(self) -> list[str]:
        return [str(each) for each in self.told.get("isr") or ()]

    @property
    def primary(self) -> dict[str, Any] | None:
        primary = self.told.get("primary")
        return primary if isinstance(primary, dict) else None

    @property
    def leader(self) -> str:
        """The name of the member that leads; empty without one."""
        return str(self.primary.get("member", "")) if self.primary is not None else ""

    @property
    def leader_address(self) -> str:
        return str(self.primary.get("http_address") or "") if self.primary is not None else ""

    @property
    def members(self) -> list[MemberStanding]:
        found = [
            MemberStanding(
                str(each.get("member", "")),
                str(each.get("role", "")),
                bool(each.get("in_sync")),
                each.get("written"),
                each.get("synced"),
                each.get("lag"),
                str(each.get("http_address") or ""),
            )
            for each in self.told.get("members") or ()
        ]
        return sorted(found, key=lambda member: member.name)

    @property
    def copies(self) -> int:
        """Members that are in sync and there, once the primary serves; 0 before that."""
        if not self.leader or self.told.get("refusing"):
            return 0
        return sum(each.in_sync and each.role in ("primary", "in-sync") for each in self.members)

    @property
    def missing(self) -> list[str]:
        """Members that are in sync by etcd's word and that etcd does not see."""
        there = {each.name for each in self.members} | {self.member}
        return [each for each in self.in_sync if each not in there]

    @property
    def troubles(self) -> list[str]:
        """What is wrong, a line each."""
        told = self.told
        found = [f"member {each!r} is in sync and is not there" for each in self.missing]
        if told.get("refusing"):
            found.append(f"member {self.member!r} refuses publishes: {told['refusing']}")
        if told.get("etcd"):
            found.append(f"member {self.member!r} has trouble with etcd: {told['etcd']}")
        if told.get("problem"):
            found.append(f"member {self.member!r}: {told['problem']}")
        return found


async def ask_member(nsqd: Daemon) -> GroupView:
    """Raises Failure if the nsqd is in no group, or cannot be asked."""
    try:
        told = await nsqd.get("/replica")
    except NotOurs:
        raise Failure(f"{nsqd} {IN_NO_GROUP}") from None
    except BadStatus as error:
        raise Failure(f"{nsqd}: {explain(error)}") from None
    if not isinstance(told, dict) or not told.get("group"):
        raise Failure(f"{nsqd} {IN_NO_GROUP}")
    return GroupView(nsqd, told)


async def from_the_primary(view: GroupView) -> GroupView:
    """What the primary says, which knows how far the others are; without its answer, what is known."""
    if view.state == "primary" or not view.leader_address:
        return view
    try:
        there = await ask_member(Daemon("nsqd", view.leader_address, view.nsqd.settings))
    except NsquarkError:
        return view
    return there if there.name == view.name and there.term >= view.term else view


async def find_groups(cluster: Cluster) -> list[GroupView]:
    """The groups of the nsqds given, or of all that the nsqlookupds list. Raises Failure if there is none."""
    nsqds = await cluster.nsqds()
    answers = await asyncio.gather(*(ask_member(each) for each in nsqds), return_exceptions=True)
    groups: dict[str, GroupView] = {}
    errors: list[NsquarkError] = []
    for answer in answers:
        if isinstance(answer, GroupView):
            best = groups.get(answer.name)
            if best is None or (answer.term, answer.state == "primary") > (
                best.term,
                best.state == "primary",
            ):
                groups[answer.name] = answer
        elif isinstance(answer, NsquarkError):
            errors.append(answer)
        else:
            raise answer
    if not groups:
        where = str(nsqds[0]) if len(nsqds) == 1 else f"none of {len(nsqds)} nsqds"
        raise errors[0] if len(nsqds) == 1 else Failure(f"{where} is in a replica group")
    if not cluster.lookupds:  # those that were named should have answered
        for error in errors:
            cluster.trouble(error)
    return [await from_the_primary(groups[name]) for name in sorted(groups)]


async def first_view(view: GroupView, settings: Settings) -> GroupView | None:
    """What the first member that answers says now: the newest word, by term, of all that answer."""
    addresses: Sequence[str] = dict.fromkeys(  # type: ignore[assignment]
        [view.nsqd.address, *(each.http_address for each in view.members if each.http_address)]
    )
    daemons = [Daemon("nsqd", address, settings) for address in addresses]
    answers = await asyncio.gather(*(ask_member(each) for each in daemons), return_exceptions=True)
    views = [each for each in answers if isinstance(each, GroupView) and each.name == view.name]
    return max(views, key=lambda each: (each.term, each.state == "primary"), default=None)
