"""Everything that changes the cluster: a page asks first, a POST does it and tells what each daemon did.

The page that asks and the page with the result work without scripts; with scripts a dialog shows both.
What destroys messages must be confirmed by typing the name, and the server looks at that, too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from nsquark.errors import NsquarkError
from nsquark.names import is_valid_name

from ...cluster import Node, NodeNotFound, Outcome, failed_at
from ...upstream import nsqd
from ..site import PageError, Site, read_form
from . import retaining

MAX_DEFER_MS = 3_600_000
_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Question:
    title: str
    explanation: str
    verb: str
    by_name: bool = False  # the name must be typed


@dataclass(frozen=True, slots=True)
class Asked:
    """What an action is for, out of the query: names are checked."""

    action: str
    topic: str
    channel: str
    node: str
    letter: str  # the id of a dead letter

    @property
    def subject(self) -> str:
        return f"channel {self.channel}" if self.channel else f"topic {self.topic}"

    @property
    def event(self) -> str:
        """What a notification calls it: NSQ's names where NSQ has the action."""
        if self.action == "tombstone":
            return "tombstone_topic_producer"
        if self.action == "publish" or self.action.startswith("redeliver"):
            return self.action.partition("-")[0]
        return f"{self.action}_channel" if self.channel else f"{self.action}_topic"

    @property
    def name(self) -> str:
        return self.channel or self.topic

    @property
    def place(self) -> str:
        return f" on {self.node}" if self.node else " on every nsqd"


@dataclass(frozen=True, slots=True)
class Done:
    kind: str
    address: str
    note: str = ""


def _question(asked: Asked) -> Question:
    subject, place = asked.subject, asked.place
    of = f" of the topic {asked.topic}" if asked.channel else ""
    questions = {
        "pause": Question(
            f"Pause {asked.name}?",
            f"The {subject}{of} delivers nothing{place} until it is unpaused. Publishing goes on.",
            "Pause",
        ),
        "unpause": Question(f"Unpause {asked.name}?", f"The {subject}{of} delivers again{place}.", "Unpause"),
        "empty": Question(
            f"Empty {asked.name}?",
            f"Every message that waits in the {subject}{of}{place} is dropped. This cannot be undone.",
            "Empty",
            by_name=True,
        ),
        "delete": Question(
            f"Delete {asked.name}?",
            f"The {subject}{of} is deleted{place}, with every message that waits there"
            + (", and its consumers are disconnected." if asked.channel else " and with all its channels.")
            + " This cannot be undone.",
            "Delete",
            by_name=True,
        ),
        "tombstone": Question(
            f"Tombstone {asked.topic} on {asked.node}?",
            f"nsqlookupd hides {asked.node} from consumers of {asked.topic} for a while, and the topic is "
            "deleted there with the messages that wait in it. Point producers elsewhere first.",
            "Tombstone",
            by_name=True,
        ),
        "create": Question(
            f"Create a channel of {asked.topic}",
            "The channel is created on every nsqd that has the topic, and gets every message from now on.",
            "Create",
        ),
        "retention": Question(
            f"Retention of {asked.topic}",
            "How long, and how much, is kept of messages that every channel has finished. They can be read "
            f"again by a channel that is moved back, and by Spark. What is set holds{place}; less than now "
            "deletes what is beyond it. This cannot be undone.",
            "Keep",
            by_name=True,
        ),
        "publish": Question(
            f"Publish to {asked.topic}",
            "One message, which every channel of the topic gets on this nsqd.",
            "Publish",
        ),
        "redeliver": Question(
            "Send back all dead letters?",
            f"The dead letters of {asked.channel} are delivered to it again, with attempts from 1.",
            "Send back all",
        ),
        "redeliver-one": Question(
            "Send back the oldest dead letter?",
            f"The oldest dead letter of each nsqd is delivered to {asked.channel} again.",
            "Send back",
        ),
        "redeliver-letter": Question(
            "Send back this dead letter?",
            f"The dead letter {asked.letter} of {asked.node} is delivered to {asked.channel} again, with "
            "attempts from 1.",
            "Send back",
        ),
    }
    return questions[asked.action]


_ACTIONS = (
    "pause", "unpause", "empty", "delete", "tombstone", "create", "publish", "retention",
    "redeliver", "redeliver-one", "redeliver-letter",
)  # fmt: skip


def _asked(request: Request, form: dict[str, str] | None = None) -> Asked:
    query = request.query_params
    told = {name: (form or {}).get(name) or query.get(name, "") for name in ("topic", "channel", "node")}
    action = query.get("do", "")
    if action not in _ACTIONS:
        raise PageError(400, "No such action", f"{action!r} is none of {', '.join(_ACTIONS)}.")
    for kind in ("topic", "channel"):
        if told[kind] and not is_valid_name(told[kind]):
            raise PageError(
                400,
                f"No name for a {kind}",
                f"{told[kind]!r} cannot be the name of a {kind}.",
                "A name has 1 to 64 letters, digits, dots, underscores and hyphens.",
            )
    asked = Asked(action, told["topic"], told["channel"], told["node"], query.get("id", ""))
    needs_channel = action.startswith("redeliver")
    needs_node = action in ("tombstone", "redeliver-letter")
    if (
        not asked.topic
        or (needs_channel and not asked.channel)
        or (needs_node and not asked.node)
        or (action == "retention" and asked.channel)
        or (action == "redeliver-letter" and not _ID.fullmatch(asked.letter))
    ):
        raise PageError(400, "Something is missing", "The request does not say what it is for.")
    return asked


async def ask(site: Site, request: Request) -> Response:
    """The page that asks whether it is meant."""
    return await _confirm(site, request, _asked(request))


