"""Looking at messages: peeks at topics and channels, and dead letters. Nothing is consumed."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from itertools import zip_longest
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from nsquark.errors import NsquarkError
from nsquark.http.client.protocol import BadStatus
from nsquark.names import DEAD_LETTER_CHANNEL, dead_topic, is_valid_name

from ...cluster import Node, explain
from ..site import PageError, Site

STATES = ("ready", "requeued", "in_flight", "deferred")
MOST_MESSAGES = 100
_ID = re.compile(r"[0-9a-f]{16}")
MOST_NODES = 16  # that are asked for one page

Message = dict[str, Any]
Peeked = tuple[list[tuple[str, Message]], list[str], int]


def asked_names(request: Request, *, channel: bool) -> tuple[str, str]:
    """The topic and the channel that the query names. Raises PageError."""
    topic, name = request.query_params.get("topic", ""), request.query_params.get("channel", "")
    if not is_valid_name(topic) or (name and not is_valid_name(name)) or (channel and not name):
        raise PageError(
            400, "Something is missing", "The address does not say which topic or channel it is for."
        )
    return topic, name


async def peek(site: Site, request: Request) -> Response:
    topic, channel = asked_names(request, channel=False)
    query = request.query_params
    state = query.get("state", "ready")
    if state not in STATES:
        raise PageError(400, "No such state", f"{state!r} is none of {', '.join(STATES)}.")
    start = _number(query.get("from", ""))
    limit = min(max(_number(query.get("limit", "")) or 10, 1), MOST_MESSAGES)
    nodes = (await site.cluster.producers(topic)).value
    chosen = [node for node in nodes if node.address == query.get("node")] or nodes

    async def look(node: Node) -> Message:
        if channel:
            return await site.inspection.peek_channel(node, topic, channel, state, limit=limit)
        return await site.inspection.peek_topic(node, topic, start=start, limit=limit)

    messages, problems, _ = await _ask(chosen, look, f"no channel {channel}")
    if not channel and start is None:
        messages.sort(key=lambda each: -_integer(each[1], "timestamp"))
    values = {
        "section": "Topics",
        "topic": topic,
        "channel": channel,
        "state": state,
        "start": start,
        "limit": limit,
        "node": chosen[0].address if len(chosen) == 1 and len(nodes) > 1 else "",
        "nodes": nodes,
        "messages": messages[:limit],
        "problems": problems,
    }
    return site.render(request, "peek.html", values)


async def dead_letters(site: Site, request: Request) -> Response:
    topic, channel = asked_names(request, channel=True)
    dead = dead_topic(topic, channel)
    found = await site.cluster.channel(topic, channel)
    nodes = (await site.cluster.producers(topic)).value

    async def look(node: Node) -> Message:
        try:
            return await site.inspection.peek_channel(node, dead, DEAD_LETTER_CHANNEL, "ready", limit=20)
        except BadStatus as error:
            if error.status == 404 and error.message in ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"):
                return {}  # nothing has died here yet
            raise

    messages, problems, waiting = await _ask(nodes, look)
    limits = (
        {each.max_attempts for each in (found.value.nodes or ()) if each.max_attempts}
        if found.value
        else set()
    )
    values = {
        "section": "Topics",
        "topic": topic,
        "channel": channel,
        "dead_topic": dead,
        "messages": [(node, parse_letter(message)) for node, message in messages],
        "waiting": waiting,
        "problems": problems,
        "limits": " or ".join(map(str, sorted(limits))),
    }
    return site.render(request, "dead.html", values)


def parse_letter(message: Message) -> Message:
    """A dead letter as the message that it was; the history that goes before its body is told beside it.

    `letter` is the id by which nsqd sends it back; empty of what is no dead letter.
    """
    text = message.get("body")
    try:
        if isinstance(text, str):
            body = text.encode("utf-8", "surrogatepass")
        else:
            body = b64decode(message.get("body_base64") or "", validate=True)
        head, _, rest = body.partition(b"\n")
        told = json.loads(head)
    except (ValueError, RecursionError):
        return {**message, "letter": ""}
    if not isinstance(told, dict):
        return {**message, "letter": ""}
    letter = {
        key: told[key] for key in ("attempts", "timestamp", "died", "position") if type(told.get(key)) is int
    }
    name = str(told.get("id", ""))
    shown: Message = {"id": name, "letter": name if _ID.fullmatch(name) else "", "size": len(rest)}
    if isinstance(text, str):
        shown["body"] = rest.decode("utf-8", "surrogatepass")
    else:
        shown["body_base64"] = b64encode(rest).decode("ascii")
    return {**message, **letter, **shown}


async def _ask(nodes: list[Node], look: Callable[[Node], Awaitable[Message]], absent: str = "") -> Peeked:
    """The messages of the nodes, what could not be asked and why, and how many messages wait."""

    async def one(node: Node) -> Message | str:
        try:
            return await look(node)
        except BadStatus as error:
            if absent and error.message == "CHANNEL_NOT_FOUND":
                return f"{node.address} has {absent}"
            return explain(node, error)
        except NsquarkError as error:
            return explain(node, error)

    problems: list[str] = []
    waiting = 0
    if len(nodes) > MOST_NODES:
        problems.append(f"{MOST_NODES} of {len(nodes)} nsqds were asked; choose one to see another.")
    answers = await asyncio.gather(*map(one, nodes[:MOST_NODES]))
    found: list[list[tuple[str, Message]]] = []
    for node, answer in zip(nodes, answers, strict=False):
        if isinstance(answer, str):
            problems.append(answer)
            continue
        waiting += _integer(answer, "depth")
        found.append([(node.address, message) for message in peeked(answer)])
    # Every node has its turn, so that those of the first do not fill the page.
    messages = [each for row in zip_longest(*found) for each in row if each is not None]
    return messages, problems, waiting


def peeked(answer: Message) -> list[Message]:
    """The messages of nsqd's answer to a peek."""
    found = answer.get("messages")
    return [_clean(each) for each in found if isinstance(each, dict)] if isinstance(found, list) else []


_NUMBERS = ("position", "timestamp", "attempts", "due", "size", "delivered", "deadline", "died")
_TEXTS = ("id", "client", "client_id", "body", "body_base64")


def _clean(message: Message) -> Message:
    """The fields that a page shows, each of the type that it should have: the answer is another program's."""
    shown: Message = dict.fromkeys(_NUMBERS)
    shown |= {name: message[name] for name in _NUMBERS if type(message.get(name)) is int}
    shown |= {name: message[name] for name in _TEXTS if isinstance(message.get(name), str)}
    return {"id": "", "client": "", "client_id": "", **shown, "size": shown["size"] or 0}


def _integer(answer: Message, name: str) -> int:
    value = answer.get(name)
    return value if type(value) is int else 0


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None
