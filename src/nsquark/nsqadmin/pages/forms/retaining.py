"""How much of a topic is kept once all its channels have finished it: the form, and telling each nsqd.

nsquark's nsqd alone keeps finished messages, for a channel that is moved back and for Spark.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from nsquark.errors import NsquarkError
from nsquark.gotext import parse_duration

from ...cluster import Node, NodeNotFound, Outcome, explain, failed_at
from ...cluster.document import Document, integer
from ...upstream import Found, nsqd
from ..parts.format import kept, size
from ..site import PageError, Site

WORDS = ("default", "unlimited")
_SIZE = re.compile(r"([0-9]{1,15})\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_DAYS = re.compile(r"([0-9]{1,6})\s*d")
_LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Present:
    """What a node keeps now, in words; or why that is not known."""

    node: str
    told: str


def parse_time(text: str) -> str:
    """As nsqd's `/topic/retention` takes it: `72h`, `30d`, 0, `unlimited` or `default`. Raises PageError."""
    text = text.strip().lower()
    if text in (*WORDS, "0"):
        return text
    days = _DAYS.fullmatch(text)
    try:
        ns = int(days[1]) * 86_400_000_000_000 if days else parse_duration(text)
    except ValueError:
        ns = -1
    if not 0 <= ns <= _LARGEST:
        raise PageError(
            400,
            "No such time",
            f"{text!r} is no length of time.",
            "Write 72h, 30d, unlimited, or default for what nsqd's flags say.",
        )
    return f"{ns}ns"


def parse_bytes(text: str) -> str:
    """As nsqd's `/topic/retention` takes it: `500M`, `20 GiB`, `unlimited` or `default`. Raises PageError."""
    text = text.strip().lower()
    if text in WORDS:
        return text
    found = _SIZE.fullmatch(text)
    number = int(found[1]) << _UNITS[found[2].lower()] if found else -1
    if not 0 <= number <= _LARGEST:
        raise PageError(
            400,
            "No such size",
            f"{text!r} is no number of bytes.",
            "Write 500M, 20 GiB, unlimited, or default for what nsqd's flags say.",
        )
    return str(number)


def parse_form(form: dict[str, str]) -> dict[str, str]:
    """What is to change: `time`, `bytes` or both. What is left empty stays as it is. Raises PageError."""
    wanted = {}
    if form.get("time", "").strip():
        wanted["time"] = parse_time(form["time"])
    if form.get("bytes", "").strip():
        wanted["bytes"] = parse_bytes(form["bytes"])
    if not wanted:
        raise PageError(400, "Nothing to change", "Say how long, how much, or both.")
    return wanted


async def present(site: Site, topic: str, node: str) -> list[Present]:
    """What the nodes of a topic, or the one, keep now. Raises UpstreamError and NodeNotFound."""

    async def ask(each: Node) -> Present:
        try:
            return Present(each.address, _told(await site.inspection.retention(each, topic)))
        except NsquarkError as error:
            return Present(each.address, explain(each, error))

    nodes = (await _nodes(site, topic, node)).value
    return list(await asyncio.gather(*map(ask, nodes)))


async def change(site: Site, topic: str, node: str, wanted: dict[str, str]) -> tuple[Outcome, dict[str, str]]:
    """Tell every nsqd that has the topic, or the one; and what each keeps from now on.

    Raises UpstreamError and NodeNotFound.
    """
    found = await _nodes(site, topic, node)
    outcome = Outcome(failures=list(found.failures))
    notes: dict[str, str] = {}

    async def tell(each: Node) -> None:
        try:
            answer = await site.inspection.retain(each, topic, wanted)
        except NsquarkError as error:
            outcome.failures.append(failed_at(each, error))
        else:
            outcome.done.append(nsqd(each.address))
            notes[each.address] = f"keeps {_told(answer)}"

    await asyncio.gather(*map(tell, found.value))
    return outcome, notes


async def _nodes(site: Site, topic: str, node: str) -> Found[list[Node]]:
    found = await site.cluster.producers(topic)
    nodes = [each for each in found.value if not node or each.address == node]
    if node and not nodes:
        raise NodeNotFound(f"no nsqd with the topic {topic!r} has the address {node!r}")
    return Found(nodes, found.failures)


def _told(answer: Document) -> str:
    held = kept(integer(answer, "retention_bytes"), integer(answer, "retention_time"))
    flags = " (by its flags)" if answer.get("own_bytes") is None and answer.get("own_time") is None else ""
    archived = integer(answer, "archived_bytes") if "archived_bytes" in answer else 0
    archive = f", and the archive {size(archived)} before that" if archived else ""
    return f"{held}{flags}; the log has {size(integer(answer, 'bytes'))}{archive}"
