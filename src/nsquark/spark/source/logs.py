"""What the nsqds tell about the logs of their topics, by /log/range."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ..errors import BadResponse, NoSuchTopic, OptionError, RequestRefused, Unreachable
from ..http import Access, fetch_json
from ..parallel import try_each
from .directory import Directory, Node
from .options import Bound

logger = logging.getLogger(__name__)

LogKey = tuple[str, str]  # topic, id of the nsqd


class LogRange(NamedTuple):
    """The log of a topic at an nsqd: it holds the positions [first, next)."""

    topic: str
    nsqd_id: str  # stays the same when the address of the nsqd changes
    node: Node
    epoch: str
    first: int
    next: int
    bytes: int
    position: int | None = None  # at the time that the request asked for
    cursor: int | None = None  # of the channel that the request asked for

    @property
    def key(self) -> LogKey:
        return self.topic, self.nsqd_id


class NsqdWithoutLog(Exception):
    """An nsqd that keeps no log: a stock NSQ nsqd."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.name)
        self.node = node


def ask_log_range(node: Node, access: Access, topic: str, wait: float = 0.0, **query: Any) -> LogRange:
    """Ask for the range of one log; the nsqd waits up to `wait` seconds for news.

    Raises Unreachable, RequestRefused, BadResponse, or NsqdWithoutLog.
    """
    if not node.url:
        raise NsqdWithoutLog(node)
    if wait:
        query["wait_ms"] = int(wait * 1000)
    try:
        document = fetch_json(node.url, access, "/log/range", {"topic": topic, **query}, hold=wait)
    except RequestRefused as error:
        # A stock nsqd does not know the route.
        if error.status == 404 and error.message not in ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"):
            raise NsqdWithoutLog(node) from None
        raise
    return _parse_log_range(node, document)


def _parse_log_range(node: Node, document: dict[str, Any]) -> LogRange:
    try:
        channel = document.get("channel")
        return LogRange(
            document["topic"],
            document["node"],
            node,
            document["epoch"],
            int(document["first"]),
            int(document["next"]),
            int(document["bytes"]),
            document.get("position"),
            None if channel is None else int(channel["position"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadResponse(f"{node.url}/log/range: not an answer of nsqd: {error!r}") from None


def find_logs(directory: Directory) -> list[LogRange]:
    """Every log of the subscription. Raises Unreachable, NoSuchTopic, NsqdWithoutLog."""
    found = directory.find()
    answers = try_log_ranges(directory, [(topic, node) for topic, nodes in found.items() for node in nodes])
    logs = list(present(answers))
    for topic in directory.subscription.topics:
        if not any(log.topic == topic for log in logs):
            raise _missing(topic, directory, found.get(topic, []), answers)
    if not logs:
        raise NoSuchTopic(f"option 'subscribePattern': no topic matches {directory.subscription}")
    return logs


def try_log_ranges(directory: Directory, pairs: Sequence[tuple[str, Node]]) -> Sequence[LogRange | Exception]:
    """Ask for the logs of these topics at these nsqds, all at the same time."""
    return try_each(lambda pair: ask_log_range(pair[1], directory.access, pair[0]), pairs)


def present(answers: Iterable[LogRange | Exception]) -> Iterator[LogRange]:
    """The logs among the answers. Passes over an nsqd that is away and an nsqd without the topic."""
    for answer in answers:
        if isinstance(answer, LogRange):
            yield answer
        elif isinstance(answer, Unreachable):
            logger.warning("%s", answer)
        elif not (isinstance(answer, RequestRefused) and answer.status == 404):
            raise answer


def _missing(
    topic: str, directory: Directory, nodes: list[Node], answers: Iterable[object]
) -> Unreachable | NoSuchTopic:
    silent = [str(answer) for answer in answers if isinstance(answer, Unreachable)] + directory.problems
    if silent:
        return Unreachable("; ".join(dict.fromkeys(silent)))
    asked = ", ".join(node.name for node in nodes) or ", ".join(directory.addresses.lookupd)
    return NoSuchTopic(f"option 'subscribe': no topic {topic!r} at {asked}")


def check_positions(option: str, bound: Bound, logs: Iterable[LogRange]) -> None:
    """Raise OptionError if positions are given for an nsqd that does not have the topic.

    A misspelt name would otherwise count as a log without a position, and all of the log would be read.
    """
    for topic, nsqds in (bound.positions or {}).items():
        known = {name for log in logs if log.topic == topic for name in (log.nsqd_id, log.node.name)}
        for nsqd in nsqds:
            if nsqd not in known:
                raise OptionError(option, f"topic {topic!r} is not at nsqd {nsqd!r}")


def check_topics(option: str, bound: Bound, logs: Iterable[LogRange]) -> None:
    """Raise NoSuchTopic if positions are given for a topic that is not read."""
    topics = {log.topic for log in logs}
    for topic in bound.positions or {}:
        if topic not in topics:
            raise NoSuchTopic(f"option '{option}': no topic {topic!r} among those that are read")
