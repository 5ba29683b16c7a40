"""What the nsqds tell about the logs of their topics, by /log/range."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ..errors import BadResponse, NoSuchTopic, OptionError, RequestRefused, Unreachable
from ..http import Access, fetch_json
from ..parallel import try_each
from .bounds import Bound
from .directory import Directory, Node

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
    moves: int = 0  # how often operators have moved that channel
    emptied: tuple[int, int] | None = None  # the first range ahead of the query that they have emptied
    origin: int | None = None  # where the log began when it was new

    @property
    def key(self) -> LogKey:
        return self.topic, self.nsqd_id


def warn_of_gone_beginning(log: LogRange) -> None:
    """Say what is missing to a user that asks for everything, if the log no longer has its first messages."""
    if log.origin is not None and log.origin < log.first:
        logger.warning(
            "topic %r at nsqd %s: 'earliest' is position %d; the messages [%d, %d) are no longer in the log: "
            "nsqd keeps what all channels have finished only as long as the topic's retention says",
            log.topic,
            log.node.name,
            log.first,
            log.origin,
            log.first,
        )


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
        if error.message == "NOT_PRIMARY":  # it may have led its replica group when its address was found
            raise Unreachable(f"nsqd {node.name} is a standby of its replica group") from None
        raise
    return _parse_log_range(node, document)


def _parse_log_range(node: Node, document: dict[str, Any]) -> LogRange:
    try:
        channel = document.get("channel")
        emptied = None if channel is None else channel.get("emptied")
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
            0 if channel is None else int(channel.get("moves", 0)),
            None if emptied is None else (int(emptied[0]), int(emptied[1])),
            document.get("origin"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadResponse(f"{node.url}/log/range: not an answer of nsqd: {error!r}") from None


def find_logs(directory: Directory) -> list[LogRange]:
    """Every log of the subscription. Raises Unreachable, NoSuchTopic, NsqdWithoutLog."""
    found = directory.find()
    answers = try_log_ranges(directory, [(topic, node) for topic, nodes in found.items() for node in nodes])
    logs = list(present(answers))
    subscription = directory.subscription
    for topic in subscription.topics:
        if not any(log.topic == topic for log in logs):
            raise _missing(topic, directory, found.get(topic, []), answers)
    for topic, nsqd in sorted(subscription.assigned - {(log.topic, log.node.name) for log in logs}):
        raise _missing(topic, directory, [Node(nsqd, "")], answers)
    if not logs:
        raise NoSuchTopic(f"option '{subscription.option}': no topic matches {subscription}")
    return logs


def try_log_ranges(directory: Directory, pairs: Sequence[tuple[str, Node]]) -> Sequence[LogRange | Exception]:
    """Ask for the logs of these topics at these nsqds, all at the same time."""
    through = reading_through(directory.through)
    return try_each(lambda pair: ask_log_range(pair[1], directory.access, pair[0], **through), pairs)


def reading_through(channel: str) -> dict[str, Any]:
    """What a request for a log says, so that a secret for this channel alone suffices."""
    return {"through": channel} if channel else {}


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
    return NoSuchTopic(f"option '{directory.subscription.option}': no topic {topic!r} at {asked}")


def check_positions(bound: Bound, logs: Sequence[LogRange]) -> None:
    """Raise OptionError if a position or a time is given for an nsqd that does not have the topic.

    A misspelt name would otherwise count as a log without a position, and all of the log would be read.
    """
    for topic, nsqds in bound.named_nsqds().items():
        known = {name for log in logs if log.topic == topic for name in (log.nsqd_id, log.node.name)}
        for nsqd in nsqds:
            if nsqd not in known:
                raise OptionError(bound.option, f"topic {topic!r} is not at nsqd {nsqd!r}")


def check_topics(bound: Bound, logs: Iterable[LogRange]) -> None:
    """Raise NoSuchTopic if positions or times are given for a topic that is not read."""
    topics = {log.topic for log in logs}
    for topic in bound.named_nsqds():
        if topic not in topics:
            raise NoSuchTopic(f"option '{bound.option}': no topic {topic!r} among those that are read")