async def _confirm(
    site: Site, request: Request, asked: Asked, problem: str = "", form: Mapping[str, str] | None = None
) -> Response:
    question = _question(asked)
    values = {
        "title": question.title,
        "explanation": question.explanation,
        "verb": question.verb,
        "action": asked.action,
        "needs_name": asked.name if question.by_name else "",
        "action_url": site.link.act(asked.action, asked.topic, asked.channel, asked.node, asked.letter),
        "back": _page_of(site, asked),
        "problem": problem,
        "form": form or {},
        "chosen_node": asked.node,
        "nodes": await _nodes(site, asked.topic) if asked.action == "publish" else [],
        "present": await retaining.present(site, asked.topic, asked.node)
        if asked.action == "retention"
        else [],
    }
    return site.render(request, "confirm.html", values, 400 if problem else 200)


def _page_of(site: Site, asked: Asked) -> str:
    """The page of what the action is about."""
    if asked.action.startswith("redeliver"):
        return site.link("/dead", topic=asked.topic, channel=asked.channel)
    if asked.channel and asked.action != "create":
        return site.link.channel(asked.topic, asked.channel)
    return site.link.topic(asked.topic)


async def act(site: Site, request: Request) -> Response:
    """Do it, and tell what each daemon did."""
    form = await read_form(request)
    asked = _asked(request, form)
    if _question(asked).by_name and form.get("confirm") != asked.name:
        problem = f"Nothing was done: type {asked.name} to confirm it."
        return await _confirm(site, request, asked, problem, form)
    if asked.action == "publish":
        outcome, notes = await _publish(site, asked, form)
    elif asked.action == "retention":
        wanted = retaining.parse_form(form)
        outcome, notes = await retaining.change(site, asked.topic, asked.node, wanted)
    elif asked.action.startswith("redeliver"):
        outcome, notes = await _redeliver(site, asked)
    else:
        outcome, notes = await _tell(site, asked), {}
    if outcome.done:
        site.sampler.expire()
        site.notify(request, asked.event, asked.topic, asked.channel, asked.node)
    return _result(site, request, asked, outcome, notes)


def _result(site: Site, request: Request, asked: Asked, outcome: Outcome, notes: dict[str, str]) -> Response:
    gone = asked.action == "delete" and not asked.node
    back = _page_of(site, asked)
    if gone:
        back = site.link.topic(asked.topic) if asked.channel else site.link.home()
    question = _question(asked)
    values = {
        "title": f"{question.verb}: {asked.name}",
        "failures": outcome.failures,
        "done": [Done(each.kind, each.address, notes.get(each.address, "")) for each in outcome.done],
        "detail": "" if outcome.done or outcome.failures else "There was no node to tell.",
        "back": back,
        "back_label": "Go on",
        "stays": not gone and asked.action != "create",
    }
    status = 502 if outcome.failures and not outcome.done else 200
    return site.render(request, "result.html", values, status)


async def _tell(site: Site, asked: Asked) -> Outcome:
    actions, topic, channel, node = site.actions, asked.topic, asked.channel, asked.node
    if asked.action == "create":
        return await (actions.create_channel(topic, channel) if channel else actions.create_topic(topic))
    if asked.action == "tombstone":
        return await actions.tombstone(topic, node)
    if asked.action == "delete":
        if channel:
            return await actions.delete_channel(topic, channel, node)
        if node:
            raise PageError(400, "Not on one node", "A topic is taken off one node by a tombstone.")
        return await actions.delete_topic(topic)
    if channel:
        return await actions.act_on_channel(topic, channel, asked.action, node)
    return await actions.act_on_topic(topic, asked.action, node)


async def _nodes(site: Site, topic: str) -> list[Node]:
    return (await site.cluster.producers(topic)).value


async def _publish(site: Site, asked: Asked, form: dict[str, str]) -> tuple[Outcome, dict[str, str]]:
    # A browser sends line ends as CR LF.
    body = form.get("body", "").replace("\r\n", "\n").encode("utf-8", "surrogateescape")
    defer = form.get("defer", "").strip() or "0"
    if not body:
        raise PageError(400, "Nothing to publish", "A message has at least one byte.")
    if not (defer.isascii() and defer.isdecimal() and int(defer) <= MAX_DEFER_MS):
        raise PageError(400, "No such delay", f"{defer!r} is no number of ms up to {MAX_DEFER_MS:,}.")
    node = (await site.cluster.find_node(asked.node)).value
    try:
        await site.inspection.publish(node, asked.topic, body, defer_ms=int(defer))
    except NsquarkError as error:
        return Outcome(failures=[failed_at(node, error)]), {}
    return Outcome(done=[nsqd(node.address)]), {node.address: f"{len(body):,} bytes"}


async def _redeliver(site: Site, asked: Asked) -> tuple[Outcome, dict[str, str]]:
    found = await site.cluster.producers(asked.topic)
    limit = None if asked.action == "redeliver" else 1
    nodes = [node for node in found.value if not asked.letter or node.address == asked.node]
    if asked.letter and not nodes:
        raise NodeNotFound(f"no nsqd with the topic {asked.topic!r} has the address {asked.node!r}")
    outcome = Outcome(failures=list(found.failures))
    notes: dict[str, str] = {}

    async def send_back(node: Node) -> None:
        try:
            answer = await site.inspection.redeliver(node, asked.topic, asked.channel, limit, asked.letter)
        except NsquarkError as error:
            outcome.failures.append(failed_at(node, error))
        else:
            outcome.done.append(nsqd(node.address))
            notes[node.address] = f"{answer.get('redelivered', 0)} sent back"

    await asyncio.gather(*map(send_back, nodes))
    return outcome, notes
