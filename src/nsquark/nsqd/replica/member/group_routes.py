"""The routes of a member of a replica group: what it is, and what an operator may tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsquark.http import HttpError, Request, Response, Router, plain_text, v1_error, v1_json
from nsquark.http.server.router import NOT_FOUND, Handler, Route

from ..automaton.group import member_of
from ..automaton.states import State
from ..changes.access import ReplicaAccess

if TYPE_CHECKING:
    from .member import Member

AWAY = "away"  # the role of a member that has no stream of the primary that is asked

FAMILIES = (
    ("term", "The term that this member leads or follows."),
    ("sequence", "The last sequence that is written."),
    ("committed", "The last sequence that every member that could lead has."),
    ("in_sync_members", "Members that could lead, as etcd has them."),
    ("serving", "1 while this member serves clients as the primary."),
    ("refusing", "1 while publishes are refused for want of copies."),
)


class StandbyRouter(Router):
    """What a member has no route for, its primary has: the answer is the same to all of it."""

    def __init__(self, otherwise: Handler) -> None:
        super().__init__()
        # A body that is longer than what is read and thrown away is refused for the same reason.
        self._otherwise = Route(otherwise, None, too_big=v1_error(503, "NOT_PRIMARY"))

    def _without_route(self, method: str, path: str, raw_query: bytes, routes: dict[str, Route]) -> Route:
        found = super()._without_route(method, path, raw_query, routes)
        return self._otherwise if found is NOT_FOUND else found


class GroupApi:
    def __init__(self, member: Member, access: ReplicaAccess) -> None:
        self._member = member
        self._access = access

    def router(self) -> Router:
        """All routes of a member that does not serve clients."""
        table = StandbyRouter(self.not_primary)
        table.add("GET", "/ping", lambda _request: plain_text(200, "OK"))
        table.add("GET", "/metrics", self.metrics)
        for path in ("/replica/manifest", "/replica/file", "/replica/stream"):
            table.add("GET", path, self.not_primary)
        self.add_to(table)
        return table

    def add_to(self, table: Router) -> None:
        """Add the routes that every member has, the primary too."""
        table.add("GET", "/replica", self.tell, access="known")
        table.add("GET", "/replica/primary", self.primary, access="anybody")
        table.add("GET", "/replica/in-sync", self.in_sync, access="anybody")
        table.add("POST", "/replica/handover", self.handover, access="anybody")
        table.add("POST", "/replica/force", self.force, access="anybody")

    # ---- telling

    def tell(self, _request: Request) -> Response:
        return v1_json(status(self._member))

    def primary(self, _request: Request) -> Response:
        """200 where clients are served: for a load balancer's check."""
        if not self._member.serving:
            return self.not_primary(_request)
        return v1_json(_primary(self._member) or {})

    def not_primary(self, _request: Request) -> Response:
        """503, with the addresses of the primary where they are known."""
        raise HttpError(503, "NOT_PRIMARY", {"primary": _primary(self._member)})

    def in_sync(self, _request: Request) -> Response:
        member = self._member
        if member.automaton.state is not State.IN_SYNC and not member.serving:
            raise HttpError(503, "NOT_IN_SYNC", {"state": member.automaton.state.value})
        return v1_json({"state": member.automaton.state.value})

    def metrics(self, _request: Request) -> Response:
        body = metrics(self._member).encode()
        return Response(200, body, (("Content-Type", "text/plain; version=0.0.4; charset=utf-8"),))

    # ---- operators

    def handover(self, request: Request) -> Response:
        self._access.check(request)
        if not self._member.serving:
            raise HttpError(409, "NOT_PRIMARY")
        if not self._member.hand_over():
            raise HttpError(409, "NO_OTHER_MEMBER_IN_SYNC")
        return v1_json({"state": "handing-over"})

    def force(self, request: Request) -> Response:
        self._access.check(request)
        why_not = self._member.force()
        if why_not:
            raise HttpError(409, why_not)
        return v1_json({"state": "campaign"})


def status(member: Member) -> dict[str, object]:
    """What a member knows of itself and its group, as JSON."""
    automaton, options, leading = member.automaton, member.options, member.leading
    state = leading.state if leading is not None else automaton.view.state
    broker = member.server.broker if leading is not None and hasattr(member.server, "broker") else None
    term = leading.term if leading is not None else max(automaton.following.term, automaton.directory.term)
    problem = member.obstacles.text or (member.standby.problem if leading is None else "")
    return {
        "group": options.replica_group,
        "member": options.replica_member,
        "incarnation": automaton.me,
        "state": automaton.state.value,
        "node": broker.node.uuid if broker is not None else "",
        "node_id": options.node_id,
        "term": term,
        "sequence": max(0, leading.written) if leading is not None else member.standby.written,
        "committed": max(0, leading.released) if leading is not None else None,
        "serving": member.serving,
        "refusing": leading.refusing if leading is not None else "",
        "isr": sorted(map(member_of, state.isr)) if state is not None else [],
        "min_copies": options.min_copies,
        "ack": options.replica_ack,
        "primary": _primary(member),
        "members": _members(member),
        "etcd": member.etcd.problem,
        "problem": problem,
    }


