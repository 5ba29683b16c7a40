"""The nsqds of a query: which topics there are, and at which nsqds.

A directory asks the nsqlookupds, or the nsqds that the options name, anew every poll interval. A daemon that
does not answer this time counts with its last answer.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from nsquark.net.addresses import join_address

from ..errors import BadResponse, RequestRefused, Unreachable
from ..http import fetch_json
from ..nsqd_urls import find_http_url, find_https_url
from ..options import Addresses
from ..parallel import try_each
from .subscription import Subscription

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Node:
    """An nsqd: `name` is the host:port that it broadcasts for its TCP port, `url` is that of its HTTP API.

    The URL is empty if the options give the TCP address of a stock nsqd, which does not tell its HTTP port.
    """

    name: str
    url: str


_NodesByTopic = dict[str, tuple[Node, ...]]


class Directory:
    """Which nsqds may have the topics of a subscription."""

    def __init__(self, addresses: Addresses, subscription: Subscription, through: str = "") -> None:
        """`through` is the channel of a streaming query: a secret may allow no other."""
        self.addresses = addresses
        self.through = through
        self.access = addresses.access
        self.subscription = subscription
        self.problems: list[str] = []  # of the daemons that did not answer last time
        self._answers: dict[str, _NodesByTopic] = {}  # the last answer of each daemon, by its address
        self._https_urls: dict[str, str] = {}  # the URL to use, by the URL that was given
        self._due = 0.0

    @property
    def due(self) -> bool:
        """Whether the poll interval is over."""
        return time.monotonic() >= self._due

    def find(self) -> dict[str, list[Node]]:
        """Ask all daemons. Raises Unreachable if none of them has ever answered."""
        addresses = self.addresses
        self._due = time.monotonic() + addresses.poll_interval
        daemons = addresses.lookupd or addresses.nsqd_http or addresses.nsqd_tcp
        answers = try_each(self._ask_lookupd if addresses.lookupd else self._ask_nsqd, daemons)
        self.problems = []
        for daemon, answer in zip(daemons, answers, strict=True):
            if isinstance(answer, dict):
                self._answers[daemon] = answer
            elif isinstance(answer, (Unreachable, RequestRefused)):
                self.problems.append(str(answer))
                logger.warning("%s", answer)
            else:
                raise answer
        if not self._answers:
            raise Unreachable("; ".join(self.problems))
        topics = sorted({topic for answer in self._answers.values() for topic in answer})
        return {topic: self.nodes(topic) for topic in topics}

    def nodes(self, topic: str) -> list[Node]:
        """The nsqds that may have a topic and are read, by the last answers of all daemons."""
        known = dict.fromkeys(node for answer in self._answers.values() for node in answer.get(topic, ()))
        return [node for node in known if self.subscription.includes(topic, node.name)]

    def _ask_lookupd(self, lookupd: str) -> _NodesByTopic:
        known: list[str] = []
        if self.subscription.pattern:
            known = fetch_json(lookupd, self.access, "/topics").get("topics") or []
        return {topic: self._ask_producers(lookupd, topic) for topic in self._subscribed(known)}

    def _ask_producers(self, lookupd: str, topic: str) -> tuple[Node, ...]:
        try:
            producers = fetch_json(lookupd, self.access, "/lookup", {"topic": topic}).get("producers") or ()
        except RequestRefused as error:
            if error.status == 404:
                return ()
            raise
        nodes = []
        for each in producers:
            host = each["broadcast_address"]
            url = self._usable_url("http://" + join_address(host, each["http_port"]))
            nodes.append(Node(join_address(host, each["tcp_port"]), url))
        return tuple(nodes)

    def _ask_nsqd(self, address: str) -> _NodesByTopic:
        url = address if "://" in address else find_http_url(address, self.access)
        if not url:
            return dict.fromkeys(self.subscription.topics, (Node(address, ""),))
        # An nsqd that does not answer now is not asked a second time, since the query waits for the answer.
        if url not in self._https_urls:
            self._https_urls[url] = find_https_url(url, self.access)
        url = self._https_urls[url]
        info = fetch_json(url, self.access, "/info")
        node = Node(join_address(info["broadcast_address"], info["tcp_port"]), url)
        known: list[str] = []
        if self.subscription.pattern:
            query = {"format": "json", "include_clients": "false", "include_mem": "false"}
            stats = fetch_json(url, self.access, "/stats", query)
            known = [each["topic_name"] for each in stats.get("topics") or ()]
        return dict.fromkeys(self._subscribed(known), (node,))

    def _subscribed(self, known: list[str]) -> list[str]:
        """The topics that the subscription names, and those of the known ones that match its pattern."""
        matching = (topic for topic in known if self.subscription.matches(topic))
        return list(dict.fromkeys([*self.subscription.topics, *matching]))

    def _usable_url(self, url: str) -> str:
        """The HTTPS URL if the nsqd requires TLS; an nsqd that does not answer is asked again next time."""
        if url not in self._https_urls:
            try:
                self._https_urls[url] = find_https_url(url, self.access)
            except (Unreachable, BadResponse):
                return url
        return self._https_urls[url]
