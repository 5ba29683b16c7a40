"""The nsqds of the cluster, as nsqlookupds or they themselves tell of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nsquark.net.addresses import join_address

from ..upstream import endpoint
from .document import Document, Fields, integer, text, texts

_NUMBER, _LABEL = "([0-9]{1,9})", "[0-9A-Za-z.-]+"
_VERSION = re.compile(rf"v?{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_LABEL}))?(?:\+{_LABEL})?")


_PRODUCER = Fields(
    hostname=str, broadcast_address=str, tcp_port=int, http_port=int, version=str, remote_address=str
)


@dataclass(slots=True)
class NodeTopic:
    topic: str
    tombstoned: bool


@dataclass(slots=True)
class Node:
    """An nsqd. `address`, its broadcast address with the HTTP port, is what nsqadmin calls it by."""

    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    topics: list[NodeTopic] = field(default_factory=list)
    remote_address: str = ""
    # `<nsqlookupd>/<address it sees>`, one per sighting; None without nsqlookupds.
    remote_addresses: list[str] | None = None
    out_of_date: bool = False
    # Where to reach it, if it was configured and not found through nsqlookupd.
    configured_address: str = ""

    @property
    def address(self) -> str:
        return join_address(self.broadcast_address, self.http_port)

    @property
    def dial_address(self) -> str:
        """Where its HTTP API is: a configured address is known to lead there, a broadcast address is not."""
        return self.configured_address or self.address

    def to_json(self) -> dict[str, Any]:
        return {
            "remote_addresses": self.remote_addresses,
            "remote_address": self.remote_address,
            "hostname": self.hostname,
            "broadcast_address": self.broadcast_address,
            "tcp_port": self.tcp_port,
            "http_port": self.http_port,
            "version": self.version,
            "topics": [{"topic": each.topic, "tombstoned": each.tombstoned} for each in self.topics],
            "out_of_date": self.out_of_date,
        }


def parse_producer(document: Document, *, topics: bool = True) -> Node:
    """A producer of nsqlookupd's `/nodes` or `/lookup`.

    Its topics, which may be thousands, on demand; without that, those few that are tombstoned.
    """
    hostname, broadcast_address, tcp_port, http_port, version, remote_address = _PRODUCER.read(document)
    return Node(
        hostname,
        # NSQ before 1.0 says `address`.
        broadcast_address or text(document, "address") or hostname,
        tcp_port,
        http_port,
        version,
        _parse_topics(document, all_of_them=topics),
        remote_address,
    )


def _parse_topics(document: Document, *, all_of_them: bool) -> list[NodeTopic]:
    tombstones = document.get("tombstones")
    # Hardly ever is anything tombstoned.
    flags = tombstones if isinstance(tombstones, list) and True in tombstones else []
    if not flags and not all_of_them:
        return []
    names = texts(document, "topics")
    tombstoned = {name for name, flag in zip(names, flags, strict=False) if flag is True}
    return [
        NodeTopic(name, name in tombstoned) for name in sorted(names) if all_of_them or name in tombstoned
    ]


def parse_info(info: Document, address: str) -> Node:
    """An nsqd that was asked itself, at its configured address, which stands in for what it does not tell."""
    _, host, port = endpoint(address)
    return Node(
        text(info, "hostname") or host,
        text(info, "broadcast_address") or host,
        integer(info, "tcp_port"),
        integer(info, "http_port") or port,
        text(info, "version"),
        configured_address=address,
    )


def merge_sightings(sightings: Iterable[tuple[str, Node]]) -> list[Node]:
    """The nodes that nsqlookupds tell of, each once, sorted by host name.

    A node is its broadcast address and TCP port. The first sighting supplies the record.
    """
    nodes: dict[tuple[str, int], Node] = {}
    for lookupd, seen in sightings:
        node = nodes.setdefault((seen.broadcast_address, seen.tcp_port), seen)
        if node.remote_addresses is None:
            node.remote_addresses = []
        node.remote_addresses.append(f"{lookupd}/{seen.remote_address or 'N/A'}")
    newest = max((version_key(node.version) for node in nodes.values()), default=None)
    for node in nodes.values():
        node.out_of_date = newest is not None and version_key(node.version) < newest
    return sorted(nodes.values(), key=lambda node: (node.hostname, node.address))


def version_key(version: str) -> tuple[Any, ...]:
    """Sorts semantic versions. What is none counts as 0.0.0."""
    found = _VERSION.fullmatch(version)
    if found is None:
        return 0, 0, 0, 1, ()
    major, minor, patch, label = found.groups()
    # A pre-release comes before its release; of its parts, numbers come before words.
    parts = tuple(
        (0, int(part), "") if part.isdecimal() and len(part) < 20 else (1, 0, part)
        for part in (label or "").split(".")
        if part
    )
    return int(major), int(minor), int(patch), 0 if label else 1, parts
