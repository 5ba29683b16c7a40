"""Which nsqds there are, which topics they have, and what each says about its logs.

An nsqd is known by its stable id; where it listens is looked up anew now and then, and whoever cannot be
asked this time keeps what was said about it last. Used by sources and sinks alike.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ..errors import BadAnswer, NoSuchTopic, Refused, Unreachable
from ..http import Access, fetch
from ..nsqd_urls import http_url, https_url, join
from ..options import Addresses, Subscription

logger = logging.getLogger(__name__)

_AT_ONCE = 16
_T = TypeVar("_T")


@dataclass(frozen=True)
class Node:
    """An nsqd: `name` is host:port of its TCP port, as it calls itself; `url` is where its HTTP API is.

    There is no URL if it was given by its TCP address and does not say.
    """

    name: str
    url: str


class Log(NamedTuple):
    """A topic at an nsqd, as /log/range tells."""

    topic: str
    id: str  # of the nsqd, whatever its address
    node: Node
    epoch: str
    first: int
    next: int
    bytes: int
    position: int | None = None  # at the time that was asked for
    cursor: int | None = None  # of the channel that was asked for

    @property
    def key(self) -> tuple[str, str]:
        return self.topic, self.id


def parse_log(node: Node, told: dict[str, Any]) -> Log:
    """Raises BadAnswer if that is not an answer to /log/range."""
    try:
        channel = told.get("channel")
        return Log(
            told["topic"],
            told["node"],
            node,
            told["epoch"],
            int(told["first"]),
            int(told["next"]),
            int(told["bytes"]),
            told.get("position"),
            None if channel is None else int(channel["position"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadAnswer(f"{node.url}/log/range: not an answer of nsqd: {error!r}") from None


def lacks_log(error: Refused) -> bool:
    """Whether this is what an nsqd says that has no logs to read: one that is not nsquark's."""
    return error.status == 404 and error.message not in ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND")


