"""Moving a channel to a time or a position: what would be delivered again is shown before."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from nsquark.errors import NsquarkError

from ...cluster import Node, Outcome, explain, failed_at
from ...upstream import nsqd
from ..site import PageError, Site, read_form
from ..views.messages import asked_names, peeked
from .acting import Done

PLACES = ("earliest", "latest", "at")


@dataclass(frozen=True, slots=True)
class Place:
    """Where to: `earliest`, `latest`, a position or a time (Unix ms)."""

    word: str = ""
    position: int | None = None
    timestamp_ms: int | None = None

    @property
    def to(self) -> str:
        """As nsqd's `/channel/seek` takes it."""
        if self.timestamp_ms is not None:
            moment = datetime.fromtimestamp(self.timestamp_ms / 1000, UTC)
            return moment.strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"
        return self.word if self.position is None else str(self.position)


@dataclass(frozen=True, slots=True)
class Preview:
    node: str
    first: int
    at: int
    target: int
    again: int
    skipped: int
    waiting: int
    message: dict[str, Any] | None


def parse_place(place: str, to: str, node: str) -> Place:
    """Raises PageError."""
    if place in ("earliest", "latest"):
        return Place(word=place)
    to = to.strip()
    if to.isascii() and to.isdecimal() and len(to) < 19:
        if not node:
            raise PageError(
                400,
                "Which nsqd?",
                "A position belongs to the log of one nsqd: choose which.",
                "A time is good for all.",
            )
        return Place(position=int(to))
    try:
        moment = datetime.fromisoformat(to)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        return Place(timestamp_ms=max(0, int(moment.timestamp() * 1000)))
    except (ValueError, OverflowError):
        raise PageError(
            400,
            "No such place",
            f"{to!r} is neither a position nor a time.",
            "A time is written 2026-11-01T12:00:00Z.",
        ) from None


async def show(site: Site, request: Request) -> Response:
    """The form, and the preview of what it asks for."""
    topic, channel = asked_names(request, channel=True)
    query = request.query_params
    place, to, node = query.get("place", ""), query.get("to", ""), query.get("node", "")
    nodes = (await site.cluster.producers(topic)).value
    previews: list[Preview] = []
    problems: list[str] = []
    if place in PLACES:
        target = parse_place(place, to, node)
        for each in _chosen(nodes, node):
            try:
                previews.append(await _preview(site, each, topic, channel, target))
            except NsquarkError as error:
                problems.append(explain(each, error))
    values = {
        "section": "Topics",
        "topic": topic,
        "channel": channel,
        "place": place if place in PLACES else "at",
        "to": to,
        "node": node,
        "nodes": nodes,
        "previews": previews,
        "problems": problems,
    }
    return site.render(request, "seek.html", values)


def _chosen(nodes: list[Node], address: str) -> list[Node]:
    chosen = [node for node in nodes if not address or node.address == address]
    if not chosen:
        raise PageError(404, "No such node", f"No nsqd with this topic has the address {address!r}.")
    return chosen


async def _preview(site: Site, node: Node, topic: str, channel: str, place: Place) -> Preview:
    told = await site.inspection.log_range(node, topic, channel=channel, timestamp_ms=place.timestamp_ms)
    first, end = _integer(told, "first"), _integer(told, "next")
    at = told.get("channel") if isinstance(told.get("channel"), dict) else {}
    assert isinstance(at, dict)
    finished, delivered = _integer(at, "position"), _integer(at, "next")
    target = {"earliest": first, "latest": end}.get(place.word, 0)
    if place.position is not None:
        target = place.position
    if place.timestamp_ms is not None:
        target = _integer(told, "position")
    message = None
    if first <= target < end:
        messages = peeked(await site.inspection.peek_topic(node, topic, start=target, limit=1))
        message = messages[0] if messages else None
    return Preview(
        node.address,
        first,
        delivered,
        target,
        max(0, delivered - target),
        max(0, min(target, end) - max(finished, first)),
        max(0, end - target),
        message,
    )


def _integer(document: dict[str, Any], name: str) -> int:
    value = document.get(name)
    return value if type(value) is int else 0


async def move(site: Site, request: Request) -> Response:
    topic, channel = asked_names(request, channel=True)
    form = await read_form(request)
    node = form.get("node", "")
    if form.get("place") not in PLACES:
        raise PageError(400, "Where to?", "The request does not say where the channel is to go.")
    place = parse_place(form["place"], form.get("to", ""), node)
    if form.get("confirm") != channel:
        raise PageError(400, "Not confirmed", f"Nothing was done: type {channel} to confirm it.")
    found = await site.cluster.producers(topic)
    outcome = Outcome(failures=list(found.failures))
    notes: dict[str, str] = {}
    for each in _chosen(found.value, node):
        try:
            answer = await site.inspection.seek(each, topic, channel, place.to)
        except NsquarkError as error:
            outcome.failures.append(failed_at(each, error))
        else:
            outcome.done.append(nsqd(each.address))
            notes[each.address] = f"now at position {_integer(answer, 'position'):,}"
    if outcome.done:
        site.sampler.expire()
        site.notify(request, "seek_channel", topic, channel, node)
    values = {
        "title": f"Move: {channel}",
        "failures": outcome.failures,
        "done": [Done(each.kind, each.address, notes[each.address]) for each in outcome.done],
        "detail": "",
        "back": site.link.channel(topic, channel),
        "back_label": "Go on",
        "stays": False,
    }
    return site.render(request, "result.html", values, 200 if outcome.done else 502)