def summary(member: Member) -> dict[str, object]:
    """The part of it that `/stats` has."""
    told = status(member)
    members = told["members"]
    assert isinstance(members, list)
    lags = {each["member"]: each["lag"] for each in members if each["lag"] is not None}
    return {name: told[name] for name in ("group", "member", "state", "term", "isr", "refusing")} | {
        "lag": lags
    }


def _primary(member: Member) -> dict[str, object] | None:
    leading, primary = member.leading, member.automaton.view.primary
    if leading is not None and member.automaton.state is State.PRIMARY:
        # What etcd was last seen to say may be older than the term that this member leads.
        name, term, addresses = member.options.replica_member, leading.term, member.addresses
    elif primary is not None:
        name, term, addresses = member_of(primary.incarnation), primary.term, primary.addresses
    else:
        return None
    return {
        "member": name,
        "term": term,
        "tcp_address": addresses.get("tcp", ""),
        "http_address": addresses.get("http", ""),
    }


def _members(member: Member) -> list[dict[str, object]]:
    view = member.automaton.view
    leading = member.leading
    state = leading.state if leading is not None else view.state
    isr = state.isr if state is not None else ()
    streams = {member_of(each.incarnation): each for each in member.leadership.streams()}
    primary = _primary(member)
    leader = primary["member"] if primary is not None else ""
    found: list[dict[str, object]] = []
    for name, key in sorted(view.members.items()):
        stream = streams.get(name)
        mine = name == member.options.replica_member
        in_sync, connected = key.incarnation in isr, mine or stream is not None
        if mine:
            role = member.automaton.state.value
        elif name == leader:
            role = State.PRIMARY.value
        elif leading is not None and not connected:
            role = AWAY
        else:
            role = (State.IN_SYNC if in_sync else State.CATCHING_UP).value
        told: dict[str, object] = {
            "member": name,
            "incarnation": key.incarnation,
            "role": role,
            "in_sync": in_sync,
            "connected": connected,
            "written": None,
            "synced": None,
            "lag": None,
            "http_address": key.addresses.get("http", ""),
            "tcp_address": key.addresses.get("tcp", ""),
        }
        if stream is not None and leading is not None:
            lag = max(0, leading.written - stream.written)
            told |= {"written": stream.written, "synced": stream.synced, "lag": lag}
        elif mine and leading is None:
            standby = member.standby
            lag = max(0, standby.end - standby.written)
            told |= {"written": standby.written, "synced": standby.synced, "lag": lag}
        elif mine and leading is not None:
            # With `written` the primary does not follow what of it is on its disk.
            synced = max(0, leading.synced) if member.options.replica_ack == "synced" else None
            told |= {"written": max(0, leading.written), "synced": synced, "lag": 0}
        found.append(told)
    return found


def metrics(member: Member) -> str:
    """The samples of a member, in Prometheus's text format."""
    told = status(member)
    isr, members = told["isr"], told["members"]
    assert isinstance(isr, list)
    assert isinstance(members, list)
    values = {
        "term": told["term"],
        "sequence": told["sequence"],
        "committed": told["committed"] or 0,
        "in_sync_members": len(isr),
        "serving": int(bool(told["serving"])),
        "refusing": int(bool(told["serving"] and told["refusing"])),
    }
    lines: list[str] = []
    for name, text in FAMILIES:
        full = f"nsqd_replica_{name}"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} gauge", f"{full} {values[name]}"]
    lines += [
        "# HELP nsqd_replica_state 1 for the state that this member is in.",
        "# TYPE nsqd_replica_state gauge",
    ]
    lines += [
        f'nsqd_replica_state{{state="{each.value}"}} {int(each.value == told["state"])}' for each in State
    ]
    lines += [
        "# HELP nsqd_replica_lag Frames that a member has not written.",
        "# TYPE nsqd_replica_lag gauge",
    ]
    lines += [
        f'nsqd_replica_lag{{member="{each["member"]}"}} {each["lag"]}'
        for each in members
        if each["lag"] is not None
    ]
    lines += _histogram(member)
    return "\n".join(lines) + "\n"


def _histogram(member: Member) -> list[str]:
    name, times = "nsqd_replica_acknowledgement_seconds", member.leadership.acknowledgement_times
    lines = [f"# HELP {name} Time from a write until it is committed.", f"# TYPE {name} histogram"]
    lines += [f'{name}_bucket{{le="{seconds}"}} {count}' for seconds, count in times.buckets()]
    lines += [f'{name}_bucket{{le="+Inf"}} {times.count}', f"{name}_sum {times.total_ns / 1e9}"]
    return [*lines, f"{name}_count {times.count}"]