class NoLog(Exception):
    """An nsqd that has no logs to read."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.name)
        self.node = node


def ask_log(node: Node, access: Access, topic: str, patience: float = 0.0, **query: Any) -> Log:
    """/log/range. Raises Unreachable, Refused, BadAnswer, or NoLog."""
    if not node.url:
        raise NoLog(node)
    if patience:
        query["wait_ms"] = int(patience * 1000)
    try:
        told = fetch(node.url, access, "/log/range", {"topic": topic, **query}, patience=patience)
    except Refused as error:
        if lacks_log(error):
            raise NoLog(node) from None
        raise
    return parse_log(node, told)


class Directory:
    """The nsqds of a subscription, found anew every poll interval."""

    def __init__(self, addresses: Addresses, subscription: Subscription) -> None:
        self._addresses = addresses
        self._subscription = subscription
        self._access = addresses.access
        self._said: dict[str, dict[str, tuple[Node, ...]]] = {}  # by whom: topic: nsqds
        self._problems: list[str] = []
        self._secure: dict[str, str] = {}  # URL: the one that is to be used
        self._due = 0.0
        self._pool: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_pool": None}

    def every(self, work: Any, items: Iterable[_T]) -> list[Any]:
        """`work` for each, at the same time; what it raises is given in place of a result."""
        items = list(items)
        if len(items) < 2:
            return [_tried(work, item) for item in items]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_AT_ONCE, "nsqd")
        return list(self._pool.map(lambda item: _tried(work, item), items))

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._due

    def find(self) -> dict[str, list[Node]]:
        """The topics there are and the nsqds that may have them. Raises Unreachable if nobody answers."""
        self._due = time.monotonic() + self._addresses.poll_interval
        addresses = self._addresses
        sources = addresses.lookupd or addresses.nsqd_http or addresses.nsqd_tcp
        ask = self._ask_lookupd if addresses.lookupd else self._ask_nsqd
        answers = self.every(ask, sources)
        self._problems = []
        for source, answer in zip(sources, answers, strict=True):
            if isinstance(answer, dict):
                self._said[source] = answer
            elif isinstance(answer, (Unreachable, Refused)):
                self._problems.append(str(answer))
                logger.warning("%s", answer)
            else:
                raise answer
        if not self._said:
            raise Unreachable("; ".join(self._problems))
        found: dict[str, dict[Node, None]] = {}
        for said in self._said.values():
            for topic, nodes in said.items():
                found.setdefault(topic, {}).update(dict.fromkeys(nodes))
        return {topic: list(nodes) for topic, nodes in sorted(found.items())}

    def nodes(self, topic: str) -> list[Node]:
        """Those that were said to have a topic when it was last asked."""
        return list(dict.fromkeys(node for said in self._said.values() for node in said.get(topic, ())))

    def logs(self) -> list[Log]:
        """Every log there is. Raises Unreachable, NoSuchTopic, NoLog."""
        found = self.find()
        pairs = [(topic, node) for topic, nodes in found.items() for node in nodes]
        answers = self.every(lambda pair: ask_log(pair[1], self._access, pair[0]), pairs)
        logs = list(self.present(answers))
        for topic in self._subscription.topics:
            if not any(log.topic == topic for log in logs):
                raise self._missing(topic, found.get(topic, []), answers)
        if not logs:
            raise NoSuchTopic(f"option 'subscribePattern': no topic matches {self._subscription}")
        return logs

    def _missing(self, topic: str, nodes: list[Node], answers: list[object]) -> Exception:
        silent = [str(answer) for answer in answers if isinstance(answer, Unreachable)] + self._problems
        if silent:
            return Unreachable("; ".join(dict.fromkeys(silent)))
        asked = ", ".join(node.name for node in nodes) or ", ".join(self._addresses.lookupd)
        return NoSuchTopic(f"option 'subscribe': no topic {topic!r} at {asked}")

    @staticmethod
    def present(answers: Iterable[object]) -> Iterator[Log]:
        """The logs among the answers; an nsqd that is away, or has not got the topic, is passed over."""
        for answer in answers:
            if isinstance(answer, Log):
                yield answer
            elif isinstance(answer, Unreachable):
                logger.warning("%s", answer)
            elif not (isinstance(answer, Refused) and answer.status == 404):
                assert isinstance(answer, Exception)
                raise answer

    # ---- asking

    def _ask_lookupd(self, lookupd: str) -> dict[str, tuple[Node, ...]]:
        topics = list(self._subscription.topics)
        if self._subscription.pattern:
            every = fetch(lookupd, self._access, "/topics").get("topics") or ()
            topics += [topic for topic in every if self._subscription.matches(topic) and topic not in topics]
        return {topic: self._producers(lookupd, topic) for topic in topics}

    def _producers(self, lookupd: str, topic: str) -> tuple[Node, ...]:
        try:
            producers = fetch(lookupd, self._access, "/lookup", {"topic": topic}).get("producers") or ()
        except Refused as error:
            if error.status == 404:
                return ()
            raise
        nodes = []
        for each in producers:
            host = each["broadcast_address"]
            url = self._reachable("http://" + join(host, each["http_port"]))
            nodes.append(Node(join(host, each["tcp_port"]), url))
        return tuple(nodes)

    def _ask_nsqd(self, address: str) -> dict[str, tuple[Node, ...]]:
        url = address if "://" in address else http_url(address, self._access)
        if not url:
            return {topic: (Node(address, ""),) for topic in self._subscription.topics}
        url = self._reachable(url)
        info = fetch(url, self._access, "/info")
        node = Node(join(info["broadcast_address"], info["tcp_port"]), url)
        topics = list(self._subscription.topics)
        if self._subscription.pattern:
            query = {"format": "json", "include_clients": "false", "include_mem": "false"}
            for each in fetch(url, self._access, "/stats", query).get("topics") or ():
                name = each["topic_name"]
                if self._subscription.matches(name) and name not in topics:
                    topics.append(name)
        return dict.fromkeys(topics, (node,))

    def _reachable(self, url: str) -> str:
        """The URL to use: an nsqd may require TLS."""
        if url not in self._secure:
            try:
                self._secure[url] = https_url(url, self._access)
            except (Unreachable, BadAnswer):
                return url
        return self._secure[url]


def _tried(work: Any, item: object) -> Any:
    try:
        return work(item)
    except Exception as error:
        return error
